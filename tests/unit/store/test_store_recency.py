"""When an entry was last used: kept in memory, written behind, never lost and never turned back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from prepcache import errors
from prepcached.store.db import Index
from prepcached.store.records import Filter
from prepcached.store.store import RECENCY_S, Store
from support import stores
from support.stores import Clock, put


def test_recency_is_written_behind(store: Store, clock: Clock) -> None:
    ref = put(store, 1, holder="job").artifacts[0]
    clock.now += 10
    store.touch("job", [ref.digest])
    assert store.entry(ref.key).used_at == clock.now - 10
    store.maintain()
    assert store.entry(ref.key).used_at == clock.now
    clock.now -= 5  # somebody set the clock back: the entry does not become colder
    store.touch("job", [ref.digest])
    assert store.entries().entries[0].used_at == clock.now + 5


def test_a_purge_by_size_takes_what_a_fast_clock_left(store: Store, clock: Clock) -> None:
    for name in range(3):
        put(store, name)
    clock.now -= 3600  # somebody set it right
    assert store.purge(Filter(), free_bytes=1 << 30).entries == 3


def test_what_was_used_last_is_written_at_the_end(open_store: Callable[..., Store], clock: Clock) -> None:
    store = open_store()
    ref = put(store, 1).artifacts[0]
    clock.now += 1
    stores.hold(store, "job", ref.digest)
    store.close()
    assert open_store().entry(ref.key).used_at == clock.now


def test_recency_that_could_not_be_written_is_written_later(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = put(store, 1).artifacts[0]
    clock.now += RECENCY_S
    stores.hold(store, "job", ref.digest)

    @contextlib.contextmanager
    def broken(self: Index) -> Iterator[sa.Connection]:
        raise errors.StoreError("the disk says no")
        yield

    with monkeypatch.context() as patch, pytest.raises(errors.StoreError):
        patch.setattr(Index, "write", broken)
        store.maintain()
    used_at, clock.now = clock.now, clock.now + RECENCY_S
    store.maintain()
    assert store.entry(ref.key).used_at == used_at
