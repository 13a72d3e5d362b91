"""Background work stands aside for requests: between its pieces, without a lock, and not for ever."""

from __future__ import annotations

import threading

import pytest

from prepcached.store import core, eviction
from prepcached.store.compaction import FANOUT
from prepcached.store.core import Foreground
from prepcached.store.records import Limits
from prepcached.store.store import Store
from support.stores import put


def test_who_gives_way_goes_on_when_the_last_request_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "GIVE_WAY_S", 60.0)
    requests, is_waiting, went_on = Foreground(), threading.Event(), threading.Event()
    requests.give_way()  # for nobody
    wait = requests._is_idle.wait

    def told(limit_s: float) -> bool:
        is_waiting.set()
        return wait(limit_s)

    monkeypatch.setattr(requests._is_idle, "wait", told)

    def work() -> None:
        requests.give_way()
        went_on.set()

    thread = threading.Thread(target=work)
    with requests:
        with requests:
            thread.start()
            assert is_waiting.wait(60)
        assert not went_on.is_set()
    thread.join(60)
    assert went_on.is_set()


def test_requests_without_end_only_slow_it_down() -> None:
    requests = Foreground()
    with requests:
        requests.give_way()


@pytest.fixture
def gave_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that background work gave way, whether it had the writer lock."""
    found: list[bool] = []
    of = store
    monkeypatch.setattr(of.foreground, "give_way", lambda: found.append(of.writer._is_owned()))
    return found


def test_a_merge_gives_way_before_each_part(store: Store, gave_way: list[bool]) -> None:
    for number in range(2 * FANOUT):
        put(store, number)
    assert store.merge_some()
    assert len(gave_way) >= 2 * FANOUT and not any(gave_way)


def test_a_scrub_gives_way_before_each_artifact(store: Store, gave_way: list[bool]) -> None:
    for number in range(5):
        put(store, number)
    assert store.scrub_some(1 << 20)
    assert len(gave_way) >= 5 and not any(gave_way)


def test_room_is_made_ahead_in_small_pieces(
    store: Store, gave_way: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "HEADROOM_ENTRIES", 4)
    for number in range(20):
        put(store, number)
    store.set_limits(Limits(max_bytes=1 << 10, min_free_bytes=0))
    store.maintain()
    assert store.stats().evictions == 20
    assert len(gave_way) >= 5 and not any(gave_way)
