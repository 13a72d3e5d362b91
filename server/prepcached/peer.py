"""Who is at the other end: the peer's user and process by the kernel's word, and its death.

Invariants:
    1. uid and pid come from the socket (SO_PEERCRED in unix(7)), never from the request.
    2. A death is seen through a pidfd: a pid that is used again cannot pass for the process.
    3. What cannot be seen (pid 0: another pid namespace; TCP) is unseen, never guessed: heartbeats take over.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pwd
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_UCRED = struct.Struct("=iII")
"""pid, uid, gid."""


@dataclass(frozen=True)
class Peer:
    """The other end of a connection: `uid` is None over TCP, `pid` 0 where it cannot be seen from here."""

    uid: int | None
    pid: int

    @classmethod
    def of(cls, connection: Any) -> Peer:
        if connection is None or connection.family != socket.AF_UNIX:
            return cls(None, 0)
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return cls(uid, pid)

    def open_pidfd(self) -> int | None:
        """Readable when the peer dies; None: cannot be watched. Raises ProcessLookupError: it is dead."""
        try:
            return os.pidfd_open(self.pid) if self.pid > 0 else None
        except ProcessLookupError:
            raise
        except OSError:
            return None


@functools.lru_cache(1024)
def user_name(uid: int | None) -> str:
    """Asks the machine's directories: too slow for the event loop."""
    if uid is None:
        return "the TCP token"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class Watch:
    """Calls `on_death` with the name of each watched process that dies, once, on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_death: Callable[[str], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._pidfds: dict[str, int] = {}

    def add(self, name: str, pidfd: int) -> None:
        self._pidfds[name] = pidfd
        self._loop.add_reader(pidfd, self._died, name)

    def drop(self, name: str) -> None:
        pidfd = self._pidfds.pop(name, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        for name in list(self._pidfds):
            self.drop(name)

    def _died(self, name: str) -> None:
        self.drop(name)
        self._on_death(name)
