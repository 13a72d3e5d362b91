"""Editions in the store: what a refresh replaced never comes back (NOTE [ Editions ] in catalogue.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prepcache import errors
from prepcached.store import purge as purging
from prepcached.store import queries, room
from prepcached.store.models import artifacts
from prepcached.store.offline import rebuild
from prepcached.store.records import ArtifactRef, Filter, Limits
from prepcached.store.store import Store
from support.stores import BLOCK, RECIPE, digests_on_disk, evict_to_fit, item, items_of, put


def answered(store: Store) -> list[tuple[int, int]]:
    """(edition, items) of every artifact that a resolve answers."""
    return sorted((ref.edition, ref.items) for ref in store.resolve(RECIPE).artifacts)


def only(store: Store, *names: object, edition: int = 0, holder: str | None = None) -> ArtifactRef:
    return put(store, *names, edition=edition, holder=holder).artifacts[0]


def test_a_commit_and_a_resolve_say_the_edition(store: Store) -> None:
    assert only(store, "a", edition=3).edition == 3
    assert answered(store) == [(3, 1)]


def test_a_merge_stays_within_an_edition(store: Store) -> None:
    for number in range(8):
        put(store, ("old", number))
        put(store, ("new", number), ("newer", number), edition=1)
    while store.merge_some():
        pass
    assert answered(store) == [(0, 8), (1, 16)]


def purge(store: Store, key: str) -> None:
    store.purge(Filter(keys=(key,)))


def put_away(store: Store, key: str) -> None:
    store.remove_differing([key], "a test says so")


@pytest.mark.parametrize("remove", [purge, put_away])
def test_an_artifact_takes_its_lower_editions_along(
    store: Store, remove: Callable[[Store, str], None]
) -> None:
    _, pinned, held = only(store, "a", "b"), only(store, "c"), only(store, "d", holder="s")
    store.pin(pinned.key)
    new, beside, above = only(store, "a", edition=1), only(store, "e", edition=1), only(store, "f", edition=2)
    remove(store, new.key)
    assert answered(store) == [(1, 1), (2, 1)]
    assert store.to_let_go("s") == [held.digest]
    assert digests_on_disk(store) == {beside.digest, above.digest}


def test_an_eviction_takes_the_lower_editions_along(open_store: Callable[..., Store]) -> None:
    store = open_store(Limits(max_bytes=4 * BLOCK, min_free_bytes=0))
    put(store, "a", "b", holder="reader")
    put(store, "a", edition=1)
    put(store, "z", edition=1, holder="reader")
    assert evict_to_fit(store, 2 * BLOCK)
    assert answered(store) == [(1, 1)]
    assert items_of(store) == [item("z")]


@pytest.mark.parametrize("is_held", [False, True])
def test_a_leaving_artifact_does_not_restore_what_it_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """A resolve that comes between the mark of the one and that of the others."""
    only(store, "a", "b", holder="reader" if is_held else None)
    new, above = only(store, "a", edition=1), only(store, "c", edition=2)
    answers = []

    def look_before(name: str) -> None:
        do = getattr(queries, name)

        def both(*given: object) -> object:
            answers.append(store.resolve(RECIPE, holder="late").artifacts)
            return do(*given)

        monkeypatch.setattr(queries, name, both)

    look_before("replaced_by")
    look_before("delete")
    purge(store, new.key)
    counting, *removing = answers
    assert len(counting) == 3
    assert removing[:2] == [(above,), (above,)]


@pytest.mark.parametrize("how", ["evict", "put_away"])
def test_lower_editions_are_counted_out_once(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(room, "EVICT_BATCH", 1)
    store = open_store(Limits(max_bytes=99 * BLOCK, min_free_bytes=0))
    refs = [only(store, name, edition=edition) for edition, name in ((1, "a"), (0, "b"), (1, "d"), (0, "c"))]
    if how == "evict":
        assert evict_to_fit(store, 99 * BLOCK)
    else:
        assert len(store.remove_differing([ref.key for ref in refs], "a test says so")) == 4
    stats = store.stats()
    assert (stats.entries, stats.size_bytes, stats.disk_bytes) == (0, 0, 0)


@pytest.mark.parametrize("batch", [1, 500])
@pytest.mark.parametrize("is_all", [False, True])
def test_a_dry_run_counts_as_the_purge_does(
    store: Store, monkeypatch: pytest.MonkeyPatch, batch: int, is_all: bool
) -> None:
    monkeypatch.setattr(purging, "BATCH", batch)
    old, pinned = only(store, "a", "b"), only(store, "c")
    new, newer = only(store, "a", edition=1), only(store, "e", edition=1)
    store.pin(pinned.key)
    filter = Filter() if is_all else Filter(keys=(new.key, newer.key))
    would = store.purge(filter, dry_run=True)
    assert store.stats().entries == 4
    gone = store.purge(filter)
    assert (gone.entries, gone.pinned, set(gone.keys)) == (4, 1, {old.key, pinned.key, new.key, newer.key})
    assert replace(would, keys=()) == replace(gone, keys=())
    assert set(would.keys) == set(gone.keys)
    assert store.stats().entries == 0


def test_what_was_replaced_is_unlinked_before_what_replaced_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild after a crash between the two, with the index lost as well, would bring it back."""
    old = only(store, "a", "b")
    new = only(store, "a", edition=1)
    unlinked, unlink = [], os.unlink

    def note(path: str) -> None:
        unlinked.append(os.path.basename(path))
        unlink(path)

    monkeypatch.setattr(os, "unlink", note)
    purge(store, new.key)
    assert [name for name in unlinked if name in (old.digest, new.digest)] == [old.digest, new.digest]


