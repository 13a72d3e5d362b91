"""Large indexes: what start and answers cost beside a small one, and memory. Seconds are for benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prepcached.store.store import Store
from support import stores
from support.stores import OTHER_RECIPE, RECIPE

ROWS = (
    "INSERT INTO artifacts (key, digest, recipe_id, generation, size_bytes, disk_bytes, items, rows,"
    " cost_s, owner, producer_id, created_at, used_at, is_pinned, edition)"
    " VALUES (?, ?, ?, 1, 4096, 0, 1, 1, 0.5, 0, 1, ?, ?, 0, 0)"
)
MEASURE = """
import json, sys
import sqlalchemy as sa
from prepcached.store.store import Store
from prepcached.store.records import Limits

steps = 0

def count():
    global steps
    steps += 1

@sa.event.listens_for(sa.Engine, "connect")
def counted(connection, record):
    connection.set_progress_handler(count, 10)

def steps_of(work):
    global steps
    steps = 0
    made = work()
    return made, steps

def resident_mb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))

store, opened = steps_of(lambda: Store(sys.argv[1], limits=Limits(max_bytes=1 << 50, min_free_bytes=0)))
answer, resolved = steps_of(lambda: store.resolve(sys.argv[2], holder="job"))
page, paged = steps_of(lambda: store.entries(limit=100))
assert len(answer.artifacts) == 1000 and len(page.entries) == 100
print(json.dumps([opened, resolved, paged, resident_mb(), store.stats().recovered]))
store.close()
"""


def fill(root: Path, count: int) -> None:
    """A store with so many entries (empty files), 1,000 of them of RECIPE."""
    store = Store(root, limits=stores.ROOMY)
    store.register(RECIPE, "r", {})
    store.register(OTHER_RECIPE, "s", {})
    with store.index.write() as conn:
        conn.exec_driver_sql("INSERT INTO producers (id, json) VALUES (1, '{}')")
        conn.exec_driver_sql("UPDATE recipes SET generation = 1")
        for start in range(0, count, 10_000):
            rows = []
            for n in range(start, min(start + 10_000, count)):
                digest = os.urandom(32)
                os.mknod(Path(store.objects) / digest.hex()[:2] / digest.hex())
                rows.append((os.urandom(32), digest, 1 if n < 1000 else 2, float(n), float(n)))
            conn.exec_driver_sql(ROWS, rows)
    store.close()


def measured(root: Path, count: int) -> tuple[int, int, int, float]:
    """Tens of SQLite's steps to open it, to resolve RECIPE and to list a page; then its memory in MB."""
    fill(root, count)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", MEASURE, str(root), RECIPE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    opened, resolved, paged, resident_mb, recovered = json.loads(done.stdout)
    assert recovered == {}
    return opened, resolved, paged, resident_mb


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_large_index_costs_no_more_to_ask_than_a_small_one(tmp_path: Path, count: int) -> None:
    opened, resolved, paged, resident_mb = measured(tmp_path / "large", count)
    opened_small, resolved_small, paged_small, _ = measured(tmp_path / "small", 2000)
    assert resolved < 1.1 * resolved_small + 10
    assert paged < 1.1 * paged_small + 10
    assert opened < 1.2 * opened_small * count / 2000, "each row is looked at once"
    assert resident_mb < (100 if count < 100_000 else 250)
