"""How well a step hides behind the gather of the next batch: python -m benchmarks.overlap

The step is a matmul on one thread, sized to take as long as the limit's copy of a batch. Epochs of the limit
alone and of the step alone are timed, then of both together: through a `DataLoader`, through
`prepcache.Loader`, and through a bare thread that does nothing but the limit's copy, into three buffers in
turn. Shown is max(limit, step) over the wall time of each: 1 is perfect, 0.5 is no overlap at all.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from benchmarks.contestants import Contestant, Epoch, Limit, Loader, Prepcache
from benchmarks.workloads import WORKLOADS


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def drain(batches: Any, step: Callable[[], Any] | None = None) -> None:
    for _ in batches:
        if step is not None:
            step()


def sized_step(wanted_s: float) -> Callable[[], Any]:
    """A matmul that takes about `wanted_s`."""
    side, found_s = 64, 0.0
    while found_s < wanted_s:
        side += 16
        left = torch.randn(side, side)
        found_s = statistics.median(seconds(lambda: left @ left) for _ in range(9))  # noqa: B023
    return lambda: left @ left


class BareThread(Limit):
    """The limit's copy ahead of the consumer, into three buffers in turn: no loader of batches does less."""

    def open(self, workers: int) -> Epoch:
        load, flat = self.workload, self.flat()
        buffers = [np.empty((load.batch_size, *load.flat_shape), load.dtype) for _ in range(3)]

        def epoch() -> Iterator[Any]:
            order = np.random.permutation(load.count)
            chosen = [order[at : at + load.batch_size] for at in range(0, load.count, load.batch_size)]
            free: SimpleQueue[Any] = SimpleQueue()
            ready: SimpleQueue[Any] = SimpleQueue()

            def copy() -> None:
                for rows in chosen:
                    values = free.get()
                    flat.take(rows, 0, values[: len(rows)], "clip")
                    ready.put(values)

            for values in buffers:
                free.put(values)
            thread = threading.Thread(target=copy)
            thread.start()
            for _ in chosen:
                values = ready.get()
                yield values
                free.put(values)
            thread.join()

        return epoch


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--workload", default="W1", choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS[args.workload]
    batches = -(-workload.count // workload.batch_size)
    with tempfile.TemporaryDirectory(prefix="prepcache-benchmarks-") as folder:
        epochs: dict[type[Contestant], Any] = {}
        folders: dict[type[Contestant], str] = {
            Limit: "limit",
            BareThread: "limit",
            Prepcache: "own",
            Loader: "own",
        }
        for kind, name in folders.items():
            path = Path(folder) / name
            path.mkdir(exist_ok=True)
            contestant = kind(workload, path)
            contestant.prepare()
            epochs[kind] = contestant.open(0)
        drain(epochs[Limit]())
        step = sized_step(
            statistics.median(seconds(lambda: drain(epochs[Limit]())) for _ in range(5)) / batches
        )
        beside: dict[str, type[Contestant]] = {
            "DataLoader": Prepcache,
            "prepcache.Loader": Loader,
            "a bare thread": BareThread,
        }
        ratios: dict[str, list[float]] = {name: [] for name in beside}

        def epoch_beside_steps(kind: type[Contestant]) -> None:
            drain(epochs[kind](), step)

        for _ in range(args.rounds):
            limit_s = seconds(lambda: drain(epochs[Limit]()))
            step_s = seconds(lambda: drain(range(batches), step))
            for name, one in beside.items():
                both_s = seconds(partial(epoch_beside_steps, one))
                ratios[name].append(max(limit_s, step_s) / both_s)
        contestant.clean_up()
    for name, found in ratios.items():
        low, high = min(found), max(found)
        print(f"{name:18} max(limit, step) / wall = {statistics.median(found):.2f} ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
