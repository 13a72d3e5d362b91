"""A staged file is taken only if it is what was announced; the table of attacks in staging.py."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from prepcache import errors
from prepcache.artifact import header as artifact_format
from prepcache.protocol.wire import StagedFile
from prepcached.leases import MAX_LEASED_ITEMS
from prepcached.store import staging
from prepcached.store.layout import Layout
from prepcached.store.store import Store
from support import stores
from support.stores import RECIPE, item, stage

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
        store.commit(RECIPE, [staged], owner_uid=owner_uid)


def test_a_symlink_is_refused(ready: Store, tmp_path: Path) -> None:
    target = stage(str(tmp_path), [1])
    (Path(ready.staging) / "s.link").symlink_to(tmp_path / target.name)
    refused(ready, StagedFile("s.link", target.size_bytes), "cannot be opened")


def test_a_hard_link_is_refused(ready: Store, tmp_path: Path) -> None:
    staged = stage(ready, [1])
    os.link(Path(ready.staging) / staged.name, tmp_path / "other")
    refused(ready, staged, "hard links")


def test_what_is_no_regular_file_is_refused(ready: Store) -> None:
    os.mkfifo(Path(ready.staging) / "s.pipe")
    (Path(ready.staging) / "s.folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(Path(ready.staging) / "s.sock"))
    refused(ready, StagedFile("s.pipe", 0), "not a regular file")
    refused(ready, StagedFile("s.folder", 4096), "not a regular file")
    refused(ready, StagedFile("s.sock", 0), "cannot be opened")
    (Path(ready.staging) / "s.folder").rmdir()


def test_another_users_file_is_refused(ready: Store) -> None:
    staged = stage(ready, [1])
    if ME == 0:
        os.chown(Path(ready.staging) / staged.name, 1001, -1)
        refused(ready, staged, "belongs to uid 1001", owner_uid=1002)
    else:
        refused(ready, StagedFile("s.absent", 1), "no staged file")


@pytest.mark.parametrize("change", [-1, 1])
def test_another_length_than_announced_is_refused(ready: Store, change: int) -> None:
    staged = stage(ready, [1])
    refused(ready, structs.replace(staged, size_bytes=staged.size_bytes + change), "bytes instead of")


@pytest.mark.parametrize(
    "name", ["../objects/x.y", "/etc/passwd", "s.\0", "s", "", ".b", "a.b\n", "a..b", "é.b", "a." + "b" * 101]
)
def test_a_name_that_is_no_name_is_refused(ready: Store, name: str) -> None:
    refused(ready, StagedFile(name, 1), "cannot name a staged file")


def test_what_is_no_artifact_is_refused(ready: Store) -> None:
    staged = stage(ready, [1])
    path = Path(ready.staging) / staged.name
    whole = path.read_bytes()
    for bad in (whole[:-1], whole[: len(whole) // 2], b"\0" * len(whole), b"", whole + b"x"):
        path.write_bytes(bad)
        refused(ready, StagedFile(staged.name, len(bad)), "not a whole artifact")


def test_an_artifact_of_another_size_than_announced_is_refused(ready: Store) -> None:
    staged, larger = stage(ready, [1]), stage(ready, range(99))
    path, layout = Path(ready.staging) / staged.name, Layout(ready.root)
    with staging.opened(layout, staged, ME) as (fd, _):
        path.write_bytes((Path(ready.staging) / larger.name).read_bytes())
        with (
            pytest.raises(errors.StagedFileRefused, match="changed"),
            staging.taken(layout, staged, fd, ME, ""),
        ):
            raise AssertionError("it was taken")


@pytest.mark.parametrize("how", ["append", "rewrite", "swap", "unlink"])
def test_a_change_while_it_is_hashed_is_refused(
    ready: Store, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_staged_name_replaced_after_hashing_is_refused(ready: Store) -> None:
    staged, other = stage(ready, [1]), stage(ready, [2])

    def swap(items: np.ndarray) -> np.ndarray:
        with contextlib.suppress(FileNotFoundError):  # it is asked twice
            os.rename(Path(ready.staging) / other.name, Path(ready.staging) / staged.name)
        return np.ones(len(items), bool)

    with pytest.raises(errors.StagedFileRefused, match="changed during the commit"):
        ready.commit(RECIPE, [staged], owner_uid=ME, allowed_items=swap)


def test_a_commit_needs_no_second_room_on_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    monkeypatch.setattr(store.disk, "free_bytes", lambda: 0)
    with pytest.raises(errors.Declined, match="the disk has 0 B free"), store.upload("s.new", 1):
        pass
    assert store.commit(RECIPE, [staged], owner_uid=ME).artifacts


@pytest.mark.root
@pytest.mark.skipif(ME != 0, reason="needs root to make a file of another user")
def test_another_users_file_is_copied_and_the_copy_counts(store: Store) -> None:
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    path = Path(store.staging) / staged.name
    os.chown(path, 1001, 1002)
    with open(path, "r+b") as still_open:
        done = store.commit(RECIPE, [staged], owner_uid=1001)
        still_open.seek(0)
        still_open.write(b"overwritten afterwards")
    assert stores.items_of(store) == [item(1)]
    digest = done.artifacts[0].digest
    status = os.stat(Path(store.objects) / digest[:2] / digest)
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, 1002, 0o440)
    assert os.getxattr(Path(store.objects) / digest[:2] / digest, staging.OWNER_XATTR) == b"1001"
    assert store.entries().entries[0].owner == 1001
    assert not os.listdir(store.staging)


def test_an_item_table_over_its_bound_is_not_read(ready: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = stage(ready, ["a", "b", "c"])
    monkeypatch.setattr(staging, "MAX_ITEMS", 2)
    monkeypatch.setattr(artifact_format, "read_array", None)
    refused(ready, staged, "3 items: the limit is 2")


def test_as_many_items_are_taken_as_may_be_leased() -> None:
    assert MAX_LEASED_ITEMS == staging.MAX_ITEMS


def test_a_file_of_the_daemons_own_user_is_taken_by_rename(store: Store) -> None:
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    inode = os.stat(Path(store.staging) / staged.name).st_ino
    digest = store.commit(RECIPE, [staged], owner_uid=ME).artifacts[0].digest
    status = os.stat(Path(store.objects) / digest[:2] / digest)
    assert (status.st_ino, status.st_mode & 0o7777, status.st_nlink) == (inode, 0o440, 1)


def test_a_second_commit_of_a_taken_file_is_refused_by_name(store: Store) -> None:
    store.register(RECIPE, "r", {})
    staged = stage(store, [1])
    store.commit(RECIPE, [staged], owner_uid=ME)
    refused(store, staged, "already committed")


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_a_disk_that_cannot_tell_does_not_blame_the_file(
    ready: Store, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, os_open = stage(ready, [1]), os.open

    def failing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == staged.name:
            raise OSError(fault, os.strerror(fault), path)
        return os_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(errors.StoreError, match=os.strerror(fault)):
        ready.commit(RECIPE, [staged], owner_uid=ME)
