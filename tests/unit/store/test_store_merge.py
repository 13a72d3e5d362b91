"""Merging: fewer files, the same answers, readers undisturbed."""

import errno
import os
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from prepcache import artifact, errors
from prepcache.artifact import writer
from prepcache.protocol.wire import Resolved
from prepcached.store import compaction, eviction, queries
from prepcached.store.compaction import FANOUT, LARGE_BYTES, MERGED_BYTES, TIER_BYTES, Part, plan
from prepcached.store.records import Filter, Limits
from prepcached.store.staging import MAX_ITEMS
from prepcached.store.store import Store
from support import stores
from support.stores import BLOCK, OTHER_RECIPE, RECIPE, item, put


def parts(*sizes: int) -> list[Part]:
    return [Part(n, size) for n, size in enumerate(sizes)]


def merge_all(store: Store) -> None:
    while store.merge_some():
        pass


def test_a_plan_takes_the_fullest_tier_and_no_large_ones():
    many = parts(*[100] * 9, *[TIER_BYTES] * 12, *[LARGE_BYTES] * 50)
    assert {part.size_bytes for part in plan(many)} == {TIER_BYTES}
    assert plan(parts(*[LARGE_BYTES] * 50)) == []


def test_a_plan_is_bounded():
    chosen = plan(parts(*[LARGE_BYTES - 1] * 50))
    assert len(chosen) >= FANOUT
    assert sum(part.size_bytes for part in chosen) <= MERGED_BYTES
    assert len(plan(parts(*[1] * 5000))) == compaction.MAX_PARTS
    assert len(plan([Part(n, 1, MAX_ITEMS // 10) for n in range(50)])) == 10
    many_items_first = [Part(n, 1, MAX_ITEMS // 2 if n < 3 else 1) for n in range(3 + FANOUT)]
    assert plan(many_items_first) == many_items_first[3:]


def test_a_merge_keeps_items_rows_costs_and_samples(store):
    refs = [put(store, name, (name, 2), cost_s=name, size_bytes=50 + name).artifact for name in range(FANOUT)]
    before = {}
    for ref in refs:
        opened = artifact.open(Path(store.objects) / ref.digest[:2] / ref.digest)
        before |= {
            d.tobytes(): opened.sample(int(r))["x"]
            for d, r in zip(opened.item_digests, opened.first_row, strict=True)
        }
    assert store.merge_some()
    (merged,) = store.resolve(RECIPE).artifacts
    assert (merged.items, merged.rows, merged.cost_s) == (2 * FANOUT, 2 * FANOUT, sum(r.cost_s for r in refs))
    opened = artifact.open(Path(store.objects) / merged.digest[:2] / merged.digest)
    for digest, row in zip(opened.item_digests, opened.first_row, strict=True):
        np.testing.assert_array_equal(opened.sample(int(row))["x"], before[digest.tobytes()])
    assert stores.digests_on_disk(store) == {merged.digest}
    assert not store.merge_some()
    assert store.stats().merges == 1
    assert store.entry(merged.key).owner == os.getuid()
    assert store.stats().cost_s == merged.cost_s


def test_a_look_up_during_a_merge_waits_for_nothing(store, monkeypatch):
    """The merge has the writer's lock, and its parts are about to go: who finds them gone looks again."""
    place = compaction.durable.place
    answers = list[Resolved]()

    def look_then_place(*paths: str) -> None:
        looking = threading.Thread(target=lambda: answers.append(store.resolve(RECIPE, holder="new")))
        looking.start()
        looking.join(60)
        assert answers, "the look-up waits for the merge"
        place(*paths)

    for name in range(FANOUT):
        put(store, name)
    monkeypatch.setattr(compaction.durable, "place", look_then_place)
    assert store.merge_some()
    parts = answers[0].artifacts
    assert len(parts) == FANOUT and sorted(store.to_let_go("new")) == sorted(ref.digest for ref in parts)
    with pytest.raises(errors.NotFound):
        store.open_entry(parts[0].key, digest=parts[0].digest)
    again = store.resolve(RECIPE, answers[0].generation)
    assert again.is_complete and [ref.items for ref in again.artifacts] == [FANOUT]


def test_what_a_job_holds_is_not_merged(store, clock):
    refs = [put(store, name).artifact for name in range(FANOUT)]
    stores.hold(store, "job", refs[0].digest)
    merge_all(store)
    assert {ref.digest for ref in store.resolve(RECIPE).artifacts} == {ref.digest for ref in refs}
    assert store.to_let_go("job") == []
    store.release("job")
    clock.now += compaction.PUT_OFF_S
    assert store.merge_some()
    assert [ref.items for ref in store.resolve(RECIPE).artifacts] == [FANOUT]


def test_only_equals_merge(store):
    seen = [{"kind": "env", "name": "LANG", "digest": "00" * 32}]
    for name in range(4):
        put(store, name)
        put(store, name, recipe=OTHER_RECIPE)
        put(store, ("observed", name), observed=seen)
        store.set_pin(put(store, ("pinned", name)).artifact.key, True)
    assert not store.merge_some()
    for name in range(4, 8):
        put(store, ("observed", name), observed=seen)
    assert store.merge_some()
    assert {len(ref.observed) * ref.items for ref in store.resolve(RECIPE).artifacts} == {0, 8}
    assert not store.merge_some()


def test_artifacts_with_a_common_item_do_not_merge(store):
    put(store, 0)
    put(store, 0, "again")
    for name in range(1, FANOUT):
        put(store, name)
    merge_all(store)
    assert sorted(ref.items for ref in store.resolve(RECIPE).artifacts) == [2, FANOUT]


@pytest.mark.parametrize("limit", ["budget", "disk"])
def test_nothing_is_evicted_for_a_merge_under_way(open_store, monkeypatch, limit):
    store = open_store(Limits(max_bytes=(2 * FANOUT + 1) * BLOCK, min_free_bytes=0))
    for name in range(FANOUT):
        put(store, name)
    join, evicted = writer.merge, []

    def commit_meanwhile(*given: Any, **kinds: Any) -> Any:
        if limit == "disk":  # all that was free is written
            store.set_limits(Limits(max_bytes=1 << 40, min_free_bytes=0))
            monkeypatch.setattr(store.disk, "free_bytes", lambda: 0)
        put(store, "beside")
        store.maintain()
        evicted.append(store.stats().evictions)
        return join(*given, **kinds)

    monkeypatch.setattr(writer, "merge", commit_meanwhile)
    assert store.merge_some() and evicted == [0]
    assert sorted(ref.items for ref in store.resolve(RECIPE).artifacts) == [1, FANOUT]


DAMAGE = {"cut": lambda raw: raw[:-8], "one bit": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "lost": None}
"""One wrong bit too: the merged file would have a digest of its own, by which all is right."""


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_is_removed_and_the_others_merge(store, damage):
    refs = [put(store, name).artifact for name in range(FANOUT + 1)]
    path = Path(store.objects) / refs[3].digest[:2] / refs[3].digest
    spoilt = DAMAGE[damage]
    if spoilt is None:
        path.unlink()
    else:
        path.chmod(0o640)
        path.write_bytes(spoilt(path.read_bytes()))
    merge_all(store)
    assert store.stats().damaged == (spoilt is not None)
    assert [ref.items for ref in store.resolve(RECIPE).artifacts] == [FANOUT]
    assert stores.items_of(store) == sorted(item(name) for name in range(FANOUT + 1) if name != 3)


def test_an_unreadable_part_stops_no_other_merge(store, monkeypatch):
    refs = [put(store, name).artifact for name in range(FANOUT + 1)]
    path = str(Path(store.objects) / refs[3].digest[:2] / refs[3].digest)
    with monkeypatch.context() as patch:
        stores.failing(patch, os, "open", OSError(errno.EIO, "Input/output error", path), path.__eq__)
        merge_all(store)
    assert sorted(ref.items for ref in store.resolve(RECIPE).artifacts) == [1, FANOUT]
    assert store.stats().damaged == 0


def test_a_merge_that_cannot_be_written_stops_no_other(store, clock, monkeypatch):
    for name in range(FANOUT):
        put(store, name)
        put(store, name, recipe=OTHER_RECIPE)
    with monkeypatch.context() as patch, pytest.raises(errors.StoreError, match="No space"):
        patch.setattr(writer, "merge", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        store.merge_some()
    assert store.merge_some()
    assert not store.merge_some(), "the disk is not written full each second"
    assert [ref.items for ref in store.resolve(OTHER_RECIPE).artifacts] == [FANOUT]
    clock.now += compaction.PUT_OFF_S
    assert store.merge_some()
    assert [ref.items for ref in store.resolve(RECIPE).artifacts] == [FANOUT]


@pytest.mark.parametrize("change", ["hold", "pin", "purge"])
def test_a_merge_whose_parts_change_meanwhile_is_dropped(store, monkeypatch, change):
    refs = [put(store, name).artifact for name in range(FANOUT)]
    join = writer.merge

    def change_meanwhile(*given: Any, **kinds: Any) -> Any:
        if change == "hold":
            stores.hold(store, "job", refs[0].digest)
        elif change == "pin":
            store.set_pin(refs[0].key, True)
        else:
            store.purge(Filter(keys=(refs[0].key,)))
        return join(*given, **kinds)

    monkeypatch.setattr(writer, "merge", change_meanwhile)
    store.merge_some()
    left = refs[1:] if change == "purge" else refs
    assert {ref.digest for ref in store.resolve(RECIPE).artifacts} == {ref.digest for ref in left}
    assert stores.digests_on_disk(store) == {ref.digest for ref in left}


def test_a_merged_file_that_lacks_its_row_is_no_commit(open_store, monkeypatch):
    store = open_store()
    for name in range(FANOUT):
        put(store, name)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(queries, "add_artifacts", crash)
        patch.setattr(eviction, "unlink_if_absent", lambda *_: None)
        store.merge_some()
    assert len(stores.digests_on_disk(store)) == FANOUT + 1
    store.close()
    again = open_store()
    assert again.stats().recovered == {"doomed": 1}
    assert stores.items_of(again) == sorted(item(name) for name in range(FANOUT))
