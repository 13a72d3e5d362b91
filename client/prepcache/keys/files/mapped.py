"""The job's side of the map process (`map_main`): it is started, told names, and ended with the call.

A process of its own maps files because a map can kill: a file that shrinks, or a bad sector, is SIGBUS.
Hashing what is mapped costs an eighth less than reading it, and one large file takes all threads.

Invariants:
    1. Whatever happens to the process (it cannot start, dies, is killed), files lack an answer, and no
       more than that: the caller reads them.
    2. It inherits no descriptor but its socket; writing to a dead one raises no SIGPIPE, which a job may
       have set to kill it.
    3. It is gone, and waited for, when the `with` block ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import blake3

from prepcache.keys.files import map_main

if TYPE_CHECKING:
    from prepcache.keys.files.segments import Stamp

START_S = 2.0
"""Seconds until the process must have started; on a busy machine it takes 0.2."""
END_S = 1.0
"""Seconds to wait for a killed process: one whose disk does not answer cannot die."""
SILENCE_S = 60
"""Seconds that it waits for us. Of our death the socket does not tell where a forked child holds it too."""
_ANSWER = struct.Struct("=?5q32s")
"""`map_main.ANSWER`, with device and inode as the signed numbers of a stamp, which have the same bits."""
_RECEIVE_BYTES = 64 * 1024


class MapProcess:
    """A process that maps and hashes files. It ends with the `with` block."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._process = process
        self._socket = ours
        self._has_started: bool | None = None

    @classmethod
    def start(cls, threads: int) -> MapProcess | None:
        """Start one, or None if that cannot be.

        Args:
            threads: that hash; every file is hashed by all of them.
        """
        command = _command(threads)
        if command is None:
            return None
        # Descriptors, memory or processes may have run out; a hook of the job's may forbid what it likes.
        with contextlib.suppress(OSError, RuntimeError, subprocess.SubprocessError):
            ours, theirs = socket.socketpair()
            with contextlib.ExitStack() as undo, theirs:
                undo.enter_context(ours)
                for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    theirs.setsockopt(socket.SOL_SOCKET, limit, struct.pack("@ll", SILENCE_S, 0))
                null = subprocess.DEVNULL
                process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=null, stderr=null)
                undo.pop_all()
                return cls(process, ours)
        return None

    def __enter__(self) -> MapProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)

    def has_started(self, wait_s: float) -> bool | None:
        """Whether it can be told names; None if that is not known yet."""
        if self._has_started is None:
            self._socket.settimeout(wait_s)
            try:
                self._has_started = self._socket.recv(1) == b"1"
            except (BlockingIOError, TimeoutError):
                return None
            except OSError:
                self._has_started = False
        return self._has_started

    def hash(self, names: Sequence[str | bytes]) -> Iterator[tuple[Stamp, bytes] | None]:
        """Stamps and digests of files, in order; None for one that it cannot map or that did not hold still.

        Ends early if the process does. Call once, when it has started.
        """
        self._socket.settimeout(None)
        received = bytearray()
        try:
            told = b"".join(os.fsencode(name) + b"\0" for name in names)
            self._socket.sendall(told, socket.MSG_NOSIGNAL)
            self._socket.shutdown(socket.SHUT_WR)
            while some := self._socket.recv(_RECEIVE_BYTES):
                received += some
                whole = len(received) - len(received) % _ANSWER.size
                for is_hashed, *stamp, digest in _ANSWER.iter_unpack(received[:whole]):
                    yield ((stamp[0], stamp[1], stamp[2], stamp[3], stamp[4]), digest) if is_hashed else None
                del received[:whole]
        except OSError:
            return


def _command(threads: int) -> list[str] | None:
    """What runs it; None where the program that we run in is not plainly an interpreter."""
    program, package = sys.executable or "", blake3.__file__
    if getattr(sys, "frozen", False) or not os.path.basename(program).startswith("python") or not package:
        return None
    folder = os.path.dirname(os.path.dirname(os.path.abspath(package)))
    return [program, "-I", "-S", map_main.__file__, folder, str(threads)]