def test_what_no_refresh_made_takes_nothing_along(store: Store) -> None:
    put(store, "a")
    other = only(store, "b")
    put(store, "c", edition=1)
    purge(store, other.key)
    assert answered(store) == [(0, 1), (1, 1)]


def test_a_commit_begun_before_a_refresh_does_not_take_its_place(store: Store) -> None:
    new = only(store, "a", edition=1)
    with pytest.raises(errors.Declined, match="refresh"):
        put(store, "a")
    assert store.resolve(RECIPE).artifacts == (new,)
    store.discard_staged("s")


@pytest.mark.parametrize("is_met_first", [True, False])
def test_a_rebuild_keeps_the_higher_edition_of_a_key(
    open_store: Callable[..., Store], tmp_path: Path, is_met_first: bool
) -> None:
    store = open_store()
    old = only(store, "a")
    path = Path(store.objects) / old.digest[:2] / old.digest
    kept = path.read_bytes()
    editions = (only(store, "a", edition=edition) for edition in range(1, 100))
    new = next(ref for ref in editions if (ref.digest < old.digest) == is_met_first)
    store.close()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(kept)
    os.chmod(path, 0o440)
    rebuild(tmp_path / "root")
    assert open_store().resolve(RECIPE).artifacts == (new,)


def test_a_rebuild_with_a_bad_file_believes_no_lower_edition(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    store = open_store()
    put(store, "a", "b")
    bad = only(store, "a", edition=1)
    kept = only(store, "c", edition=1)
    path = Path(store.objects) / bad.digest[:2] / bad.digest
    store.close()
    os.chmod(path, 0o640)
    path.write_bytes(b"not an artifact")
    rebuild(tmp_path / "root")
    assert open_store().resolve(RECIPE).artifacts == (kept,)


def test_what_another_owner_pinned_stays(store: Store) -> None:
    theirs, mine = only(store, "a", "b"), only(store, "a", "c")
    store.pin(theirs.key)
    store.pin(mine.key)
    with store._core.index.write() as conn:
        change = artifacts.update().where(artifacts.c.key == bytes.fromhex(theirs.key))
        conn.execute(change.values(owner=os.getuid() + 1))
    new = only(store, "a", edition=1)
    purge(store, new.key)
    assert store.resolve(RECIPE).artifacts == (theirs,)


@pytest.mark.parametrize("edition", [0, 1])
def test_a_merge_does_not_replace_another_with_the_same_items(store: Store, edition: int) -> None:
    for number in range(8):
        put(store, number)
    new = put(store, *range(8), edition=edition, seed=1).artifacts[0]
    store.merge_some()
    assert answered(store) == sorted([(0, 1)] * 8 + [(edition, 8)])
    assert new in store.resolve(RECIPE).artifacts
    assert digests_on_disk(store) >= {new.digest}
    assert not store.merge_some()
