"""Removing beside everything else: holds taken meanwhile, files that will not go, bytes that come again."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from prepcached.store import eviction, queries
from prepcached.store.records import Filter, Limits
from support import stores
from support.stores import RECIPE, evict_to_fit, item, put


def test_replaced_bytes_come_back_when_they_are_committed_again(store):
    old = put(store, 1, seed=0, holder="job").artifact
    put(store, 1, seed=1)
    assert store.to_let_go("job") == [old.digest]
    assert put(store, 1, seed=0).artifact.digest == old.digest
    assert [ref.digest for ref in store.resolve(RECIPE).artifacts] == [old.digest]
    assert stores.digests_on_disk(store) == {old.digest}
    assert store.stats().entries == 1
    assert store.stats().unlinked_bytes > 0
    store.resolve(RECIPE, holder="job")
    assert store.stats().unlinked_bytes == 0 and store.check() == []
    store.release("job", [old.digest])
    store.maintain()
    assert stores.digests_on_disk(store) == {old.digest}


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Artifacts cannot be unlinked until this is undone."""
    with monkeypatch.context() as patch:
        error = PermissionError(1, "Operation not permitted")
        stores.failing(patch, os, "unlink", error, lambda path: "/objects/" in path)
        yield patch


@pytest.mark.parametrize("by", ["housekeeping", "a start"])
def test_a_file_that_would_not_go_is_tried_again(open_store, stuck, by):
    store = open_store()
    ref = put(store, 1).artifact
    store.purge(Filter())
    store.maintain()
    assert stores.digests_on_disk(store) == {ref.digest}
    stuck.undo()
    if by == "a start":
        store = open_store()
        assert store.stats().recovered == {"doomed": 1}
    store.maintain()
    assert stores.items_of(store) == [] and stores.digests_on_disk(store) == set()


def test_a_file_with_a_row_is_never_unlinked(store):
    ref = put(store, 1).artifact
    with store.index.write() as conn:
        queries.doom(conn, [bytes.fromhex(ref.digest)])
    store.maintain()
    assert stores.items_of(store) == [item(1)]


@pytest.mark.parametrize("act", ["evict", "purge", "housekeeping"])
@pytest.mark.parametrize("how", ["held", "pinned", "used"])
def test_what_is_wanted_since_it_was_chosen_stays(store, clock, monkeypatch, how, act):
    refs = []
    for name in range(2):
        clock.now += 1
        refs.append(put(store, name).artifact)
    choose = eviction.idle_of

    def want_meanwhile(*given: Any) -> list[queries.Doomable]:
        chosen = choose(*given)
        monkeypatch.undo()
        if how == "pinned":
            store.set_pin(refs[0].key, True)
        else:
            clock.now += 1
            stores.hold(store, "job", refs[0].digest)
            store.release("job", [] if how == "held" else None)
        return chosen

    monkeypatch.setattr(eviction, "idle_of", want_meanwhile)
    if act == "evict":
        assert evict_to_fit(store, (stores.ROOMY.max_bytes or 0) - 2 * stores.BLOCK + 1)
    elif act == "purge":
        assert store.purge(Filter(), free_bytes=2 * stores.BLOCK).keys == (refs[1].key,)
    else:
        store.set_limits(Limits(max_bytes=stores.BLOCK // 2, min_free_bytes=0))
        store.maintain()
    assert stores.items_of(store) == [item(0)]


def test_a_purge_that_frees_bytes_goes_in_batches(store, clock, monkeypatch):
    monkeypatch.setattr(eviction, "BATCH", 2)
    refs = []
    for name in range(7):
        clock.now += 1
        refs.append(put(store, name).artifact)
    store.holds.take("job", [(bytes.fromhex(refs[1].digest), stores.BLOCK, False)], clock())
    for is_dry in (True, False):
        found = store.purge(Filter(), free_bytes=4 * stores.BLOCK, dry_run=is_dry)
        assert found.keys == tuple(refs[n].key for n in (0, 2, 3, 4))
    assert stores.items_of(store) == sorted(map(item, (1, 5, 6)))


@pytest.mark.parametrize("how", ["evict", "purge"])
def test_a_hold_on_what_is_being_removed_is_called_back(store, how, monkeypatch):
    ref = put(store, 0).artifact
    delete = queries.delete

    def hold_meanwhile(conn: sa.Connection, rows: list[queries.Doomable]) -> None:
        store.resolve(RECIPE, holder="job")
        delete(conn, rows)

    monkeypatch.setattr(queries, "delete", hold_meanwhile)
    if how == "evict":
        assert eviction.evict(store, 1)
    else:
        store.purge(Filter())
    assert store.resolve(RECIPE, holder="job").artifacts == ()
    assert store.to_let_go("job") == [ref.digest]
    assert store.stats().unlinked_bytes == stores.BLOCK
    store.release("job")
    assert store.stats().unlinked_bytes == 0


def test_an_artifact_removed_before_its_hold_is_not_answered(store, monkeypatch):
    refs = [put(store, name).artifact for name in range(2)]
    look = queries.of_recipe

    def purge_meanwhile(*given: Any) -> Any:
        found = look(*given)
        monkeypatch.undo()
        store.purge(Filter(keys=(refs[0].key,)))
        return found

    monkeypatch.setattr(queries, "of_recipe", purge_meanwhile)
    assert store.resolve(RECIPE, holder="job").artifacts == (refs[1],)
    store.purge(Filter())
    assert store.to_let_go("job") == [refs[1].digest]
