"""Runs the suite: python -m benchmarks [--workloads W1 W3] [--contestants limit prepcache] [--peers PYTHON]

Every contestant runs in a process of its own. Their epochs take turns, the limit's among them, for as many
rounds as are asked for; a ratio is an epoch's speed over the limit's in the same round, and what is shown is
the median over the rounds. `--read` counts in what it costs to read each batch once, for all.
`--transform` crops and flips each sample at random, in numpy, of all contestants but the limit.
`--workers 0 2 4` runs each contestant but the limit with so many DataLoader workers, in a table of its own.
On a machine that others use, the ratio of CPU times (without
workers) is the steadier one. Results go to OUT/results.json, and as plots beside it.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import CONTESTANTS, compile_sources
from benchmarks.contestants import Prepcache
from benchmarks.report import plot, table
from benchmarks.workloads import MEASURED, WORKLOADS

REPO = Path(__file__).resolve().parents[1]


class Process:
    """A contestant's process."""

    def __init__(self, python: str, name: str, workload: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'client'}:{REPO / 'server'}"}
        env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with open(folder.parent / f"{folder.name}.log", "a") as log:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.job", name, workload, str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, text=True,
            )  # fmt: skip

    def ask(self, *command: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended; see its log"}
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def missing(python: str, name: str) -> str | None:
    """Why a contestant cannot run with this interpreter, or None."""
    imports = "; ".join(f"import {module}" for module in ("torch", *CONTESTANTS[name].needs))
    try:
        tried = subprocess.run([python, "-c", imports], capture_output=True, text=True)
    except OSError as error:
        return f"{error.strerror}: {python}; make peers installs it"
    return None if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1][:200]


