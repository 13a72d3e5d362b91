"""The benchmark suite runs: own contestants, right bytes, ratios, a table and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
OWN = ["prepcache", "memory-mapped class"]


def test_own_contestants_are_measured_and_a_missing_peer_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--workloads", "smoke", "--rounds", "2", "--jobs", "1"]
    command += ["--peers", sys.executable, "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data")]
    command += ["--contestants", *OWN, "LMDB"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREPCACHE")}
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())["smoke"]
    for name in ["limit", *OWN]:
        assert "error" not in results[name], (name, results[name])
        assert results[name]["ratio"] > 0
        assert results[name]["pss_bytes"] > 0
    assert results["LMDB"]["error"].startswith("not installed: ModuleNotFoundError")
    assert "| prepcache |" in done.stdout
