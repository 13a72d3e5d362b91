"""A staged file is taken only if it is what was announced; the table of attacks in staging.py."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from prepcache import errors
from prepcache.artifact import header as artifact_format
from prepcache.protocol.wire import StagedFile
from prepcached.store import staging
from prepcached.store.store import Store
from support import stores
from support.stores import RECIPE, failing, item, stage

ME = os.getuid()


@pytest.fixture
def ready(store: Store) -> Iterator[Store]:
    """A store with the recipe registered; nothing may have been taken into it at the end."""
    store.register(RECIPE, "r", {})
    yield store
    assert stores.digests_on_disk(store) == set()
    assert store.generation(RECIPE) == 0
    assert not os.listdir(Path(store.root) / "v1" / "tmp")


def refused(store: Store, staged: StagedFile, why: str, owner_uid: int = ME) -> None:
    with pytest.raises(errors.StagedFileRefused, match=why):
        store.commit(RECIPE, staged, owner_uid=owner_uid)


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (lambda path: path.symlink_to(path.rename(path.parent.parent / "aside")), "cannot be opened"),
    "a hard link": (lambda path: os.link(path, path.parent.parent / "other"), "hard links"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
    "a socket": (lambda path: (path.unlink(), os.mknod(path, stat.S_IFSOCK | 0o600)), "cannot be opened"),
    "longer": (lambda path: os.truncate(path, path.stat().st_size + 1), "bytes instead of"),
    "shorter": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes instead of"),
    "gone": (Path.unlink, "already committed, or swept"),
    "zeros": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "not a whole artifact"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_not_as_it_was_announced_is_refused(ready, attack):
    act, why = ATTACKS[attack]
    staged = stage(ready, [1])
    act(Path(ready.staging) / staged.name)
    refused(ready, staged, why)


@pytest.mark.skipif(ME != 0, reason="needs root to make a file of another user")
def test_another_users_file_is_refused(ready):
    staged = stage(ready, [1])
    os.chown(Path(ready.staging) / staged.name, 1001, -1)
    refused(ready, staged, "belongs to uid 1001", owner_uid=1002)


@pytest.mark.parametrize(
    "name", ["../objects/x.y", "/etc/passwd", "s.\0", "s", "", ".b", "a.b\n", "a..b", "é.b", "a." + "b" * 101]
)
def test_a_name_that_is_no_name_is_refused(ready, name):
    refused(ready, StagedFile(name, 1), "cannot name a staged file")


@pytest.mark.parametrize("how", ["append", "rewrite", "swap", "unlink"])
def test_a_change_while_it_is_hashed_is_refused(ready, how, monkeypatch):
    staged = stage(ready, [1])
    path = Path(ready.staging) / staged.name
    other = stage(ready, [2])
    hash_file = staging.hash_file

    def meddle(fd: int) -> str:
        digest = hash_file(fd)
        if how == "append":
            with open(path, "ab") as file:
                file.write(b"more")
        elif how == "rewrite":
            with open(path, "r+b") as file:
                file.seek(staged.size_bytes - 1)
                file.write(b"\xff")
        elif how == "swap":
            os.rename(Path(ready.staging) / other.name, path)
        else:
            path.unlink()
        return digest

    monkeypatch.setattr(staging, "hash_file", meddle)
    refused(ready, staged, "changed during the commit|not a whole artifact")


@pytest.mark.parametrize("how", ["swap", "grow"])
def test_a_staged_name_replaced_after_hashing_is_refused(ready, how):
    staged, other = stage(ready, [1]), stage(ready, [2])
    path, times = Path(ready.staging) / staged.name, []

    def meddle(items: np.ndarray) -> np.ndarray:
        times.append(1)
        if how == "swap" and len(times) == 2:  # it is asked before the file is hashed, and after
            os.rename(Path(ready.staging) / other.name, path)
        elif how == "grow" and len(times) == 1:
            os.truncate(path, staged.size_bytes + 1)
        return np.ones(len(items), bool)

    with pytest.raises(errors.StagedFileRefused, match="changed during the commit"):
        ready.commit(RECIPE, staged, owner_uid=ME, allowed_items=meddle)


def test_a_commit_needs_no_second_room_on_a_full_disk(store, monkeypatch):
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    monkeypatch.setattr(store.disk, "free_bytes", lambda: 0)
    with pytest.raises(errors.Declined, match="the disk has 0 B free"), store.upload("s.new", 1):
        pass
    assert store.commit(RECIPE, staged, owner_uid=ME).artifact


@pytest.mark.root
@pytest.mark.skipif(ME != 0, reason="needs root to make a file of another user")
def test_another_users_file_is_copied_and_the_copy_counts(store):
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    path = Path(store.staging) / staged.name
    os.chown(path, 1001, 1002)
    with open(path, "r+b") as still_open:
        done = store.commit(RECIPE, staged, owner_uid=1001)
        still_open.seek(0)
        still_open.write(b"overwritten afterwards")
    assert stores.items_of(store) == [item(1)]
    digest = done.artifact.digest
    status = os.stat(Path(store.objects) / digest[:2] / digest)
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, 1002, 0o440)
    assert os.getxattr(Path(store.objects) / digest[:2] / digest, staging.OWNER_XATTR) == b"1001"
    assert store.entries().entries[0].owner == 1001
    assert not os.listdir(store.staging)


def test_an_item_table_over_its_bound_is_not_read(ready, monkeypatch):
    staged = stage(ready, ["a", "b", "c"])
    monkeypatch.setattr(staging, "MAX_ITEMS", 2)
    monkeypatch.setattr(artifact_format, "read_array", None)
    refused(ready, staged, "3 items: the limit is 2")


def test_a_file_of_the_daemons_own_user_is_taken_by_rename(store):
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    inode = os.stat(Path(store.staging) / staged.name).st_ino
    digest = store.commit(RECIPE, staged, owner_uid=ME).artifact.digest
    status = os.stat(Path(store.objects) / digest[:2] / digest)
    assert (status.st_ino, status.st_mode & 0o7777, status.st_nlink) == (inode, 0o440, 1)


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_a_disk_that_cannot_tell_does_not_blame_the_file(ready, fault, monkeypatch):
    staged = stage(ready, [1])
    failing(monkeypatch, os, "open", OSError(fault, os.strerror(fault)), staged.name.__eq__)
    with pytest.raises(errors.StoreError, match=os.strerror(fault)):
        ready.commit(RECIPE, staged, owner_uid=ME)
