"""The budget in a real store: three entries reach it."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from prepcache import errors
from prepcached.store.records import Holds, Ledger, Limits
from prepcached.store.staging import StagedArea
from prepcached.store.store import Store
from support import stores
from support.stores import BLOCK, item, items_of, put, stage

THREE = Limits(max_bytes=3 * BLOCK + BLOCK // 2, min_free_bytes=0, hold_idle_s=100)


@pytest.fixture
def small(open_store: Callable[..., Store]) -> Store:
    return open_store(THREE)


def test_the_least_recently_used_goes(small, clock):
    refs = []
    for name in range(3):
        clock.now += 1
        refs.append(put(small, name).artifact)
    clock.now += 1
    stores.hold(small, "job", refs[0].digest)
    small.release("job")
    clock.now += 1
    put(small, 3)
    assert items_of(small) == sorted([item(0), item(2), item(3)])
    stats = small.stats()
    assert (stats.evictions, stats.evicted_bytes, stats.evictions_per_s) == (1, BLOCK, 1 / 60)
    assert stats.coldest_age_s == 2.0


def test_a_write_is_declined_when_everything_is_held_or_pinned(small):
    put(small, 0, holder="job")
    put(small, 1, holder="job")
    small.set_pin(put(small, 2).artifact.key, True)
    assert small.refusal(BLOCK)
    with pytest.raises(errors.Declined, match="in use by jobs, pinned"):
        put(small, 3)
    assert small.stats().declined == 1
    assert items_of(small) == sorted([item(0), item(1), item(2)])
    small.sweep_staging("s".__ne__)
    small.release("job")
    assert not small.refusal(BLOCK)
    put(small, 3)
    assert item(2) in items_of(small)


def test_a_clock_that_is_set_forward_weakens_no_hold(tmp_path, clock):
    store = Store(tmp_path / "root", limits=replace(THREE, hold_idle_s=3000), clock=clock)
    for name in range(3):
        put(store, name, holder="job")
    clock.now += 3600
    assert store.stats().held_bytes == 3 * BLOCK
    with pytest.raises(errors.Declined):
        put(store, 3)
    store.sweep_staging("s".__ne__)
    assert items_of(store) == sorted(map(item, range(3))) and store.check() == []
    store.close()


def test_a_hold_nobody_touched_for_long_is_weak(small, clock):
    refs = [put(small, name, holder="job").artifact for name in range(3)]
    clock.now += 99
    small.touch("job", [refs[1].digest, refs[2].digest])
    assert small.refusal(BLOCK)
    clock.now += 2
    assert not small.refusal(BLOCK)
    with pytest.raises(errors.Declined):  # the evicted one's bytes are on disk until the job lets go
        put(small, 3)
    assert small.to_let_go("job") == [refs[0].digest]
    small.release("job", small.to_let_go("job"))
    small.sweep_staging("s".__ne__)
    put(small, 3)
    assert items_of(small) == sorted([item(1), item(2), item(3)])


def test_staged_bytes_count_and_removed_ones_too(small):
    put(small, 0, holder="job")
    put(small, 0, seed=1)  # the old one's bytes stay while it is mapped
    staged = stage(small, [1])
    stats = small.stats()
    assert (stats.unlinked_bytes, stats.staged_bytes, stats.disk_bytes) == (BLOCK, BLOCK, 3 * BLOCK)
    assert small.refusal(BLOCK * 2)
    small.unstage(staged.name)
    small.maintain()
    small.release("job", small.to_let_go("job"))
    assert not small.refusal(BLOCK * 2)


def test_an_upload_has_the_room_that_it_announced(small):
    for name in range(3):
        put(small, name)
    with small.upload("s.upload", 2 * BLOCK) as fd:
        assert len(items_of(small)) == 1
        assert small.stats().reserved_bytes == 2 * BLOCK
        os.write(fd, bytes(2 * BLOCK))
        os.close(fd)
        put(small, 3)
        with pytest.raises(errors.Declined), small.upload("s.other", 2 * BLOCK):
            pass
    assert os.listdir(small.staging) == ["s.upload"]
    stats = small.stats()
    assert (stats.reserved_bytes, stats.staged_bytes) == (0, 2 * BLOCK)
    small.sweep_staging("s".__ne__)
    small.maintain()
    assert not small.refusal(3 * BLOCK)


def test_a_staged_file_is_not_counted_or_swept_while_it_is_taken(small):
    area, staged = StagedArea(small.staging), stage(small, [1])
    assert area.disk_bytes() == BLOCK
    with area.busy(staged.name):
        assert area.disk_bytes() == 0
        assert area.sweep("".__eq__).files == 0
    assert area.sweep("s".__eq__).files == 0
    assert area.sweep("".__eq__).files == 1


def test_the_background_makes_room_ahead(open_store):
    store = open_store(Limits(max_bytes=100 * BLOCK, min_free_bytes=0))
    for name in range(100):
        put(store, name)
    assert store.stats().entries == 100
    store.maintain()
    assert store.stats().entries == 98
    assert Ledger(1 << 50, 0, Holds(0.0)).headroom(1 << 50) == 256 << 20, "of a large cache only so much"


def test_a_refusal_names_the_setting_that_limits():
    mib, holds = 1 << 20, Holds(0.0)
    budget = Ledger(50 * mib, 10 * mib, holds, live_bytes=50 * mib)
    limit = "50.0 MiB (set PREPCACHED_MAX_BYTES, then run `prepcached stop`)"
    told = f"no room for 2.0 MiB more: the cache's limit is {limit}, and all entries are in use"
    assert budget.refusal(2 * mib, free_bytes=24_000 * mib).startswith(told)
    assert "reserved for" not in budget.refusal(2 * mib, free_bytes=24_000 * mib)
    told = f"60.0 MiB exceed the cache's limit: {limit}"
    assert budget.refusal(60 * mib, free_bytes=24_000 * mib) == told
    disk = Ledger(500 * mib, 10 * mib, holds, live_bytes=50 * mib)
    told = (
        "the cache's limit is 51.0 MiB, because the disk has 11.0 MiB free, "
        "of which 10.0 MiB must stay free (set PREPCACHED_MIN_FREE, then run `prepcached stop`)"
    )
    assert told in disk.refusal(2 * mib, free_bytes=11 * mib)


def test_recency_is_written_behind(store, clock):
    ref = put(store, 1, holder="job").artifact
    clock.now += 10
    store.touch("job", [ref.digest])
    assert store.entry(ref.key).used_at == clock.now - 10
    store.maintain()
    assert store.entry(ref.key).used_at == clock.now
    clock.now -= 5  # somebody set the clock back: the entry does not become colder
    store.touch("job", [ref.digest])
    assert store.entries().entries[0].used_at == clock.now + 5


def test_what_was_used_last_is_written_at_the_end(open_store, clock):
    store = open_store()
    ref = put(store, 1).artifact
    clock.now += 1
    stores.hold(store, "job", ref.digest)
    store.close()
    assert open_store().entry(ref.key).used_at == clock.now
