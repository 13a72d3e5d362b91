"""SIGKILL before every system call of a commit, delete, merge, eviction...: a restart serves whole artifacts.

No fail points in shipped code: strace kills the process at the Nth call of a kind, for N = 1, 2, ...
until the work gets through. `whole` in support/crashing.py says what must hold after each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from prepcached.store.records import Limits
from support.crashing import AFTER, BEFORE, StoreProcess, needs, whole
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
def test_a_kill_at_any_step_leaves_all_or_nothing(
    store_process: StoreProcess, copy_of: Callable[[Path], Path], memory: Path, act: str, call: str
) -> None:
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
def test_a_kill_in_an_eviction_loses_only_what_was_chosen(
    store_process: StoreProcess, copy_of: Callable[[Path], Path], memory: Path, call: str
) -> None:
    for n in itertools.count(1):
        root = copy_of(memory / f"evict-{call}-{n}")
        is_killed, _ = store_process.run(root, "evict", f"{call}:signal=SIGKILL:when={n}", limits=TIGHT)
        items = whole(root)
        assert items <= BEFORE
        assert item(7) in items, "the pinned entry was evicted"
        if not is_killed:
            assert items < BEFORE
            return
