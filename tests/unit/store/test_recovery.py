"""What lies in a root after a crash, made by hand: swept, indexed or put away at the next start."""

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from blake3 import blake3

from prepcache import errors
from prepcache.artifact.writer import Writer
from prepcache.digests import RecipeDigest
from prepcache.protocol import wire
from prepcached.store import staging
from prepcached.store.db import Index, discard
from prepcached.store.store import check_root, rebuild
from support import stores
from support.stores import RECIPE, failing, item, put


def objects(root: Path) -> list[Path]:
    return sorted((root / "v1" / "objects").glob("*/*"))


def sql(root: Path, statement: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(root / "v1" / "index.sqlite") as conn:
        rows = conn.execute(statement).fetchall()
    conn.close()
    return rows


def test_what_is_no_artifact_is_removed(root, open_store):
    misplaced = objects(root)[0]
    whole = misplaced.read_bytes()
    folder = root / "v1" / "objects" / "00"
    (folder / misplaced.name).write_bytes(whole)
    (folder / ("0033" * 16) / "folder").mkdir(parents=True)
    (folder / ("00" * 32)).write_bytes(whole)  # whole, but of another digest
    (folder / ("0011" * 16)).write_bytes(whole[:100])
    (folder / "foreign").write_bytes(b"x")
    (folder / ("0022" * 16)).symlink_to("/etc/passwd")
    store = open_store()
    assert store.stats().recovered == {"damaged": 6}
    assert store.stats().damaged == 6
    assert store.stats().entries == len(objects(root)) == 3


def test_a_file_larger_than_any_commit_is_removed_unread(root, open_store, monkeypatch):
    """A sparse file costs nobody its bytes, but would cost each start the time to read them."""
    discard(str(root / "v1" / "index.sqlite"))
    monkeypatch.setattr(wire, "MAX_STAGED_BYTES", 1)
    monkeypatch.setattr(staging, "hash_file", lambda fd: pytest.fail("it was read"))
    assert open_store().stats().recovered == {"new index": 1, "damaged": 3}


@pytest.mark.parametrize("digest", ["00", "ff"])
def test_a_file_of_another_digest_is_not_taken_for_its_row(root, open_store, digest):
    """A flipped byte: the twin has no file, and this one was removed for it."""
    sql(root, f"UPDATE artifacts SET digest = x'{digest * 32}' WHERE id = 1")
    assert stores.items_of(open_store()) == sorted([item(1), item(2)])


def test_of_two_files_of_one_key_one_is_indexed(root, open_store):
    store = open_store()
    older = put(store, 1, seed=7).artifact
    kept = stores.content(store, older.digest)
    put(store, 1, seed=8)
    store.close()
    (root / "v1" / "objects" / older.digest[:2] / older.digest).write_bytes(kept)  # as a crash may leave it
    discard(f"{root}/v1/index.sqlite")
    again = open_store()
    assert again.stats().recovered == {"new index": 1, "indexed": 3, "doubled": 1}
    assert stores.items_of(again) == sorted([item(1), item(2)])
    assert len(objects(root)) == 3


def test_marks_and_names_that_nobody_wrote_end_no_start(root, open_store):
    for mark in (b"9" * 30, b"-7", b"x"):
        os.setxattr(objects(root)[0], staging.OWNER_XATTR, mark)
        discard(str(root / "v1" / "index.sqlite"))
        assert {entry.owner for entry in open_store().entries().entries} == {os.getuid()}
    with open(root / "made", "wb") as file:
        writer = Writer(RecipeDigest("5" * 64))
        writer.add(item(1), [0], 1.0)
        writer.write(file.fileno(), producer={"recipe": "a\udcffb"})
    name = blake3((root / "made").read_bytes()).hexdigest()
    (root / "made").rename(root / "v1" / "objects" / name[:2] / name)
    assert open_store().recipe("5" * 64).name == "a?b"


@pytest.mark.parametrize("is_begun", [False, True], ids=["lost", "lost and its rebuild killed"])
def test_a_lost_index_is_made_again_with_everything(root, open_store, is_begun):
    discard(str(root / "v1" / "index.sqlite"))
    if is_begun:
        Index(str(root / "v1" / "index.sqlite")).close()
    store = open_store()
    assert stores.items_of(store) == sorted([item(1), item(2)])
    assert store.stats().entries == 3
    record = store.recipe(RECIPE)
    assert (record.name, record.parts) == ("tests.recipe", None)
    assert not store.is_registered(RECIPE), "its parts are asked for again"
    store.register(RECIPE, "tests.recipe", {"format": 1})
    assert store.recipe(RECIPE).parts == {"format": 1}
    assert store.resolve(RECIPE, 2).is_complete, "a client of the old index must take the whole list"
    assert store.resolve(RECIPE, 2).generation > 2


@pytest.mark.parametrize("work", [check_root, rebuild])
def test_a_folder_without_a_store_is_refused_and_stays_as_it_is(tmp_path, work):
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        with pytest.raises(errors.RootUnusable, match="is not a store: give --root"):
            work(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_an_unreadable_root_is_not_called_empty(root, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", mock.Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(errors.RootUnusable, match=r"cannot be read \(Permission denied\).*sudo -u"):
            check_root(root)


def test_root_is_told_whose_store_it_is(root, monkeypatch):
    if os.geteuid() == 0:
        os.chown(root / "v1", 54321, 54321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(errors.RootUnusable, match=r"belongs to uid \d+: run this as the user of"):
        check_root(root)


def test_a_folder_that_cannot_be_listed_is_an_error(root, open_store, monkeypatch):
    failing(monkeypatch, os, "listdir", OSError(5, "Input/output error"), lambda path: path.endswith("/ab"))
    with pytest.raises(errors.StoreError, match="Input/output error"):
        open_store()
    monkeypatch.undo()
    assert open_store().stats().entries == 3


def unmarked(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Files have no extended attributes: lost (ENODATA), or the filesystem has none (ENOTSUP)."""
    for name in ("getxattr", "setxattr"):
        monkeypatch.setattr(os, name, mock.Mock(side_effect=OSError(number, os.strerror(number))))


def test_a_file_whose_mark_cannot_be_read_is_left_alone(root, open_store, monkeypatch):
    discard(str(root / "v1" / "index.sqlite"))
    with monkeypatch.context() as patch:
        unmarked(patch, errno.EIO)
        store = open_store()
        assert (store.stats().entries, store.stats().recovered) == (0, {"new index": 1, "unreadable": 3})
        store.close()
    assert open_store().stats().entries == 3


def test_a_file_that_cannot_be_marked_is_not_shared(store, monkeypatch):
    unmarked(monkeypatch, errno.ENOSPC)
    with pytest.raises(errors.Declined):
        put(store, "a", scope=".1001")
    unmarked(monkeypatch, errno.ENOTSUP)
    with pytest.raises(errors.StoreError):
        put(store, "a", scope=".1001")
    assert put(store, "a").artifact


def test_a_file_whose_mark_is_damaged_is_not_shared(root, open_store):
    marked = objects(root)[0]
    os.setxattr(marked, staging.SCOPE_XATTR, b".10x1")
    discard(str(root / "v1" / "index.sqlite"))
    store = open_store()
    assert store.stats().recovered == {"new index": 1, "indexed": 2, "unreadable": 1}
    store.close()
    os.removexattr(marked, staging.SCOPE_XATTR)
    assert open_store().stats().entries == 3


def test_times_of_a_clock_that_was_ahead_do_not_last(open_store, clock):
    store = open_store()
    clock.now += 86_400
    put(store, "ahead")
    store.keep_sample((clock.now, 1.0, 0.0, 0.0, 0.0), 0.0)
    clock.now -= 86_400
    assert store.history() == [], "a chart ends now"
    again = open_store()
    clock.now += 1
    put(again, "later")
    [newest, oldest] = again.entries(sort="-used_at").entries
    assert oldest.used_at == clock.now - 1 and newest.used_at == clock.now


def test_a_staged_folder_that_cannot_be_removed_ends_nothing(root, open_store):
    """Folders in folders, deeper than Python descends."""
    deep = root / "v1" / "staging" / "deep"
    deep.mkdir()
    fd = os.open(deep, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=fd)
        within = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = within
    os.close(fd)
    assert open_store().sweep_staging(lambda _: False).failed
    subprocess.run(["rm", "-r", str(deep)], check=True)
