"""Takes away each input of the key and each step of a commit, one at a time: a test must fail for each.

    python tests/mutants.py [--only TEXT] [--jobs N]

It is how we know that the tests can fail. A mutant is one replacement in one file, in a copy of the tree,
and the tests that must notice. The table is in mutants_table.py; `make test` checks that each replacement
still applies.

The tests are run once on the tree as it is, as many as can be in one run: they must pass there, or they
would kill anything. Each worker has a copy of the tree, and a cache folder that is emptied for each
mutant: what a mutant wrote is not believed by others.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue

from mutants_table import MUTANTS, Mutant

REPO = Path(__file__).resolve().parents[1]
COPIED = ("client", "server", "tests", "examples", "deploy", "pyproject.toml", "README.md", "Dockerfile")
TIMEOUT_S = 180
"""A mutant that hangs a test for so long was noticed."""
RUN_S = 2 * TIMEOUT_S
"""So was one that hangs what follows the test that failed, as the look at its store."""


class Worker:
    """A copy of the tree that tests run in, one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self._cache, self._temporary = folder / "cache", folder / "t"
        self.tree.mkdir()
        for name in COPIED:
            source = REPO / name
            if source.is_dir():
                shutil.copytree(source, self.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.tree / name)

    def run(self, tests: str, *more: str, limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Runs tests against the sources of the copy."""
        shutil.rmtree(self._cache, ignore_errors=True)
        sources = os.pathsep.join([str(self.tree / "client"), str(self.tree / "server")])
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", f"--timeout={TIMEOUT_S}"]
        options.append(f"--basetemp={self._temporary}")
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *more, *shlex.split(tests)],
            cwd=self.tree,
            env=os.environ | {"PYTHONPATH": sources, "XDG_CACHE_HOME": str(self._cache)},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )

    def trouble_without(self, tests: str) -> str | None:
        """What is wrong, if tests fail on the tree as it is."""
        result = self.run(tests)
        return None if result.returncode == 0 else result.stdout[-1000:] + result.stderr[-500:]

    def trouble_with(self, mutant: Mutant) -> str | None:
        """What is wrong, if no test failed for a mutant; None if one did."""
        try:
            with mutant.applied(self.tree):
                result = self.run(mutant.tests, "-x", limit_s=RUN_S)
        except LookupError as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return None
        if result.returncode == 1:
            return None
        if result.returncode == 0:
            return "no test failed"
        said = result.stdout[-500:] + result.stderr[-500:]
        return f"the tests did not run (exit code {result.returncode}): {said}"


def joined(selections: Iterable[str]) -> dict[str, list[str]]:
    """Selections by the run that does for several: those of the same files, any of their `-k`."""
    files: dict[str, list[str]] = {}
    for tests in selections:
        files.setdefault(tests.partition(" -k ")[0], []).append(tests)
    runs = {}
    for names, members in files.items():
        words = [shlex.split(tests)[-1] for tests in members if " -k " in tests]
        chosen = " or ".join(f"({word})" for word in words)
        runs[names if len(words) < len(members) else f"{names} -k {shlex.quote(chosen)}"] = members
    return runs


@contextmanager
def workers(count: int) -> Iterator[SimpleQueue[Worker]]:
    """Free workers, to be taken and put back."""
    free: SimpleQueue[Worker] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(count):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutant-"))
            free.put(Worker(Path(folder)))
        yield free


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name or file holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in f"{mutant.file}: {mutant.name}"]
    survivors = []
    start = time.monotonic()
    with workers(arguments.jobs) as free, ThreadPoolExecutor(arguments.jobs) as pool:

        def with_worker(job: Mutant | str) -> str | None:
            worker = free.get()
            try:
                return worker.trouble_with(job) if isinstance(job, Mutant) else worker.trouble_without(job)
            finally:
                free.put(worker)

        runs = joined(dict.fromkeys(mutant.tests for mutant in chosen))
        troubles = zip(runs.values(), pool.map(with_worker, runs), strict=True)
        doubtful = [tests for members, trouble in troubles if trouble for tests in members]
        unsound = []
        for tests, trouble in zip(doubtful, pool.map(with_worker, doubtful), strict=True):
            if trouble:
                print(f"FAILS without a mutant: {tests}\n{trouble}", flush=True)
                unsound.append(tests)
        survivors += [mutant for mutant in chosen if mutant.tests in unsound]
        tried = [mutant for mutant in chosen if mutant.tests not in unsound]
        for mutant, trouble in zip(tried, pool.map(with_worker, tried), strict=True):
            print(
                f"{'SURVIVED' if trouble else 'killed'}  {mutant.file}: {mutant.name}",
                trouble or "",
                flush=True,
            )
            if trouble:
                survivors.append(mutant)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - start:.0f} s")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
