"""SIGKILL before every system call of a commit, delete, merge, eviction...: a restart serves whole artifacts.

No fail points in shipped code: strace kills the process at the Nth call of a kind, for N = 1, 2, ...
until the work gets through. `whole` in support/crashing.py says what must hold after each.
"""

import itertools
import re

import pytest

from prepcached.store.records import Limits
from support.crashing import AFTER, BEFORE, needs, whole
from support.stores import BLOCK, item

pytestmark = [pytest.mark.root, needs("strace")]

CALLS = ["rename", "fsync", "fdatasync", "unlink"]
"""The steps of NOTE [ Commit order ]; fdatasync is SQLite's."""
MORE_CALLS = ["openat", "pwrite64", "fchmod", "ftruncate", "chmod", "setxattr", "close"]
"""Every other call that changes a file, and every one that begins and ends with one."""
DAILY = [
    *(f"commit-{call}" for call in CALLS),
    "register-fdatasync", "replace-rename", "delete-unlink", "merge-fdatasync",
]  # fmt: skip

TIGHT = Limits(max_bytes=17 * BLOCK, min_free_bytes=0)
"""Eight artifacts and room for nine more: an act that wants fourteen has to evict."""


@pytest.mark.nightly(daily=DAILY)
@pytest.mark.parametrize("call", CALLS + MORE_CALLS)
@pytest.mark.parametrize("act", ["register", *AFTER])
def test_a_kill_at_any_step_leaves_all_or_nothing(store_process, copy_of, memory, act, call):
    for n in itertools.count(1):
        root = copy_of(memory / f"{act}-{call}-{n}")
        is_killed, said = store_process.run(root, act, f"{call}:signal=SIGKILL:when={n}")
        items = whole(root)
        assert items in (BEFORE, AFTER.get(act, BEFORE)), f"{act} killed at {call} {n} left something else"
        if act == "delete" and call == "unlink":
            assert items == AFTER.get(act, BEFORE), "what was deleted came back"
        if not is_killed:
            assert items == AFTER.get(act, BEFORE)
            assert said["findings"] == []
            return


@pytest.mark.nightly(daily=["fdatasync", "unlink"])
@pytest.mark.parametrize("call", CALLS + MORE_CALLS)
def test_a_kill_in_an_eviction_loses_only_what_was_chosen(store_process, copy_of, memory, call):
    for n in itertools.count(1):
        root = copy_of(memory / f"evict-{call}-{n}")
        is_killed, _ = store_process.run(root, "evict", f"{call}:signal=SIGKILL:when={n}", limits=TIGHT)
        items = whole(root)
        assert items <= BEFORE
        assert item(7) in items, "the pinned entry was evicted"
        if not is_killed:
            assert items < BEFORE
            return


STAGED = r"fsync\(.*/staging/s\.\w+>"
HALF = r"fsync\(.*/tmp/\w+>"
TAKE = r'rename\(".*/staging/s\.\w+", ".*/objects/../\w+"\)'
PLACE = r'rename\(".*/tmp/\w+", ".*/objects/../\w+"\)'
FOLDER = r"fsync\(.*/objects/..>"
ROW = r"fdatasync\(.*/index\.sqlite-wal>"
UNLINK = r'unlink\(".*/objects/../\w+"\)'

ORDERS = {
    "commit": [STAGED, TAKE, FOLDER, ROW],
    "replace": [STAGED, TAKE, FOLDER, ROW, UNLINK, FOLDER, ROW],
    "delete": [ROW, UNLINK, FOLDER, ROW],
    "merge": [HALF, ROW, PLACE, FOLDER, ROW, UNLINK, FOLDER, ROW],
    "put-away": [ROW, UNLINK, FOLDER, ROW],
}


@pytest.mark.parametrize("act", ORDERS)
def test_each_step_is_durable_before_the_next(store_process, copy_of, memory, act):
    calls = store_process.calls(copy_of(memory / f"order-{act}"), act, memory / f"order-{act}.log")
    calls = [call for call in calls if "= 0" in call]
    steps = iter(ORDERS[act])
    step = next(steps)
    for call in calls:
        if re.search(step, call):
            found = next(steps, None)
            if found is None:
                break
            step = found
    else:
        raise AssertionError(f"{act} lacks the step {step} in its place among:\n" + "\n".join(calls))
    unlinks = [n for n, call in enumerate(calls) if re.search(UNLINK, call)]
    rows = [n for n, call in enumerate(calls) if re.search(ROW, call)]
    takes = [n for n, call in enumerate(calls) if re.search(f"{TAKE}|{PLACE}", call)]
    assert all(any(row < unlink for row in rows) for unlink in unlinks), "unlinked before its row was gone"
    assert all(any(row > take for row in rows) for take in takes), "its row came before the file"
