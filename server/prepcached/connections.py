"""Connection slots: how many connections a listener and a peer may have open at once.

Invariants:
    1. TCP takes at most a share of the slots, so whoever reaches the port cannot shut out the unix socket.
    2. A TCP connection that has not shown the token counts as unknown. Few of those are kept: a new one takes
       the place of the oldest, so a flood of them delays nobody who sends the token at once.
    3. One user of the unix socket takes at most half of the slots.
    4. A flood is logged once a minute, with the peer that it comes from, not once for each connection.
"""

from __future__ import annotations

import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 8192
DESCRIPTOR_SHARE = 2
"""Connections may use one in so many of the process's descriptors; the store needs the others."""
FLOOD_LOG_S = 60.0
"""Between two log lines about the same flood."""


class Connection(Protocol):
    """What the slots need of a connection."""

    @property
    def user(self) -> int | None:
        """uid of the peer; None over TCP."""

    @property
    def address(self) -> str:
        """Where it comes from, for the log."""

    def drop(self) -> None:
        """Closes it at once, without an answer."""


@dataclass(frozen=True)
class SlotLimits:
    """Connections that may be open at once.

    Args:
        total: of all kinds.
        tcp: over TCP.
        unknown: over TCP, before they have shown the token.
        user: of one user over the unix socket.
    """

    total: int = MAX_CONNECTIONS
    tcp: int = MAX_CONNECTIONS // 8
    unknown: int = MAX_CONNECTIONS // 64
    user: int = MAX_CONNECTIONS // 2

    @classmethod
    def of_process(cls) -> SlotLimits:
        """Limits that this process has descriptors for."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        total = max(8, min(MAX_CONNECTIONS, soft // DESCRIPTOR_SHARE))
        return cls(total, max(2, total // 8), max(1, total // 64), max(4, total // 2))


class Slots:
    """The open connections of one server. All methods run on the event loop's thread."""

    def __init__(self, limits: SlotLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or SlotLimits.of_process()
        self._clock = clock
        self.refused = 0
        """Connections closed for want of a slot, since the start."""
        self._users: Counter[int | None] = Counter()
        self._unknown: dict[Connection, None] = {}
        self._logged_at: dict[str, float] = {}

    def open(self, kind: str) -> int:
        """How many connections of a kind are open: "unix", "tcp", or "unknown" (TCP without the token)."""
        if kind == "unknown":
            return len(self._unknown)
        tcp = self._users[None]
        return tcp if kind == "tcp" else self._users.total() - tcp

    def take(self, connection: Connection) -> str | None:
        """Counts a new connection.

        Returns:
            None, or why it must be refused. It is counted until `give_back` either way.
        """
        user = connection.user
        self._users[user] += 1
        if user is None:
            self._unknown[connection] = None
            if len(self._unknown) > self.limits.unknown:
                self._note("unknown", connection, f"over {self.limits.unknown} connections without a token")
                oldest = next(iter(self._unknown))
                del self._unknown[oldest]
                oldest.drop()
            if self._users[None] > self.limits.tcp:
                return self._refuse("tcp", connection, f"{self.limits.tcp} TCP connections are open")
        elif self._users[user] > self.limits.user:
            return self._refuse(
                f"uid {user}", connection, f"uid {user} has {self.limits.user} connections open"
            )
        if self._users.total() > self.limits.total:
            return self._refuse("total", connection, f"{self.limits.total} connections are open")
        return None

    def recognize(self, connection: Connection) -> None:
        """A TCP connection has shown the token."""
        self._unknown.pop(connection, None)

    def give_back(self, connection: Connection) -> None:
        """Forgets a connection that has ended."""
        self._unknown.pop(connection, None)
        self._users[connection.user] -= 1
        if not self._users[connection.user]:
            del self._users[connection.user]

    def _refuse(self, flood: str, connection: Connection, what: str) -> str:
        self._note(flood, connection, what)
        return f"{what}: close some"

    def _note(self, flood: str, connection: Connection, what: str) -> None:
        self.refused += 1
        now = self._clock()
        if now - self._logged_at.get(flood, -FLOOD_LOG_S) >= FLOOD_LOG_S:
            self._logged_at[flood] = now
            LOG.warning("closing connections (the last from %s): %s", connection.address, what)
