"""Editions in the store: what a refresh made replaces what it overlaps."""

import builtins
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from prepcache import errors
from prepcache.protocol.wire import ArtifactRef
from prepcached.store import commit as committing
from prepcached.store.db import discard
from prepcached.store.store import Store, rebuild
from support.stores import OTHER_RECIPE, RECIPE, digests_on_disk, failing, put, stage


def answered(store: Store) -> list[tuple[int, int]]:
    """(edition, items) of every artifact that a resolve answers."""
    return sorted((ref.edition, ref.items) for ref in store.resolve(RECIPE).artifacts)


def only(store: Store, *names: object, edition: int = 0, holder: str | None = None) -> ArtifactRef:
    return put(store, *names, edition=edition, holder=holder).artifact


def test_a_merge_stays_within_an_edition(store):
    for number in range(8):
        put(store, ("old", number))
        put(store, ("new", number), ("newer", number), edition=1)
    while store.merge_some():
        pass
    assert answered(store) == [(0, 8), (1, 16)]


def test_a_refresh_replaces_what_it_overlaps(store):
    old, beside = only(store, "a", "b", holder="s"), only(store, "c")
    put(store, "a", recipe=OTHER_RECIPE)
    new = only(store, "a", edition=3)
    assert new.edition == 3
    assert answered(store) == [(0, 1), (3, 1)]
    assert store.to_let_go("s") == [old.digest]
    assert {beside.digest, new.digest} < digests_on_disk(store)
    assert old.digest not in digests_on_disk(store)
    assert len(store.resolve(OTHER_RECIPE).artifacts) == 1


def test_what_replaces_a_pinned_entry_is_pinned(store):
    store.set_pin(only(store, "a", "b").key, True)
    new = only(store, "a", edition=1)
    unpinned = only(store, "d", edition=1)
    assert [store.entry(ref.key).is_pinned for ref in (new, unpinned)] == [True, False]


def test_a_refresh_that_cannot_read_what_is_there_is_refused(store, monkeypatch):
    old = only(store, "a", "b")
    staged = stage(store, "a", edition=1)
    with monkeypatch.context() as patch:
        error = OSError(errno.EMFILE, "Too many open files")
        failing(patch, builtins, "open", error, lambda path: path.endswith(old.digest))
        with pytest.raises(errors.StoreError):
            store.commit(RECIPE, staged, owner_uid=os.getuid())
    assert store.resolve(RECIPE).artifacts == (old,)
    store.sweep_staging("s".__ne__)


def test_a_refresh_reads_headers_while_others_may_write(store, monkeypatch):
    only(store, "a", "b")
    read, others = committing.items_of, ThreadPoolExecutor(1)

    def noted(*given: Any) -> Any:
        assert others.submit(store.writer.acquire, blocking=False).result(), "the lock is held"
        others.submit(store.writer.release).result()
        return read(*given)

    monkeypatch.setattr(committing, "items_of", noted)
    assert only(store, "a", edition=1).edition == 1
    others.shutdown()


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_commit_begun_before_a_refresh_does_not_take_its_place(store, names):
    new = only(store, "a", edition=1)
    with pytest.raises(errors.Declined, match="refresh"):
        put(store, *names)
    assert store.resolve(RECIPE).artifacts == (new,)
    store.sweep_staging("s".__ne__)


@pytest.mark.parametrize("names", ["a", "ab"])
@pytest.mark.parametrize("is_met_first", [True, False])
def test_a_rebuild_keeps_the_highest_edition_alone(open_store, tmp_path, is_met_first, names):
    store = open_store()
    only(store, "beside")
    old = only(store, *names)
    path = Path(store.objects) / old.digest[:2] / old.digest
    kept = path.read_bytes()
    editions = (only(store, "a", edition=edition) for edition in range(1, 100))
    new = next(ref for ref in editions if (ref.digest < old.digest) == is_met_first)
    store.close()
    path.write_bytes(kept)
    os.chmod(path, 0o440)
    rebuild(tmp_path / "root")
    assert open_store().resolve(RECIPE).artifacts == (new,)


def test_a_rebuild_that_fails_half_way_leaves_no_lower_edition(open_store, monkeypatch):
    store = open_store()
    old = only(store, "a", "b")
    path = Path(store.objects) / old.digest[:2] / old.digest
    kept = path.read_bytes()
    new = only(store, "a", edition=1)
    store.close()
    path.write_bytes(kept)  # a daemon that is killed in mid-commit has not unlinked it
    discard(store.layout.index)
    assert "ff" not in (old.digest[:2], new.digest[:2])
    with monkeypatch.context() as patch:
        last = os.path.join(store.objects, "ff")
        failing(patch, os, "listdir", OSError(errno.EIO, os.strerror(errno.EIO), last), last.__eq__)
        with pytest.raises(errors.StoreError, match="scanned"):
            open_store()
    assert open_store().resolve(RECIPE).artifacts == (new,)
