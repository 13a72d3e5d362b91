"""The first half of a start: takes the root and listens, before what answers requests is loaded.

Loading that takes most of a start. A job that connects meanwhile waits in the socket's queue, and knows from
the connection that the daemon lives.

Invariants:
    1. The root's lock is taken before a socket is bound: a second daemon of the same root changes nothing.
    2. A start that fails or is stopped takes its socket's name away.
    3. This module imports nothing that takes long: neither the web framework nor the database, nor numpy.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prepcache.errors import RootInUse
from prepcache.protocol import listening
from prepcached import log
from prepcached.config import Settings
from prepcached.sockets import is_activated, listen
from prepcached.store.root import Root

LOG = logging.getLogger(__name__)

ROOT_WAIT_S = 5.0
"""For a daemon that is just stopping to give the root back."""
STOPS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Place:
    """A root that is this process's own, and the sockets on which it listens.

    Args:
        own_socket: device and inode of the socket that this process bound at `uds`; None where it bound none.
    """

    root: Root
    listeners: list[socket.socket]
    uds: Path | None
    own_socket: tuple[int, int] | None

    @property
    def is_lost(self) -> bool:
        """Whether nobody finds the socket that this process bound: its name is gone, or another's."""
        return self.own_socket is not None and inode(self.uds) != self.own_socket

    def drop_socket(self) -> None:
        """Takes the socket's name away, unless another process has bound it since."""
        if self.uds is not None and self.own_socket is not None and not self.is_lost:
            self.uds.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives up what a start that failed still has."""
        self.drop_socket()
        for one in self.listeners:
            one.close()
        if self.root.is_open:
            listening.forget(self.root.layout.root)
            self.root.close()


def serve(load: Callable[[], Settings], environ: Mapping[str, str]) -> None:
    """Runs a daemon until it is told to stop, or has been idle for long enough.

    Args:
        load: the settings as they are now; raises ConfigError.
    """
    settings = load()
    place: Place | None = None

    def leave(_number: int, _frame: object) -> None:
        # Nothing is owed yet. At once: an exception might come where a lock has just been taken, and the end
        # of the interpreter would wait for it.
        if place is not None:
            with contextlib.suppress(OSError):
                place.drop_socket()
        os._exit(0)

    for one in STOPS:
        signal.signal(one, leave)  # until the loop hears them
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the job that started it may have had them blocked
    log.configure(settings.log_level, environ, settings.log_format)
    place = take(settings, environ)
    gc.disable()  # until all is loaded: imports make no garbage, and collections would take a tenth of them
    try:
        from prepcached import server

        server.serve(place, load, settings, environ)
    except BaseException:
        place.close()
        raise


def take(settings: Settings, environ: Mapping[str, str]) -> Place:
    """Takes the root and listens; waits a little for a daemon that is just giving the root back.

    Raises:
        RootUnusable, RootInUse: as store.root.
        ConfigError: a path or port that is taken or not allowed.
    """
    root = _take_root(settings)
    try:
        listeners = listen(settings, environ)
    except BaseException:
        root.close()
        raise
    own_socket = None if is_activated(environ) else inode(settings.uds)
    _note_socket(settings.root, listeners)
    return Place(root, listeners, settings.uds, own_socket)


def _take_root(settings: Settings) -> Root:
    until = time.monotonic() + ROOT_WAIT_S
    while True:
        try:
            return Root(os.fspath(settings.root))
        except RootInUse:
            if time.monotonic() > until or inode(settings.uds) is not None:
                raise
            time.sleep(0.05)


def _note_socket(root: Path, listeners: list[socket.socket]) -> None:
    paths = [one.getsockname() for one in listeners if one.family == socket.AF_UNIX]
    try:
        if paths:
            listening.note(root, paths[0])
        else:
            listening.forget(root)  # the note of a daemon that was killed
    except OSError as error:
        LOG.warning("%s: cannot write the socket's address there: %s", root, error.strerror)


def inode(path: Path | None) -> tuple[int, int] | None:
    """Device and inode of what lies there."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found is not None else None
