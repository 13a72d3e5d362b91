"""The benchmark suite runs: own contestants, right bytes, ratios, a table and JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import python

REPO = Path(__file__).parents[2]
OWN = ["prepcache", "memory-mapped class"]

CHECKS = """
import json, sys
from benchmarks.job import Job

job = Job("in-memory tensors", "smoke", sys.argv[1])

def checked(numbers, other=0):
    job.epochs = lambda: [([job.workload.array(n + other) for n in [*part]], part) for part in numbers]
    try:
        return job.check()["checked"]
    except AssertionError as error:
        return str(error)

whole = [range(at, at + 8) for at in range(0, 64, 8)]
cases = [checked(whole), checked(whole[:-1]), checked([*whole[1:], range(8, 16)]), checked([*whole, [0]])]
print(json.dumps([*cases, checked(whole, other=1), checked([*whole[1:], range(8), [64]])]))
"""


def measured(folder: Path, rounds: int, peers: str, *contestants: str) -> tuple[dict[str, Any], str]:
    """Results of the smoke workload, and what was printed."""
    command = ["-m", "benchmarks", "--workloads", "smoke", "--rounds", str(rounds)]
    command += ["--peers", peers, "--out", str(folder / "out"), "--data", str(folder / "data"), "--jobs", "1"]
    command += ["--contestants", *contestants, "--limit-s", "0.01"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREPCACHE")}
    done = python(*command, cwd=REPO, env=env)
    return json.loads((folder / "out" / "results.json").read_text())["smoke"], done.stdout


@pytest.mark.nightly
def test_contestants_are_measured_and_a_missing_peer_named(tmp_path):
    results, printed = measured(tmp_path, 2, sys.executable, *OWN, "LMDB")
    for name in ["limit", *OWN]:
        assert "error" not in results[name], (name, results[name])
        assert results[name]["ratio"] > 0
        assert results[name]["pss_bytes"] > 0
    assert results["LMDB"]["error"].startswith("not installed: ModuleNotFoundError")
    assert "| prepcache |" in printed
    root = tmp_path / "data" / "smoke" / "prepcache" / "prepcache"
    assert root.is_dir()


def test_a_benchmark_epoch_with_wrong_samples_fails_its_check(tmp_path):
    assert json.loads(python("-c", CHECKS, tmp_path, cwd=REPO).stdout) == [
        64,
        "an epoch has 56 of 64 samples",
        "sample 8 comes twice in an epoch",
        "sample 0 comes twice in an epoch",
        "sample 0 has other bytes",
        "an epoch has 65 of 64 samples",
    ]
