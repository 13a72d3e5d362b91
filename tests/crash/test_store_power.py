"""Power loss: what was not synced is gone, and still only whole artifacts are served.

The store lies on an xfs on a loop device. At the Nth sync or rename of an act the process is killed,
and the filesystem shut down without flushing its log; then it is mounted again.
"""

import contextlib
import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcache import errors
from prepcached.store.records import Filter
from prepcached.store.store import Store
from support import stores
from support.crashing import AFTER, BEFORE, Disk, needs, whole
from support.store_actor import key_of
from support.stores import RECIPE

pytestmark = [pytest.mark.root, needs("strace", "xfs_io", "mkfs.xfs", "mount")]

CALLS = ["rename", "fdatasync", "unlink"]
MORE_CALLS = ["fsync", "openat", "pwrite64", "fchmod"]
DAILY = ["commit-rename", "commit-fdatasync", "delete-unlink"]


@pytest.fixture(scope="module")
def disk(memory: Path) -> Iterator[Disk]:
    disk = Disk(memory)
    yield disk
    disk.unmount()


@pytest.mark.nightly(daily=DAILY)
@pytest.mark.parametrize("call", CALLS + MORE_CALLS)
@pytest.mark.parametrize("act", AFTER)
def test_power_loss_at_any_step_leaves_all_or_nothing(store_process, copy_of, disk, act, call):
    for n in itertools.count(1):
        root = copy_of(disk.path / "root")
        stores.sync(disk.path)
        is_killed, said = store_process.run(root, act, f"{call}:signal=SIGKILL:when={n}")
        disk.pull_the_plug()
        items = whole(root)
        shutil.rmtree(root)
        assert items in (BEFORE, AFTER[act]), f"{act} without power at {call} {n} left something else"
        if not is_killed:
            assert "done" in said
            assert items == AFTER[act], "what was acknowledged did not survive"
            return


@pytest.mark.parametrize("act", ["purge", "differs"])
def test_removed_files_do_not_come_back_after_power_loss(copy_of, disk, act):
    """Where the index's log is overwritten in place, its sync does not write the filesystem's log."""
    root = copy_of(disk.path / "forgotten")
    store = Store(root, limits=stores.ROOMY)
    for name in range(30):
        stores.put(store, ("grows the log", name))
    index = sqlite3.connect(root / "v1" / "index.sqlite")
    index.execute("PRAGMA wal_checkpoint(RESTART)")
    index.close()
    stores.sync(disk.path)
    gone = key_of(0)
    if act == "purge":
        store.purge(Filter(keys=(gone,)))
    else:
        store.remove_differing([gone], "the test says so")
    store.maintain()
    disk.shut_down()
    store.close()
    disk.plug_in_again()
    store = Store(root, limits=stores.ROOMY)
    with pytest.raises(errors.NotFound):
        store.entry(gone)
    store.close()
    shutil.rmtree(root)


def test_a_dead_disk_is_an_error_and_never_an_absence(copy_of, disk):
    root = copy_of(disk.path / "root")
    stores.sync(disk.path)
    store = Store(root, limits=stores.ROOMY)
    staged = stores.stage(store, ["new"])
    known = {ref.digest for ref in store.resolve(RECIPE).artifacts}
    disk.shut_down()
    with pytest.raises(errors.StoreError):
        store.commit(RECIPE, staged, owner_uid=0)
    with pytest.raises(errors.StoreError):
        store.maintain()
    with pytest.raises(errors.StoreError):
        store.open_entry(store.resolve(RECIPE).artifacts[0].key)
    with contextlib.suppress(errors.StoreError):  # where pages of the index are not in memory any more
        assert {ref.digest for ref in store.resolve(RECIPE).artifacts} == known
    with pytest.raises(errors.StoreError):
        store.check()
    store.close()
    disk.plug_in_again()
    assert whole(root) == BEFORE
    shutil.rmtree(root)


def test_a_root_that_became_read_only_is_refused(copy_of, disk):
    root = copy_of(disk.path / "read-only")
    disk.unmount()
    disk.mount("loop,ro")
    try:
        with pytest.raises(errors.RootUnusable, match="Read-only"):
            Store(root)
    finally:
        disk.unmount()
        disk.mount()
    assert whole(root) == BEFORE