class Suite:
    """One workload, all contestants."""

    def __init__(self, args: argparse.Namespace, workload: str) -> None:
        self.args = args
        self.workload = WORKLOADS[workload]
        self.results: dict[str, dict[str, Any]] = {}
        self._running: dict[tuple[str, int], Process] = {}

    def run(self) -> dict[str, dict[str, Any]]:
        """Measures; contestants that fail are kept with the reason."""
        for name in self.args.contestants:
            self._start(name)
        for _ in range(self.args.rounds):
            limit = limit_cpu_s = 0.0
            for (name, workers), process in self._running.items():
                answer = process.ask("epoch", self.args.limit_s, self.args.read)
                if "error" in answer:
                    if name == "limit":
                        raise SystemExit(f"the limit of {self.workload.name} failed: {answer['error']}")
                    self.results[name]["error"] = answer["error"]
                    continue
                speed = answer["samples"] / answer["seconds"]
                cpu_s = answer["cpu_s"] / answer["samples"]
                if name == "limit":
                    limit, limit_cpu_s = speed, cpu_s
                found = self.results[name].setdefault("epochs", {}).setdefault(str(workers), [])
                ratios = {"ratio": speed / limit, "cpu_ratio": limit_cpu_s / cpu_s}
                found.append({"samples_per_s": speed, "shared_bytes": answer["shared_bytes"], **ratios})
        for process in self._running.values():
            process.close()
        for name, result in self.results.items():
            self._sum_up(result)
            if self.args.jobs > 1 and "error" not in result:
                result |= self._memory_of_jobs(name)
        for name in self.results:
            CONTESTANTS[name](self.workload, self._folder(name)).clean_up()
        return self.results

    def _python(self, name: str) -> str:
        needs_peers = set(CONTESTANTS[name].needs) - {"prepcache"}
        return self.args.peers if needs_peers else sys.executable

    def _folder(self, name: str) -> Path:
        kept = "prepcache" if issubclass(CONTESTANTS[name], Prepcache) else name
        return Path(self.args.data) / self.workload.name / kept.replace(" ", "-")

    def _start(self, name: str) -> None:
        contestant = CONTESTANTS[name](self.workload, self._folder(name))
        if not contestant.takes():
            return
        result = self.results[name] = {}
        reason = missing(self._python(name), name)
        if reason is not None:
            result["error"] = f"not installed: {reason}"
            return
        say(f"{self.workload.name}: {name}")
        given = self.args.workers
        for workers in given if given and name != "limit" else contestant.workers:
            process = Process(self._python(name), name, self.workload.name, self._folder(name))
            prepared = process.ask("prepare")
            answers = [
                prepared,
                process.ask("open", workers, self.args.transform and name != "limit"),
                process.ask("check"),
            ]
            errors = [answer["error"] for answer in answers if "error" in answer]
            if errors:
                if name == "limit":
                    raise SystemExit(f"the limit of {self.workload.name} failed: {errors[0]}")
                result["error"] = errors[0]
                process.close()
                return
            result.setdefault("prepare_s", prepared["seconds"])
            result["disk_bytes"] = prepared["disk_bytes"]
            result.setdefault("first_batch_s", {})[str(workers)] = answers[1]["seconds"]
            if workers == 0:
                process.ask("epoch", self.args.limit_s)
                result |= process.ask("memory")
            self._running[name, workers] = process

    def _memory_of_jobs(self, name: str) -> dict[str, Any]:
        """Of several jobs at once: PSS of all together; the most private memory, beside that of torch."""
        jobs = [
            Process(self._python(name), name, self.workload.name, self._folder(name))
            for _ in range(self.args.jobs)
        ]
        try:
            for job in jobs:
                job.ask("open", 0)
                job.ask("epoch", self.args.limit_s)
            answers = [job.ask("memory") for job in jobs]
            found = [answer for answer in answers if "error" not in answer]
            return {
                "jobs_pss_bytes": sum(answer["pss_bytes"] for answer in found),
                "jobs_private": max(
                    (answer["private_bytes"] / answer["torch_bytes"] for answer in found), default=None
                ),
            }
        finally:
            for job in jobs:
                job.close()

    def _sum_up(self, result: dict[str, Any]) -> None:
        for workers, epochs in result.get("epochs", {}).items():
            ratio = statistics.median(epoch["ratio"] for epoch in epochs)
            shared_bytes = max(epoch["shared_bytes"] for epoch in epochs)
            result.setdefault("by_workers", {})[workers] = {"ratio": ratio, "shared_bytes": shared_bytes}
            speed = statistics.median(epoch["samples_per_s"] for epoch in epochs)
            if speed > result.get("samples_per_s", 0):
                ratios = sorted(epoch["ratio"] for epoch in epochs)
                result["samples_per_s"] = speed
                result["bytes_per_s"] = speed * self.workload.sample_bytes
                result["ratio"] = statistics.median(ratios)
                result["ratio_range"] = [ratios[0], ratios[-1]]
        alone = result.get("epochs", {}).get("0", [])
        if alone:
            result["cpu_ratio"] = statistics.median(epoch["cpu_ratio"] for epoch in alone)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=MEASURED, choices=list(WORKLOADS))
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each contestant, taken in turns")
    parser.add_argument("--limit-s", type=float, default=5.0, help="seconds after which an epoch is cut")
    parser.add_argument("--workers", type=int, nargs="+", metavar="N", help="numbers of DataLoader workers")
    parser.add_argument("--read", action="store_true", help="read each batch once; not of ragged rows")
    parser.add_argument("--transform", action="store_true", help="crop and flip each sample; images only")
    parser.add_argument("--jobs", type=int, default=4, help="jobs at once whose memory is measured; 1: none")
    parser.add_argument("--peers", default=str(REPO / ".venv-peers" / "bin" / "python"), metavar="PYTHON")
    parser.add_argument("--data", help="where what is stored is kept; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=REPO / "benchmarks" / "out")
    args = parser.parse_args()
    if args.read and any(WORKLOADS[name].is_ragged for name in args.workloads):
        parser.error("--read is for workloads whose rows have one length")
    if args.transform and any(len(WORKLOADS[name].flat_shape) != 3 for name in args.workloads):
        parser.error("--transform is for images")
    args.contestants = sorted(set(args.contestants) | {"limit"}, key=list(CONTESTANTS).index)
    compile_sources()
    data = args.data or tempfile.mkdtemp(prefix="prepcache-benchmarks-")
    args.data = data
    try:
        results = {}
        for name in args.workloads:
            results[name] = Suite(args, name).run()
            print(table(WORKLOADS[name], results[name]), flush=True)
    finally:
        if not parser.parse_args().data:
            shutil.rmtree(data, ignore_errors=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(results, indent=1))
    for name, result in results.items():
        plot(WORKLOADS[name], result, args.out / f"{name}.svg", is_read=args.read)


if __name__ == "__main__":
    main()
