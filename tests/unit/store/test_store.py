"""The store's promises to the daemon: commit, resolve, generations, holds, pins, purges, listings."""

import contextlib
import errno
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from prepcache import errors
from prepcache.digests import entry_key
from prepcached.store import queries
from prepcached.store.db import Index
from prepcached.store.records import Filter
from prepcached.store.store import Store, rebuild
from support import stores
from support.stores import OTHER_RECIPE, RECIPE, item, put, stage


def test_what_is_committed_is_resolved_and_lies_where_it_should(store):
    done = put(store, 1, 2, cost_s=2.0)
    (ref,) = done.artifacts
    assert ref.key == entry_key(RECIPE, item(1) + item(2))
    assert (ref.items, ref.rows, ref.cost_s) == (2, 2, 4.0)
    assert store.resolve(RECIPE).artifacts == (ref,)
    assert stores.items_of(store) == sorted([item(1), item(2)])
    assert not os.listdir(store.staging)


def test_committing_the_same_bytes_again_changes_nothing(store):
    first = put(store, 1)
    put(store, 2)
    freed = []
    again = put(store, 1, in_transaction=freed.append)
    assert again == first, "its generation, too: who has it has not seen the other"
    assert len(freed) == 1
    assert not os.listdir(store.staging)
    assert store.stats().entries == 2


def test_committing_a_lost_artifact_brings_it_back(store):
    first = put(store, 1)
    put(store, 2)
    digest = first.artifacts[0].digest
    (Path(store.objects) / digest[:2] / digest).unlink()
    assert put(store, 1) == first
    assert stores.items_of(store) == sorted([item(1), item(2)])
    assert not os.listdir(store.staging)


def test_several_files_are_committed_together_or_not_at_all(store):
    store.register(RECIPE, "r", {})
    good, bad = stage(store, [1]), stage(store, [2], recipe=OTHER_RECIPE)
    with pytest.raises(errors.StagedFileRefused, match="recipe"):
        store.commit(RECIPE, [good, bad], owner_uid=os.getuid())
    assert store.resolve(RECIPE).artifacts == ()
    assert stores.digests_on_disk(store) == set()
    other = stage(store, [2])
    done = store.commit(RECIPE, [good, other], owner_uid=os.getuid())
    assert done.generation == 1
    assert stores.items_of(store) == sorted([item(1), item(2)])
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
            store.commit(RECIPE, [staged], owner_uid=os.getuid())
        assert type(caught.value) is kind
    assert store.stats().declined == 1
    assert store.commit(RECIPE, [staged], owner_uid=os.getuid()).generation == 1


def test_an_upload_has_a_staged_file_of_the_daemons_own(store):
    store.register(RECIPE, "r", {})
    name = "session.name"
    with store.upload(name, 1000) as fd:
        written = stores.write_artifact(fd, [1])
        os.close(fd)
    staged = structs.replace(stage(store, [2]), name=name, size_bytes=written.size_bytes)
    assert store.commit(RECIPE, [staged], owner_uid=12345).generation == 1
    assert store.entries().entries[0].owner == 12345
    store.sweep_staging("s".__ne__)
    store.close()
    rebuild(store.root)
    again = Store(store.root, limits=stores.ROOMY)
    assert again.entries().entries[0].owner == 12345
    again.close()


def test_an_undeletable_staged_file_leaves_the_commit_done(store, monkeypatch):
    put(store, 1)
    new, again = (stage(store, [2], seed=seed) for seed in (0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(store.staged_area, "unlink", mock.Mock(side_effect=OSError(errno.EIO, "no")))
        done = store.commit(RECIPE, [new, again], owner_uid=os.getuid())
    assert len(done.artifacts) == store.stats().entries == 2
    assert store.sweep_staging("s".__ne__).files == 1


def test_many_threads_commit_resolve_and_purge_at_once(store):
    def work(n: int) -> None:
        for k in range(6):
            ref = put(store, (n, k), holder=f"job{n}", session=f"s{n}").artifacts[0]
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


def test_readers_see_a_snapshot_and_a_writer_locks_at_once(tmp_path):
    index = Index(str(tmp_path / "index.sqlite"))
    with index.read() as reader:
        assert queries.note(reader, "x") == 0
        with index.write() as conn:
            other = sqlite3.connect(index.path, timeout=0, isolation_level=None)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.close()
            queries.set_note(conn, "x", 1)
        assert queries.note(reader, "x") == 0
    with pytest.raises(errors.StoreError, match="readonly"), index.read() as reader:
        assert queries.note(reader, "x") == 1
        queries.set_note(reader, "x", 2)
    index.close()
