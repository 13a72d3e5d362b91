"""Draws that were frozen into samples are said by every job that is given these, and by show."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.jobs import Jobs

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


@pytest.mark.parametrize("how", ["fill", "lazy"])
def test_frozen_draws_are_said_on_every_hit(jobs: Jobs, how: str) -> None:
    script = jobs.write(FROZEN)
    jobs.run(script, how)
    for _ in range(2):
        running = jobs.start(script, how)
        told, said = running.process.communicate(timeout=240)
        assert '"hit": 6' in told, said
        assert said.count(f"job.augment: {SAID}") == 1, said
        assert SAID in told, "the report says it, too"
    entry = json.loads(prepcache(jobs, "ls", "--json"))[0]
    for key in (entry["key"], entry["key"][:12]):
        shown = prepcache(jobs, "show", key)
        assert SAID in " ".join(shown.split()), shown


def prepcache(jobs: Jobs, *arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "prepcache", *arguments]
    return subprocess.run(command, env=jobs.box.environ, capture_output=True, text=True, check=True).stdout


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


def test_items_that_differ_from_run_to_run_are_said_to(jobs: Jobs) -> None:
    script = jobs.write(UNSTEADY)
    for _ in range(2):
        report = jobs.run(script, "random")
        assert [line for line in report["why"] if "its items are random" in line]
        assert not [line for line in report["why"] if "tensor(" in line]
    jobs.run(script, "steady")
    assert jobs.run(script, "steady")["hit"] == 4
