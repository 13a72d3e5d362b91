"""Who reads what: the sessions' holds, in memory. Pure: no locks, no clocks, no I/O.

Invariants:
    1. A digest is in one session's `held` or in its `gone`, never in both. `held` names files that are
       in the index; `gone` names files that were removed while the session had them mapped: their bytes stay
       on disk until the session lets go.
    2. A hold weakens when nobody touched it for `idle_s`; then it protects nothing, but is still known,
       so that its session can be told to let go. `now` is monotonic everywhere: a clock that is set
       forward must not weaken all of them at once.

Locking: the caller's, who keeps others waiting: what looks at many digests looks at no hold twice. Memory is
the product here: one dict slot a hold, the time shared by a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from typing import NamedTuple


class Held(NamedTuple):
    """What one session holds."""

    artifacts: int
    disk_bytes: int


NOTHING_HELD = Held(0, 0)


class Holds:
    """The holds of all sessions."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._held: dict[str, dict[bytes, float]] = {}
        self._gone: dict[str, dict[bytes, int]] = {}
        self._bytes: dict[bytes, int] = {}
        self._pinned: set[bytes] = set()

    def take(self, session: str, found: Iterable[tuple[bytes, int, bool]], now: float) -> None:
        """Holds what was found (digest, bytes on disk, is pinned)."""
        held = self._held.setdefault(session, {})
        gone = self._gone.get(session, {})
        for digest, disk_bytes, is_pinned in found:
            self._bytes.setdefault(digest, disk_bytes)
            held[digest] = now
            gone.pop(digest, None)
            if is_pinned:
                self._pinned.add(digest)

    def touch(self, session: str, digests: Iterable[bytes], now: float) -> list[bytes]:
        """Marks holds as used; returns those that the session does hold."""
        held = self._held.get(session, {})
        touched = [digest for digest in digests if digest in held]
        held.update(dict.fromkeys(touched, now))
        return touched

    def drop(self, session: str, digests: Iterable[bytes] | None = None) -> None:
        """Lets go of some holds, or of all that the session has."""
        held, gone = self._held.get(session, {}), self._gone.get(session, {})
        free = set()
        for digest in list(held) + list(gone) if digests is None else list(digests):
            gone.pop(digest, None)
            if held.pop(digest, None) is not None:
                free.add(digest)
        for others in self._held.values():
            if len(others) < len(free):
                free.difference_update(others)
            else:
                free = free.difference(others)
        for digest in free:
            self._bytes.pop(digest, None)
            self._pinned.discard(digest)
        if not held:
            self._held.pop(session, None)
        if not gone:
            self._gone.pop(session, None)

    def is_held(self, digest: bytes, now: float) -> bool:
        """Whether any session holds it, and not weakly."""
        return any(now - held[digest] < self.idle_s for held in self._held.values() if digest in held)

    def count(self, digest: bytes) -> int:
        """How many sessions hold it."""
        return sum(digest in held for held in self._held.values())

    def removed(self, digests: Collection[bytes]) -> None:
        """Their files were unlinked: whoever held one keeps its bytes on disk until it lets go."""
        for digest in digests:
            disk_bytes = self._bytes.pop(digest, 0)
            for session, held in self._held.items():
                if held.pop(digest, None) is not None:
                    self._gone.setdefault(session, {})[digest] = disk_bytes
        self._pinned.difference_update(digests)

    def pin(self, digest: bytes, is_pinned: bool) -> None:
        """The entry's pin changed; matters only while it is held."""
        if is_pinned and digest in self._bytes:
            self._pinned.add(digest)
        else:
            self._pinned.discard(digest)

    def to_let_go(self, session: str) -> list[bytes]:
        """What this session has and should drop."""
        return list(self._gone.get(session, {}))

    def by_session(self) -> dict[str, Held]:
        """What each session has, removed files that it still has mapped among them."""
        found = {}
        for name in self._held.keys() | self._gone.keys():
            held, gone = self._held.get(name, {}), self._gone.get(name, {})
            size = sum(self._bytes.get(digest, 0) for digest in held) + sum(gone.values())
            found[name] = Held(len(held) + len(gone), size)
        return found

    def held_bytes(self, now: float, *, pinned_too: bool = True) -> int:
        """Bytes that holds protect from eviction, each digest once."""
        loose = set(self._bytes)
        for held in self._held.values():
            if len(held) < len(loose):
                loose.difference_update([one for one, at in held.items() if now - at < self.idle_s])
            else:
                loose.difference_update([one for one in loose if now - held.get(one, -inf) < self.idle_s])
        return sum(
            size
            for digest, size in self._bytes.items()
            if (pinned_too or digest not in self._pinned) and digest not in loose
        )

    def unlinked_bytes(self) -> int:
        """Bytes of unlinked files that somebody still has mapped, each digest once."""
        merged: dict[bytes, int] = {}
        for gone in self._gone.values():
            merged.update(gone)
        return sum(merged.values())
