"""Sessions by themselves, with a clock that moves when it is told to."""

from __future__ import annotations

import pytest

from prepcache.digests import RecipeDigest
from prepcache.errors import LimitExceeded, UnknownSession
from prepcache.protocol.wire import Progress
from prepcached.sessions import MAX_RECIPES, WATCHED_LAPSE_S, Session, Sessions


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(clock, max_sessions=3, max_per_user=2)


def opened(sessions: Sessions, uid: int | None = 1, name: str = "job") -> Session:
    return sessions.open(name, uid=uid, pid=7, reported_pid=8, host="h", opened_at=0.0)


def progress(recipe: str, done: int, total: int) -> Progress:
    return Progress(RecipeDigest(recipe), "n", done, total)


def test_a_session_acts_with_its_token_and_for_its_user_only(sessions: Sessions) -> None:
    session = opened(sessions)
    assert sessions.authenticate(session.id, session.token, 1) is session
    for session_id, token, uid in [
        ("0" * 32, session.token, 1), (session.id, "0" * 32, 1), (session.id, "ü", 1), (session.id, "", 1),
        (session.id, session.token, 2), (session.id, session.token, None),
    ]:  # fmt: skip
        with pytest.raises(UnknownSession):
            sessions.authenticate(session_id, token, uid)


def test_silence_ends_unwatched_sessions_sooner(sessions: Sessions, clock: Clock) -> None:
    seen, unseen = opened(sessions), opened(sessions)
    seen.is_watched = True
    clock.now += 15.1
    assert sessions.silent() == [unseen]
    sessions.beat(unseen)
    assert sessions.silent() == []
    clock.now += WATCHED_LAPSE_S
    assert sessions.silent() == [seen, unseen]


def test_sessions_are_bounded_for_each_user_and_in_all(sessions: Sessions) -> None:
    opened(sessions, 1)
    opened(sessions, 1)
    with pytest.raises(LimitExceeded, match="end some jobs"):
        opened(sessions, 1)
    last = opened(sessions, 2)
    with pytest.raises(LimitExceeded):
        opened(sessions, 3)
    sessions.end(last.id)
    opened(sessions, 3)


def test_a_beat_tells_which_recipes_moved_on(sessions: Sessions) -> None:
    session = opened(sessions)
    assert sessions.beat(session, [progress("r", 1, 9), progress("q", 0, 9)]) == ["r", "q"]
    assert sessions.beat(session, [progress("r", 2, 9), progress("q", 0, 9)]) == ["r"]
    assert (session.progress["r"].done, session.progress["r"].total) == (2, 9)


def test_what_has_ended_is_not_shown_any_more(sessions: Sessions) -> None:
    session = opened(sessions)
    sessions.beat(session, [progress("r", 1, 9), progress("q", 3, 9)])
    assert sessions.beat(session, [progress("r", 9, 9)]) == ["r"]
    assert list(session.progress) == ["q"]


def test_progress_is_bounded(sessions: Sessions) -> None:
    session = opened(sessions)
    for number in range(MAX_RECIPES + 5):
        sessions.beat(session, [progress(str(number), 1, 2)])
    assert len(session.progress) == MAX_RECIPES and "0" not in session.progress
