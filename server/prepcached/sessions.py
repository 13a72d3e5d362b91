"""The sessions: which processes are connected, and what they are doing; pure, with the clock injected.

Invariants:
    1. A session acts only with its token, and only for the user who opened it.
    2. A session whose process the daemon watches ends with the process, and otherwise only after
       `WATCHED_LAPSE_S` of silence: a stopped process keeps its maps. One that cannot be watched (another
       pid namespace, TCP) ends after `wire.LAPSE_S` without a beat.

Locking: none. One thread (the daemon's event loop) calls everything here.
Not here: watching processes (peer.py), leases (leases.py), holds (store/holds.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prepcache.errors import LimitExceeded, UnknownSession
from prepcache.protocol import wire
from prepcached.auth import TOKEN_UID

WATCHED_LAPSE_S = 1800.0
"""Silence after which even a live process is taken for one that forgot its session; as a hold weakens."""
MAX_RECIPES = 64
"""Recipes of which one session may report progress at a time."""


@dataclass
class Session:
    """One client process.

    Args:
        uid: the user by the kernel's word; None for a client that came with the TCP token.
        pid: the process by the kernel's word, 0 if it cannot be seen from here.
        reported_pid: what the process calls itself, which in another pid namespace is something else.
        opened_at: seconds since the epoch.
        beat_at: by the daemon's own clock.
        declined: items of a recipe for which there was no room, since it was last granted some; 0 where
            there was none for the recipe itself.
        scope: of its recipes (store/scopes.py); elsewhere here recipes are plain.
        staged: bytes of its uploads that no commit has taken, by name.
    """

    id: str
    token: str
    name: str
    uid: int | None
    pid: int
    reported_pid: int
    host: str
    opened_at: float
    beat_at: float
    is_watched: bool = False
    progress: dict[str, wire.Progress] = field(default_factory=dict)
    declined: dict[str, int] = field(default_factory=dict)
    scope: str = ""
    staged: dict[str, int] = field(default_factory=dict)

    @property
    def owner_uid(self) -> int:
        """Owner of what it commits."""
        return TOKEN_UID if self.uid is None else self.uid

    @property
    def label(self) -> str:
        """The session's name for people."""
        return f"{self.name} (pid {self.reported_pid} on {self.host})"


class Sessions:
    """All live sessions.

    Args:
        clock: seconds, monotonic.
        max_sessions: bound over all users; `max_per_user` bounds one user.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_sessions: int = 4096,
        max_per_user: int = 1024,
    ) -> None:
        self._clock = clock
        self._max_sessions = max_sessions
        self._max_per_user = max_per_user
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def open(
        self, name: str, *, uid: int | None, pid: int, reported_pid: int, host: str, opened_at: float
    ) -> Session:
        """A new session.

        Raises:
            LimitExceeded: too many are open, in all or of this user.
        """
        own = sum(1 for session in self if session.uid == uid)
        if len(self) >= self._max_sessions or own >= self._max_per_user:
            raise LimitExceeded(
                f"{len(self)} sessions are open, {own} of this user; the limits are {self._max_sessions} and "
                f"{self._max_per_user}: end some jobs",
                sessions=len(self),
            )
        session = Session(
            id=secrets.token_hex(16),
            token=secrets.token_hex(16),
            name=name or "job",
            uid=uid,
            pid=pid,
            reported_pid=reported_pid,
            host=host or "?",
            opened_at=opened_at,
            beat_at=self._clock(),
        )
        self._sessions[session.id] = session
        return session

    def authenticate(self, session_id: str, token: str, uid: int | None) -> Session:
        """The session that a request acts for.

        Raises:
            UnknownSession: there is none, or the token or user is another's. Which, is not said.
        """
        session = self._sessions.get(session_id)
        is_own = session is not None and secrets.compare_digest(session.token.encode(), token.encode())
        if session is None or not is_own or session.uid != uid:
            raise UnknownSession(
                "unknown session: its process died, it was silent for too long, or the daemon's root was "
                "replaced; open a new one",
                session=session_id[:64],
            )
        return session

    def beat(self, session: Session, progress: Iterable[wire.Progress] = ()) -> list[str]:
        """Keeps the session, and notes its progress; returns the recipes that moved on.

        What has come to its total has ended, and is noted no longer.
        """
        session.beat_at = self._clock()
        moved: list[str] = []
        for one in progress:
            before = session.progress.pop(one.recipe, None)
            if before is None or before.done != one.done:
                moved.append(one.recipe)
            if one.done < one.total:
                session.progress[one.recipe] = one
        while len(session.progress) > MAX_RECIPES:
            del session.progress[next(iter(session.progress))]
        return moved

    def note_declined(self, session: Session, recipe: str, items: int) -> int:
        """No room for these; returns how many of them are news: a client may ask several times."""
        before = session.declined.pop(recipe, 0)
        session.declined[recipe] = max(before, items)
        while len(session.declined) > MAX_RECIPES:
            del session.declined[next(iter(session.declined))]
        return max(0, items - before)

    def silent(self) -> list[Session]:
        """The sessions that have been silent for too long."""
        now = self._clock()
        return [
            session
            for session in self
            if now - session.beat_at > (WATCHED_LAPSE_S if session.is_watched else wire.LAPSE_S)
        ]

    def end(self, session_id: str) -> Session | None:
        """Forgets a session; None if it was gone already."""
        return self._sessions.pop(session_id, None)
