"""Large indexes: start, memory and answers, against a bare SELECT in the same run."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prepcached.store.store import Store
from support import storing
from support.storing import OTHER_RECIPE, RECIPE

ROWS = (
    "INSERT INTO artifacts (key, digest, recipe_id, generation, state, size_bytes, disk_bytes, items, rows,"
    " cost_s, owner, producer_id, created_at, used_at, is_pinned, edition)"
    " VALUES (?, ?, ?, 1, 0, 4096, 0, 1, 1, 0.5, 0, 1, ?, ?, 0, 0)"
)
MEASURE = """
import json, sys, time
from prepcached.store.store import Store
from prepcached.store.records import Limits

def resident_mb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))

began = time.perf_counter()
store = Store(sys.argv[1], limits=Limits(max_bytes=1 << 50, min_free_bytes=0))
opened = time.perf_counter()
answers = []
for _ in range(5):
    start = time.perf_counter()
    store.resolve(sys.argv[2], holder="job")
    answers.append(time.perf_counter() - start)
start = time.perf_counter()
store.entries(limit=100)
paged = time.perf_counter() - start
print(json.dumps([opened - began, min(answers), paged, resident_mb(), store.stats().recovered]))
store.close()
"""


def fill(root: Path, count: int) -> None:
    """A store with so many entries (empty files), 1,000 of them of RECIPE."""
    store = Store(root, limits=storing.ROOMY)
    store.register(RECIPE, "r", {})
    store.register(OTHER_RECIPE, "s", {})
    with store.transaction() as conn:
        conn.exec_driver_sql("INSERT INTO producers (id, json) VALUES (1, '{}')")
        conn.exec_driver_sql("UPDATE recipes SET generation = 1")
        for start in range(0, count, 10_000):
            rows = []
            for n in range(start, start + 10_000):
                digest = os.urandom(32)
                os.mknod(Path(store.objects) / digest.hex()[:2] / digest.hex())
                rows.append((os.urandom(32), digest, 1 if n < 1000 else 2, float(n), float(n)))
            conn.exec_driver_sql(ROWS, rows)
    store.close()


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_large_index_opens_fast_stays_small_and_answers_at_once(tmp_path: Path, count: int) -> None:
    fill(tmp_path / "root", count)
    start = time.perf_counter()
    with sqlite3.connect(tmp_path / "root" / "v1" / "index.sqlite") as conn:
        assert sum(1 for _ in conn.execute("SELECT * FROM artifacts")) == count
    conn.close()
    select_s = time.perf_counter() - start
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "root"), RECIPE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    open_s, resolve_s, page_s, resident_mb, recovered = json.loads(done.stdout)
    assert recovered == {}
    assert open_s < 3 * select_s + 0.5
    assert resolve_s < 0.030, "a resolve that answers 1,000 artifacts"
    assert page_s < 0.5
    assert resident_mb < (100 if count < 100_000 else 250)
