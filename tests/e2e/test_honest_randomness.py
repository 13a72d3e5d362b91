"""Randomness in preprocessing: told once, by name, with where to split; a repeat that differs is put away."""

import json
from typing import Any

import pytest

from support.jobs import Jobs
from support.programs import python

JOB = """
import random
import torch
torch.manual_seed(0); np.random.seed(0); random.seed(0)

def by_random(item):
    return random.random()

HELD = random.Random(3)

class Augment:
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def __call__(self, item):
        return item + self.rng.random()

by_object = Augment()

def by_held(item):
    return item + HELD.random()

def by_file(item):
    return os.stat("outside").st_size + item

before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
options = json.loads(sys.argv[2])
if options.get("executor"):
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    options["executor"] = ProcessPoolExecutor(2, get_context("fork"))
ds = prepcache.CachedDataset(range(10), globals()[sys.argv[1]], **options)
first = [ds[i] for i in range(10)]
after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
tell(ds, same=before == after)
"""
BESIDE = """
import random
import torch

begun, drawn = threading.Semaphore(0), threading.Semaphore(0)

def quiet(item):
    begun.release()
    drawn.acquire()
    return np.full(4, item)

def work():
    ds = prepcache.CachedDataset(range(8), quiet, untracked=("begun", "drawn"), **json.loads(sys.argv[2]))
    list(prepcache.Loader(ds, 4, shuffle=False))

def draw():
    return random.random(), np.random.rand(), float(torch.rand(1))

worker = threading.Thread(target=work)
worker.start()
seen = []
for _ in range(8):
    begun.acquire()
    seen.append(draw())
    drawn.release()
worker.join()
seen += [draw() for _ in range(8)]
tell(distinct=[len(set(of_one)) for of_one in zip(*seen)])
"""
SAYING = "draws random numbers"


@pytest.fixture
def jobs(jobs: Jobs) -> Jobs:
    jobs.write(JOB)
    return jobs


def run(jobs: Jobs, function: str, **options: Any) -> tuple[list[str], Any]:
    """What the job said of draws, and what it told."""
    told, err = jobs.said(jobs.box.folder / "job.py", function, json.dumps(options))
    return [line for line in err.splitlines() if SAYING in line], told


@pytest.mark.nightly(daily=["global-options1", "global-options3", "held-options0", "object-options2"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"executor": True}, {"lazy": True}])
@pytest.mark.parametrize(
    ("function", "drawn"),
    [
        ("by_random", "by_random draws random numbers (random)"),
        ("by_held", "by_held draws random numbers (job.HELD)"),
        ("by_object", "Augment draws random numbers (preprocess.rng)"),
    ],
    ids=["global", "held", "object"],
)
def test_a_draw_is_reported_once(jobs, function, drawn, options):
    said, told = run(jobs, function, **options)
    assert len(said) == 1
    assert drawn in said[0]
    assert "transform=" in said[0]
    assert told["same"], "cold and warm runs train alike"
    assert run(jobs, function, **options)[0] == [], "a hit draws nothing"


@pytest.mark.parametrize("options", [{}, {"lazy": True}])
def test_draws_of_another_thread_are_not_repeated(jobs, options):
    jobs.write(BESIDE)
    said, told = run(jobs, "beside", **options)
    assert told["distinct"] == [16, 16, 16]
    assert said == [], "nor is it the function's"


def test_a_repeat_that_differs_names_the_item_and_is_removed(jobs):
    outside = jobs.box.folder / "outside"
    outside.write_bytes(b"1")
    run(jobs, "by_file")
    outside.write_bytes(b"22")
    assert run(jobs, "by_file")[1]["hit"] == 10, "a stat is not seen; the README says so"
    err = jobs.run(jobs.box.folder / "job.py", "by_file", '{"verify_fraction": 1.0}', exit_code=1)
    assert "VerifyError: item 0 (0), preprocessed again, differs from the cached sample" in err
    assert "was removed" in err
    told = run(jobs, "by_file")[1]  # the ten may lie in several artifacts, of which one was removed
    assert told["computed"] >= 1 and told["hit"] + told["computed"] == 10, "and is preprocessed again"


def test_a_job_that_may_not_write_removes_nothing(jobs):
    outside = jobs.box.folder / "outside"
    outside.write_bytes(b"1")
    run(jobs, "by_file")
    outside.write_bytes(b"22")
    options = '{"verify_fraction": 1.0}'
    running = jobs.start(jobs.box.folder / "job.py", "by_file", options, PREPCACHE="readonly")
    assert "VerifyError" in running.facts(1)
    assert run(jobs, "by_file")[1]["hit"] == 10


FROZEN = """
import random

def augment(item):
    return item + random.random()

def main():
    options = {"lazy": {"lazy": True}, "workers": {"num_workers": 1}}.get(sys.argv[1], {})
    ds = prepcache.CachedDataset(range(6), augment, **options)
    list(ds)
    tell(ds, recipe=ds.recipe.digest)

if __name__ == "__main__":
    main()
"""
SAID = "preprocessed with random draws (random), the same in every epoch; move them to transform="


@pytest.mark.nightly(daily=["fill"])
@pytest.mark.parametrize("how", ["fill", "lazy"])
def test_frozen_draws_are_said_on_every_hit(jobs, how):
    script = jobs.write(FROZEN)
    jobs.run(script, how)
    for _ in range(2):
        told, said = jobs.said(script, how)
        assert told["hit"] == 6, said
        assert said.count(f"job.augment: {SAID}") == 1, said
        assert SAID in " ".join(told["why"]), "the report says it, too"
    entry = json.loads(prepcache(jobs, "ls", "--json"))[0]
    for key in (entry["key"], entry["key"][:12]):
        shown = prepcache(jobs, "show", key)
        assert SAID in " ".join(shown.split()), shown


def prepcache(jobs: Jobs, *arguments: str) -> str:
    """What a command prints."""
    return python("-m", "prepcache", *arguments, env=jobs.box.environ).stdout


UNSTEADY = """
import torch

class Random(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if not 0 <= index < 4:
            raise IndexError(index)
        return torch.full((3,), float(index)) + torch.rand(3) * (sys.argv[1] == "random")

ds = prepcache.CachedDataset(Random(), lambda item: item)
tell(ds)
"""


def test_items_that_differ_from_run_to_run_are_said_to(jobs):
    script = jobs.write(UNSTEADY)
    for _ in range(2):
        report = jobs.run(script, "random")
        assert [line for line in report["why"] if "its items are random" in line]
        assert not [line for line in report["why"] if "tensor(" in line]
    jobs.run(script, "steady")
    assert jobs.run(script, "steady")["hit"] == 4
