"""The store's promises to the daemon: commit, resolve, generations, holds, pins, purges, listings."""

import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from prepcache import errors
from prepcache.digests import entry_key
from prepcache.protocol import wire
from prepcached.auth import TOKEN_UID
from prepcached.store.records import Filter
from prepcached.store.store import Store, rebuild
from support import stores
from support.stores import OTHER_RECIPE, RECIPE, item, put, stage


def test_an_opening_asks_the_index_few_things(open_store, root):
    """There are 256 folders to be compared with it."""
    engine, asked = (sa.Engine, "before_cursor_execute"), list[str]()

    def note(*given: Any) -> None:
        asked.append(given[2])

    sa.event.listen(*engine, note)
    open_store()
    sa.event.remove(*engine, note)
    assert len(asked) < 60, asked


def test_committing_the_same_bytes_again_changes_nothing(store):
    first = put(store, 1, 2, cost_s=2.0)
    ref, freed = first.artifact, []
    assert ref.key == entry_key(RECIPE, item(1) + item(2))
    assert (ref.items, ref.rows, ref.cost_s) == (2, 2, 4.0)
    put(store, 3)
    again = put(store, 1, 2, cost_s=2.0, in_transaction=freed.append)
    assert again == first, "its generation, too: who has it has not seen the other"
    assert len(freed) == 1
    assert not os.listdir(store.staging)
    assert store.stats().entries == 2


def test_committing_a_lost_artifact_brings_it_back(store):
    first = put(store, 1)
    put(store, 2)
    digest = first.artifact.digest
    (Path(store.objects) / digest[:2] / digest).unlink()
    assert put(store, 1) == first
    assert stores.items_of(store) == sorted([item(1), item(2)])
    assert not os.listdir(store.staging)


def test_a_file_of_another_recipe_is_refused(store):
    store.register(RECIPE, "r", {})
    staged = stage(store, [2], recipe=OTHER_RECIPE)
    with pytest.raises(errors.StagedFileRefused, match="recipe"):
        store.commit(RECIPE, staged, owner_uid=os.getuid())
    assert store.resolve(RECIPE).artifacts == ()
    assert stores.digests_on_disk(store) == set()
    store.sweep_staging("s".__ne__)


@pytest.mark.parametrize("recipe", ["", "..", RECIPE.upper(), "/etc/passwd"])
def test_a_recipe_that_is_no_digest_is_refused(store, recipe):
    for call in (store.resolve, store.generation, store.recipe, lambda r: store.register(r, "x", {})):
        with pytest.raises(errors.BadRequest):
            call(recipe)


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_declines_and_other_faults_are_errors(store, monkeypatch, full):
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    for code, kind in ((full, errors.Declined), (errno.EIO, errors.StoreError)):
        with monkeypatch.context() as patch, pytest.raises(errors.PrepcacheError) as caught:
            patch.setattr(os, "rename", mock.Mock(side_effect=OSError(code, "the disk says so")))
            store.commit(RECIPE, staged, owner_uid=os.getuid())
        assert type(caught.value) is kind
    assert store.stats().declined == 1
    assert store.commit(RECIPE, staged, owner_uid=os.getuid()).generation == 1


def test_many_threads_commit_resolve_and_purge_at_once(store):
    def work(n: int) -> None:
        for k in range(6):
            ref = put(store, (n, k), holder=f"job{n}", session=f"s{n}").artifact
            answer = store.resolve(RECIPE, holder=f"job{n}")
            with contextlib.suppress(FileNotFoundError):  # a purge overrides holds
                for held in answer.artifacts:
                    stores.content(store, held.digest)
            if k % 3 == 2:
                store.release(f"job{n}")
                store.purge(Filter(keys=(ref.key,)))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len(store.resolve(RECIPE).artifacts) == len(stores.digests_on_disk(store))


@pytest.mark.parametrize(("uid", "owner"), [(12345, 12345), (TOKEN_UID, None)])
def test_a_rebuild_keeps_whose_an_upload_is(store, uid, owner):
    """Its file is the daemon's own; what came with the TCP token is nobody's."""
    store.register(RECIPE, "r", {})
    with store.upload("session.name", 1000) as fd:
        stores.write_artifact(fd, [1])
        size_bytes = os.fstat(fd).st_size
        os.close(fd)
    store.commit(RECIPE, wire.StagedFile("session.name", size_bytes), owner_uid=uid)
    store.close()
    rebuild(store.root)
    again = Store(store.root, limits=stores.ROOMY)
    assert [entry.owner for entry in again.entries().entries] == [owner]
    again.close()
