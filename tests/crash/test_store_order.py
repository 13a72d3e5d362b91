"""NOTE [ Commit order ], read off the system calls: a power cut cannot be had at every instant, an order can.

Some filesystems forgive a missing fsync (on xfs one fsync writes the log for all), so a test that
pulls the plug cannot see every one of them. This one can.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from support.crashing import StoreProcess, needs

pytestmark = [pytest.mark.root, needs("strace")]

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
def test_each_step_is_durable_before_the_next(
    store_process: StoreProcess, copy_of: Callable[[Path], Path], memory: Path, act: str
) -> None:
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
