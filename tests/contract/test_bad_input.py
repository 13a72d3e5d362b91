"""What a confused client may send while others work: refused or borne, with a message that helps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.jobs import Jobs
from support.sandbox import sandbox
from support.serving import Serving, serving
from support.stores import OTHER_RECIPE, items_of


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as found:
        yield found


def refused(served: Serving, answer: Any, name: str) -> str:
    """Checks that a commit was refused and stored nothing; what was said."""
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "staged-file-refused"
    assert items_of(served.store) == [] and served.store.check() == []
    detail: str = answer.json()["detail"]
    assert name in detail and "(pid " in detail and "write the files again" in detail, detail
    return detail


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00" * path.stat().st_size)


def _cut_header(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[:8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [_garbage, _cut_header])
def test_a_staged_file_with_a_bad_header_leaves_the_lease(served: Serving, damage: Any) -> None:
    job = served.job("confused")
    job.resolve()
    lease = job.lease("ab").json()["lease"]
    staged = job.stage(served.store.staging, "ab")
    damage(Path(served.store.staging) / staged["name"])
    refused(served, job.commit([lease], [staged]), staged["name"])
    assert job.commit([lease], [job.stage(served.store.staging, "ab")]).status_code == 200


def test_a_staged_file_of_another_recipe_is_refused_by_name(served: Serving) -> None:
    job = served.job("confused")
    job.resolve()
    lease = job.lease("ab").json()["lease"]
    stranger = served.job("stranger")
    stranger.recipe = OTHER_RECIPE
    staged = stranger.stage(served.store.staging, "ab")
    name = staged["name"].replace(stranger.session, job.session)
    os.rename(f"{served.store.staging}/{staged['name']}", f"{served.store.staging}/{name}")
    assert OTHER_RECIPE in refused(served, job.commit([lease], [{**staged, "name": name}]), name)


def test_items_beyond_the_lease_are_named_in_the_refusal(served: Serving) -> None:
    job = served.job("greedy")
    job.resolve()
    lease = job.lease("ab").json()["lease"]
    staged = job.stage(served.store.staging, "abc")
    detail = refused(served, job.commit([lease], [staged]), "1 ")
    assert "lease" in detail


CLOCKS = """
shift_s = float(sys.argv[1])
real = time.time
time.time = lambda: real() + shift_s
wait = threading.Event()

def make(item):
    called(item)
    wait.wait(0.01)
    return np.full(8, item)

barrier()
ds = prepcache.CachedDataset(list(range(80)), make, untracked=("wait",), progress=False)
assert [int(sample[0]) for sample in ds] == list(range(80))
tell(ds)
"""


def test_jobs_with_clocks_years_apart_share_the_work() -> None:
    with sandbox() as box:
        jobs = Jobs(box)
        try:
            facts = jobs.together(jobs.write(CLOCKS), [(-1e8,), (0,), (1e8,)])
            assert jobs.calls() == Counter(dict.fromkeys(range(80), 1))
            assert sum(one["computed"] for one in facts) == 80
        finally:
            jobs.close()
