"""A data set class that keeps its own cache file, beside prepcache: what each recomputes after which change.

    python examples/one_file_cache.py [--lines 2000]

The classical class reads one text file and keeps its tensors in one `.pt`. Its three variants decide by bytes
(a hash of the text and the script), by times (is the `.pt` newer than both?), or mixed (times first, bytes if
those differ). None of them knows the helper module that the script imports, or the config.
"""

import argparse
import hashlib
import os
import runpy
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import prepcache

SCRIPT = """
import torch
import helper

def encode(line, length):
    codes = torch.tensor(helper.codes(line)[:length])
    return torch.nn.functional.pad(codes, (0, length - len(codes)))
"""
HELPER = "def codes(line):\n    return list(line.encode())\n"


@dataclass
class Classical:
    """The class of many training scripts; `variant` is "bytes", "times" or "mixed"."""

    text: Path
    script: Path
    variant: str

    @property
    def cache(self) -> Path:
        return self.text.with_name(f"{self.variant}.pt")

    def load(self, encode: Any, length: int) -> tuple[torch.Tensor, bool]:
        """All samples, stacked, and whether they were computed."""
        if self.cache.exists():
            kept = torch.load(self.cache)
            if self._is_fresh(kept["digest"]):
                return kept["samples"], False
        samples = torch.stack([encode(line, length) for line in self.text.read_text().splitlines()])
        torch.save({"digest": self._digest(), "samples": samples}, self.cache)
        return samples, True

    def _is_fresh(self, digest: str) -> bool:
        made = self.cache.stat().st_mtime_ns
        is_newest = all(path.stat().st_mtime_ns < made for path in (self.text, self.script))
        if self.variant == "times":
            return is_newest
        return (self.variant == "mixed" and is_newest) or digest == self._digest()

    def _digest(self) -> str:
        return hashlib.sha256(self.text.read_bytes() + self.script.read_bytes()).hexdigest()


def by_prepcache(text: Path, encode: Any, length: int) -> tuple[torch.Tensor, bool]:
    lines = [prepcache.plain(line) for line in text.read_text().splitlines()]
    ds = prepcache.CachedDataset(lines, encode, config={"length": length}, progress=False)
    return torch.stack([ds[at] for at in range(len(ds))]), ds.report().computed > 0


def touch(path: Path) -> None:
    """Sets the time of a file to now: later than what was written, earlier than what a job will write."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))
    touch(path)


def run_case(text: Path, script: Path, length: int) -> dict[str, str]:
    """As in a job of its own: what each cache did, and whether its samples are right."""
    encode = runpy.run_path(str(script))["encode"]
    right = torch.stack([encode(line, length) for line in text.read_text().splitlines()])
    told = {}
    for name in ("bytes", "times", "mixed", "prepcache"):
        started = time.perf_counter()
        if name == "prepcache":
            samples, is_computed = by_prepcache(text, encode, length)
        else:
            samples, is_computed = Classical(text, script, name).load(encode, length)
        seconds = time.perf_counter() - started
        is_right = samples.shape == right.shape and torch.equal(samples, right)
        did = "computed" if is_computed else "kept"
        told[name] = f"{did}{'' if is_right else ', STALE'}, {seconds:.2f} s"
    return told


def main(lines: int) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, script, helper = folder / "corpus.txt", folder / "script.py", folder / "helper.py"
        text.write_text("".join(f"line {at} of the text\n" for at in range(lines)))
        script.write_text(SCRIPT)
        helper.write_text(HELPER)
        sys.path.insert(0, name)
        steps = {
            "first run": lambda: None,
            "second run": lambda: None,
            "text touched, not changed": lambda: touch(text),
            "one line changed": lambda: rewrite(text, "line 7 ", "line seven "),
            "script changed": lambda: rewrite(script, "len(codes)))", "len(codes)), value=1)"),
            "helper changed": lambda: rewrite(helper, "list(", "sorted("),
        }
        spawn = get_context("spawn")
        for case, change in steps.items():
            change()
            with spawn.Pool(1) as pool:
                table[case] = pool.apply(run_case, (text, script, 32))
        with spawn.Pool(1) as pool:
            table["config changed"] = pool.apply(run_case, (text, script, 24))
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lines", type=int, default=2000)
    found = main(parser.parse_args().lines)
    shown = Table("after", "by bytes", "by times", "mixed", "prepcache")
    for after, told in found.items():
        shown.add_row(after, told["bytes"], told["times"], told["mixed"], told["prepcache"])
    Console().print(shown)
