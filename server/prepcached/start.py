"""The first half of a start: takes the root and listens, before what answers requests is loaded.

A job that connects meanwhile waits in the socket's queue, and knows that the daemon lives.

Invariants:
    1. The root's lock is taken before a socket is bound: a second daemon of the same root changes nothing.
    2. A start that fails or is stopped takes its socket's name away.
    3. A unix socket is never more open than 0660, from its first moment.
    4. Neither the web framework, the database nor numpy is imported here.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prepcache.errors import ConfigError, RootInUse
from prepcached import log
from prepcached.config import Settings
from prepcached.store.root import Root

LOG = logging.getLogger(__name__)

STOP_LIMIT_S = 9
"""For a whole stop: then the process ends as by a crash, which costs no committed sample."""
ROOT_WAIT_S = STOP_LIMIT_S + 1.0  # for a daemon that is just stopping to give the root back
LISTEN_FDS_START = 3
BACKLOG = 1024
STOPS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Place:
    """A root that is this process's own, and the sockets on which it listens; `own_socket` is the inode that
    it bound at `uds`, if it did."""

    root: Root
    listeners: list[socket.socket]
    uds: Path | None
    own_socket: tuple[int, int] | None

    @property
    def is_lost(self) -> bool:
        """Whether nobody finds the socket any more: its name is gone, or another's."""
        return self.own_socket is not None and inode(self.uds) != self.own_socket

    def drop_socket(self) -> None:
        """Takes the socket's name away, unless another process has bound it since."""
        if self.uds is not None and self.own_socket is not None and not self.is_lost:
            try:
                self.uds.unlink(missing_ok=True)
            except OSError as error:  # the disk has become read-only: the next start takes the name over
                LOG.warning("cannot remove %s: %s", self.uds, error.strerror)

    def close(self) -> None:
        self.drop_socket()
        for one in self.listeners:
            one.close()
        if self.root.is_open:
            self.root.close()


def serve(load: Callable[[], Settings], environ: Mapping[str, str]) -> None:
    """Runs a daemon until it is told to stop or was idle for long enough; `load` reads the settings."""
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        os.environ.pop(name, None)  # the metrics of the job that started it are not the daemon's
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
    # The job that started it may have had them blocked. SIGHUP waits until the loop hears it (__main__.py).
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGHUP})
    log.configure(settings.log_level, settings.log_format, environ)
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


def inode(path: Path | None) -> tuple[int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found is not None else None


def listen(settings: Settings, environ: Mapping[str, str]) -> list[socket.socket]:
    """All sockets, bound and listening. Raises ConfigError for one that is taken or not allowed."""
    listeners = _handed_over(environ)
    if settings.token is None and any(one.family != socket.AF_UNIX for one in listeners):
        raise ConfigError("systemd passed a TCP socket: TCP needs a token (--token-file FILE)")
    inherited = {one.getsockname() for one in listeners}
    try:
        if settings.host is not None and settings.port is not None:
            listeners.append(_listen_tcp(settings.host, settings.port))
        if settings.metrics_listen is not None:
            listeners.append(_listen_tcp(*settings.metrics_listen))
        if settings.uds is not None and os.fspath(settings.uds) not in inherited:
            listeners.append(_listen_unix(settings.uds, settings.group))
    except BaseException:
        for one in listeners:
            one.close()
        raise
    return listeners


def _listen_unix(path: Path, group: int | None) -> socket.socket:
    """A unix socket at a path, of mode 0660; takes a stale one's place. A folder that is made for it is the
    daemon's alone, unless a group uses the socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o022)
    try:
        path.parent.mkdir(mode=0o700 if group is None else 0o755, parents=True, exist_ok=True)
        _clear_stale(path)
        os.umask(0o177)
        sock.bind(os.fspath(path))
        try:
            if group is not None:
                os.chown(path, -1, group)
        except OSError as exc:
            path.unlink()
            raise ConfigError(
                f"group {group}: cannot own {path} ({exc.strerror}): add the daemon's user to the group "
                "(usermod -aG) and log in again, or leave --group out"
            ) from None
        path.chmod(0o660)
        sock.listen(BACKLOG)
    except BaseException as error:
        sock.close()
        if not isinstance(error, OSError):
            raise
        raise ConfigError(
            f"{path}: cannot create the socket ({error.strerror}): give --uds another path"
        ) from None
    finally:
        os.umask(before)
    return sock


def _clear_stale(path: Path) -> None:
    """Takes away a socket that nobody listens on."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path}: exists and is not a socket: give --uds another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED:
            raise ConfigError(f"{path}: another daemon listens there: stop it, or give --uds another path")
    path.unlink(missing_ok=True)


def _listen_tcp(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named: asyncio sets TCP_NODELAY only then, and without it a request takes 44 ms.
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(socket.socket(family, kind | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            undo.pop_all()
    except OSError as error:
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({error.strerror}): choose another port"
        ) from None
    return sock


def is_activated(environ: Mapping[str, str]) -> bool:
    return environ.get("LISTEN_PID") == str(os.getpid()) and environ.get("LISTEN_FDS", "0") != "0"


def _handed_over(environ: Mapping[str, str]) -> list[socket.socket]:
    if not is_activated(environ):
        return []
    found = []
    for fd in range(LISTEN_FDS_START, LISTEN_FDS_START + int(environ["LISTEN_FDS"])):
        os.set_inheritable(fd, False)
        found.append(socket.socket(fileno=fd))
    return found


def notify(state: str, environ: Mapping[str, str]) -> None:
    path = environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(state.encode(), socket.MSG_DONTWAIT, address)  # a manager that hangs holds up nothing
        except OSError as error:
            LOG.warning("systemd was not told %s: %s", state, error)


def watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    """Half of the silence that systemd allows; None: it does not watch (sd_watchdog_enabled(3))."""
    limit_us = environ.get("WATCHDOG_USEC", "")
    if not limit_us.isdecimal() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(limit_us) / 2 / 1_000_000
