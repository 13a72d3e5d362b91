"""Runs the corpus: every case made, fingerprinted, edited, and fingerprinted again in fresh processes.

The two passes differ in everything that must not count: hash seed, working directory, and process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .case import Case

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Verdict:
    """What one case in one mode did: `is_changed` is None where the key was refused on either side."""

    case: Case
    mode: str
    is_changed: bool | None
    detail: str

    @property
    def is_wrong_hit(self) -> bool:
        return self.is_changed is False and self.mode in self.case.changes

    @property
    def is_needless_miss(self) -> bool:
        return self.is_changed is True and self.mode not in self.case.changes


Answers = dict[str, Any]


@dataclass(frozen=True)
class Keyer:
    """Whose keys are asked for: the `module:maker` of the keyer, its modes, and the Python that has it."""

    maker: str = "key_corpus.own:keyer"
    modes: tuple[str, ...] = ("script", "function")
    python: str = sys.executable
    path: tuple[str, ...] = ()


OWN = Keyer()


def fingerprint(
    keyer: Keyer, plan: Answers, folder: Path, hash_seed: str, flags: Sequence[str] = ()
) -> Answers:
    """One pass over some cases: {case index: answer}."""
    if not plan:
        return {}
    asked, told = folder / "plan.json", folder / "answers.json"
    asked.write_text(json.dumps(plan))
    cwd = folder / f"cwd-{hash_seed}"
    cwd.mkdir(exist_ok=True)
    environ = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), *(keyer.path or sys.path)]),
    }
    command = [keyer.python, *flags, "-m", "key_corpus.fingerprint", keyer.maker, str(asked), str(told)]
    subprocess.run(command, env=environ, cwd=cwd, check=True)
    return dict(json.loads(told.read_text()))


def verdict(case: Case, mode: str, before: dict[str, Any], after: dict[str, Any]) -> Verdict:
    """Compares the two answers for one case in one mode."""
    for answer in (before, after):
        if "error" in answer:
            return Verdict(case, mode, None, answer["error"])
        if answer[mode].startswith("refused"):
            return Verdict(case, mode, None, answer[mode])
    differs = before[mode] != after[mode] or before["items"] != after["items"]
    detail = f"{before[mode][:8]} -> {after[mode][:8]}, stale: {after['stale']}"
    return Verdict(case, mode, differs or after["stale"] is not None, detail)


def run(cases: Sequence[Case], folder: Path, keyer: Keyer = OWN) -> list[Verdict]:
    """Every case in every mode of the keyer."""
    plan: dict[str, Any] = {}
    for index, case in enumerate(cases):
        project = folder / f"p{index}" / "project"
        project.mkdir(parents=True)
        case.make(project)
        environ = {name: values[0] for name, values in case.environ.items()}
        plan[str(index)] = {"project": str(project), "environ": environ, "runs": case.runs, "observed": None}
    before = fingerprint(keyer, plan, folder, "1")
    for index, case in enumerate(cases):
        entry = plan[str(index)]
        case.edit(Path(entry["project"]))
        entry["project"] = str(Path(entry["project"]).resolve())
        entry["environ"] = {name: values[1] for name, values in case.environ.items()}
        entry["observed"], entry["runs"] = before[str(index)].get("observed"), False
    after: dict[str, Any] = {}
    for flags in sorted({case.flags for case in cases}):
        part = {i: entry for i, entry in plan.items() if cases[int(i)].flags == flags}
        after |= fingerprint(keyer, part, folder, "2", flags)
    return [
        verdict(case, mode, before[str(index)], after[str(index)])
        for index, case in enumerate(cases)
        for mode in keyer.modes
    ]
