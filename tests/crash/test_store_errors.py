"""A disk that fails or is full at any step: an error is told, nothing is lost, the daemon lives on."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcache import errors
from prepcache.digests import RecipeDigest
from prepcached.store.records import Filter, Limits
from prepcached.store.store import Store
from support import stores
from support.crashing import AFTER, BEFORE, needs, whole
from support.stores import RECIPE, item

pytestmark = [pytest.mark.root, needs("strace", "mount")]

FAULTS = [
    ("rename", "EIO"),
    ("rename", "ENOSPC"),
    ("fsync", "EIO"),
    ("fdatasync", "EIO"),
    ("unlink", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("pwrite64", "EIO"),
    ("fchmod", "EPERM"),
]
DAILY = [
    "commit-rename-ENOSPC", "commit-fsync-EIO", "commit-fdatasync-EIO",
    "delete-unlink-EIO", "merge-rename-EIO",
]  # fmt: skip


@pytest.mark.nightly(daily=DAILY)
@pytest.mark.parametrize(("call", "fault"), FAULTS)
@pytest.mark.parametrize("act", ["commit", "delete", "merge"])
def test_a_fault_at_any_step_is_told_and_undone(store_process, copy_of, memory, act, call, fault):
    told = False
    for n in itertools.count(1):
        root = copy_of(memory / f"{act}-{call}-{fault}-{n}")
        is_killed, said = store_process.run(root, act, f"{call}:error={fault}:when={n}")
        assert not is_killed
        items = whole(root)
        if "failed" in said:
            told = True
            assert said["failed"] in ("declined" if fault == "ENOSPC" else "store-error", "store-error")
            assert items in (BEFORE, AFTER[act])
        else:
            assert items == AFTER[act]
        if n > 1 and not told:
            return  # this call is not one of the act's steps
        if "failed" not in said and said["findings"] == []:
            return


def test_a_read_error_of_the_index_is_not_an_empty_answer(store_process, copy_of, memory):
    answers = set()
    for n in range(1, 6):
        root = copy_of(memory / f"unreadable-{n}")
        _, said = store_process.run(root, "resolve", f"pread64:error=EIO:when={n}")
        answers.add(said.get("failed", said.get("done")))
    # SQLite calls a page that gives EIO a corrupt one; what counts is that it is never an absence.
    assert answers <= {"store-error", "index-corrupt", 8}
    assert len(answers) > 1


@pytest.fixture
def small_disk(memory: Path) -> Iterator[Path]:
    path = memory / "small"
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill_up(disk: Path, spare: int = 0) -> Path:
    """A file of somebody else's that leaves no more than this free."""
    path = disk / "others"
    with open(path, "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    os.truncate(path, path.stat().st_size - spare)
    return path


def test_a_full_disk_declines_and_keeps_what_is_there(small_disk):
    store = Store(small_disk / "root", limits=stores.ROOMY)
    stores.put(store, "first", holder="job")
    staged = stores.stage(store, ["second"])
    store.register(RECIPE, "tests.recipe", {})
    others = fill_up(small_disk)
    with pytest.raises(errors.Declined), store.upload("s.more", 1 << 16):
        pass
    assert store.stats().declined == 1
    assert stores.items_of(store) == [item("first")]
    others.unlink()
    assert store.commit(RECIPE, staged, owner_uid=0).generation == 2
    assert store.check() == []
    store.close()


def test_a_purge_on_a_full_disk_says_what_to_do(small_disk):
    """The DELETE has to be written before the unlink."""
    store = Store(small_disk / "root", limits=stores.ROOMY)
    for name in range(8):
        stores.put(store, name, size_bytes=60_000)
    others = fill_up(small_disk)
    with pytest.raises(errors.StoreError, match="the disk is full, free some space on it"):
        store.purge(Filter())
    assert store.check() == []
    others.unlink()
    store.purge(Filter())
    assert stores.digests_on_disk(store) == set() and store.check() == []
    store.close()


@pytest.mark.parametrize("by", ["housekeeping", "another recipe"])
def test_a_disk_filled_by_others_evicts_idle_artifacts(small_disk, by):
    """In a store that was opened just now, and of which everything was used."""
    size = os.statvfs(small_disk).f_frsize * os.statvfs(small_disk).f_blocks
    store = Store(small_disk / "root", limits=Limits(1 << 30, size // 4))
    for name in range(8):
        stores.put(store, name, size_bytes=size // 32)
    fill_up(small_disk, spare=size // 8)
    if by == "housekeeping":
        store.maintain()
    else:
        store.register(RecipeDigest("5" * 64), "tests.another", {"format": 1})
    assert len(stores.items_of(store)) < 8
    fs = os.statvfs(small_disk)
    assert fs.f_bavail * fs.f_frsize >= size // 5, "the index's log takes some of it"
    assert store.check() == []
    store.close()


def test_a_full_disk_without_a_store_yet_is_told_with_the_mend(small_disk):
    Store(small_disk / "root", limits=stores.ROOMY).close()
    fill_up(small_disk)
    with pytest.raises(errors.StoreError, match="the disk is full, free some space on it"):
        Store(small_disk / "root", limits=stores.ROOMY)


def test_a_start_on_a_full_disk_says_what_to_do(small_disk):
    fill_up(small_disk)
    with pytest.raises(errors.RootUnusable, match="free some space on its disk"):
        Store(small_disk / "root", limits=stores.ROOMY)
