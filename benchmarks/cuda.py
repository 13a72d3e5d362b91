"""How well a GPU's steps hide behind the batches that come to it: python -m benchmarks.cuda

The limit is `numpy.memmap` + `take(out=, mode="clip")` into one pinned buffer, then its copy to the
device. The step is a chain of matmuls on the device, sized to take as long. Epochs of the limit alone
and of the step alone are timed, then batches without a step, and both together: by `prepcache.Loader` with
`device="cuda"`, and by a `DataLoader` with `pin_memory=True` and `.to("cuda", non_blocking=True)`. Shown are
the limit over the wall time without a step, and max(limit, step) over that of both. The rows are stored as
those of a data set are; no daemon is asked.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from prepcache.loader import Loader
from support.rows import Stored, rows_of

WORKLOADS = {"W1": (20_000, 256, "uint8", (3, 64, 64)), "W3": (2_000, 64, "float32", (3, 224, 224))}
"""Samples, samples of a batch, dtype and shape."""


def seconds(batches: Iterable[Any], step: Callable[[], Any] | None = None) -> float:
    """An epoch, up to the end of what it has asked of the device."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for batch in batches:
        if step is not None:
            step()
        del batch
    torch.cuda.synchronize()
    return time.perf_counter() - started


def limit(flat: Any, size: int) -> Iterator[Any]:
    buffer = torch.empty((size, *flat.shape[1:]), dtype=torch.from_numpy(flat[:1]).dtype, pin_memory=True)
    on_device = torch.empty_like(buffer, device="cuda", pin_memory=False)
    order = np.random.permutation(len(flat))
    for at in range(0, len(flat), size):
        rows = order[at : at + size]
        flat.take(rows, 0, buffer.numpy()[: len(rows)], "clip")
        yield on_device[: len(rows)].copy_(buffer[: len(rows)], non_blocking=True)
        torch.cuda.synchronize()


def through_a_dataloader(loader: Any) -> Iterator[Any]:
    for values, labels in loader:
        yield values.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


def sized_step(wanted_s: float) -> Callable[[], Any]:
    """Matmuls that take the device about `wanted_s`."""
    left = torch.randn(1024, 1024, device="cuda")
    count = 1
    while True:

        def step(count: int = count) -> None:
            for _ in range(count):
                torch.mm(left, left)

        step()
        found_s = statistics.median(seconds([0], step) for _ in range(9))
        if found_s >= wanted_s:
            return step
        count = max(count + 1, int(count * min(2.0, wanted_s / found_s)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, (count, size, dtype, shape) in WORKLOADS.items():
        with tempfile.TemporaryDirectory(prefix="prepcache-benchmarks-") as folder:
            values = np.random.default_rng(0).integers(0, 255, (count, *shape), np.uint8).astype(dtype)
            np.save(Path(folder) / "flat.npy", values)
            flat = np.load(Path(folder) / "flat.npy", "r")
            samples = [(torch.from_numpy(row), number) for number, row in enumerate(values)]
            dataset = Stored(rows_of(Path(folder), samples))
            del samples
            ours = Loader(dataset, size, shuffle=True, device="cuda")
            theirs = torch.utils.data.DataLoader(dataset, size, shuffle=True, pin_memory=True)
            for rows, numbers in ours:
                assert torch.equal(rows.cpu(), torch.from_numpy(values)[numbers.cpu()])
            beside = {
                "prepcache.Loader": lambda ours=ours: ours,
                "DataLoader": lambda theirs=theirs: through_a_dataloader(theirs),
            }
            limits = [seconds(limit(flat, size)) for _ in range(5)]
            batches = -(-count // size)
            step = sized_step(statistics.median(limits) / batches)
            found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in beside}
            for _ in range(asked.rounds):
                limit_s, step_s = seconds(limit(flat, size)), seconds(range(batches), step)
                for kind, epoch in beside.items():
                    alone_s, both_s = seconds(epoch()), seconds(epoch(), step)
                    found[kind].append((limit_s / alone_s, max(limit_s, step_s) / both_s))
            print(f"{name}: limit {values.nbytes / statistics.median(limits) / 1e9:.1f} GB/s")
            for kind, ratios in found.items():
                for what, column in zip(
                    ("without a step", "with it"), zip(*ratios, strict=True), strict=True
                ):
                    middle, low, high = statistics.median(column), min(column), max(column)
                    print(f"  {kind:17} {what:15} {middle:.2f} ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
