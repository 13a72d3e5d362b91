"""What no gather can go below in a plain DataLoader: python -m benchmarks.floor [--rounds 9]

W1's batches, from an array in memory: the limit, and a `DataLoader` around nothing but the limit's copy.
Then W2's batches (256 of 50,000 sequences of int32, 200 on the mean), each round: the limit, which takes
their elements from a flat array; as many bytes of rows of one length; a `DataLoader` that hands out indices
and does nothing else; the same with a gather of the sequences written in plain numpy, and in C and compiled
here (it needs `cc`), packed and padded, and nothing but that; and ours. Shown are microseconds a batch and
the ratio to the limit's, medians.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import prepcache
from benchmarks import compile_sources
from benchmarks.contestants import ManyArtifacts
from benchmarks.workloads import MEAN_WORDS, WORKLOADS

SOURCE = r"""
#include <stdint.h>
#include <string.h>

void pack(const int32_t *from, const int64_t *begin, const int64_t *place, int64_t rows, int32_t *to) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + place[i], from + begin[i], 4 * (place[i + 1] - place[i]));
}

void pad(const int32_t *from, const int64_t *begin, const int64_t *end, int64_t rows, int32_t *to,
         int64_t width) {
    for (int64_t i = 0; i < rows; i++, to += width) {
        int64_t length = end[i] - begin[i];
        memcpy(to, from + begin[i], 4 * length);
        memset(to + length, 0, 4 * (width - length));
    }
}
"""
WORKLOAD = WORKLOADS["W2"]
Array = np.ndarray[Any, Any]


class Indices(torch.utils.data.Dataset[Any]):
    """Batches are the indices that they are of."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: list[int]) -> Array:
        return np.frombuffer(array("q", indices), np.int64)


class Compiled:
    """The gather in C."""

    def __init__(self, library: ctypes.CDLL, values: Array, offsets: Array) -> None:
        self._library = library
        self._values, self._begin, self._end = values, offsets[:-1], offsets[1:]
        self._buffers = [np.empty(WORKLOAD.batch_size * 2 * MEAN_WORDS, np.int32) for _ in range(3)]

    def _buffer(self) -> Array:
        self._buffers.append(self._buffers.pop(0))
        return self._buffers[-1]

    def pack(self, at: Array) -> Any:
        begin, end, to = self._begin.take(at), self._end.take(at), self._buffer()
        place = np.zeros(len(at) + 1, np.int64)
        (end - begin).cumsum(out=place[1:])
        self._library.pack(
            *map(_address, (self._values, begin, place)), ctypes.c_int64(len(at)), _address(to)
        )
        return torch.from_numpy(to[: place[-1]]), torch.from_numpy(place), torch.from_numpy(at)

    def pad(self, at: Array) -> Any:
        begin, end, to = self._begin.take(at), self._end.take(at), self._buffer()
        width = int((end - begin).max())
        count = ctypes.c_int64(len(at))
        addresses = map(_address, (self._values, begin, end))
        self._library.pad(*addresses, count, _address(to), ctypes.c_int64(width))
        return torch.from_numpy(to[: len(at) * width].reshape(len(at), width)), torch.from_numpy(at)


def _address(values: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


def compiled(folder: Path) -> ctypes.CDLL:
    (folder / "gather.c").write_text(SOURCE)
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", folder / "gather.so", folder / "gather.c"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "gather.so"))


def rows_of_one_length(flat: Array, batch_size: int) -> Callable[[], None]:
    """An epoch of copying rows of one length into one buffer."""
    buffer = np.empty((batch_size, *flat.shape[1:]), flat.dtype)

    def run() -> None:
        order = np.random.permutation(len(flat))
        for start in range(0, len(flat), batch_size):
            chosen = order[start : start + batch_size]
            flat.take(chosen, 0, buffer[: len(chosen)], "clip")

    return run


def elements(values: Array, offsets: Array) -> Callable[[], None]:
    """An epoch of copying the elements of sequences into one buffer; where they are is worked out before."""
    order = np.random.permutation(WORKLOAD.count)
    batches = [order[at : at + WORKLOAD.batch_size] for at in range(0, len(order), WORKLOAD.batch_size)]
    places = [np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in batch]) for batch in batches]
    buffer = np.empty(max(map(len, places)), values.dtype)

    def run() -> None:
        for chosen in places:
            values.take(chosen, 0, buffer[: len(chosen)], "clip")

    return run


def packed(values: Array, offsets: Array, at: Array) -> Any:
    """Sequences end to end, as one writes it in numpy."""
    begin, lengths = offsets.take(at), offsets.take(at + 1) - offsets.take(at)
    place = np.zeros(len(at) + 1, np.int64)
    lengths.cumsum(out=place[1:])
    chosen = np.repeat(begin - place[:-1], lengths) + np.arange(place[-1])
    return torch.from_numpy(values.take(chosen)), torch.from_numpy(place), torch.from_numpy(at)


def epoch(dataset: Any, collate: Any) -> Callable[[], None]:
    """An epoch of a DataLoader."""
    loader: Any = DataLoader(dataset, WORKLOAD.batch_size, shuffle=True, collate_fn=collate)

    def run() -> None:
        for _ in loader:
            pass

    return run


def dense() -> Iterator[tuple[str, Callable[[], None]]]:
    """W1's: names, and an epoch of each."""
    load = WORKLOADS["W1"]
    flat = np.stack([load.array(number) for number in range(load.count)])
    buffers = [np.empty((load.batch_size, *flat.shape[1:]), flat.dtype) for _ in range(2)]

    def copy(at: Array) -> Any:
        buffers.append(buffers.pop(0))
        return torch.from_numpy(flat.take(at, 0, buffers[-1][: len(at)], "clip")), torch.from_numpy(at)

    yield "limit", rows_of_one_length(flat, load.batch_size)
    yield "limit, in a DataLoader", epoch(Indices(load.count), copy)


def ragged(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """W2's: names, and an epoch of each."""
    rows = [WORKLOAD.array(number) for number in range(WORKLOAD.count)]
    offsets = np.cumsum([0, *map(len, rows)])
    values = np.concatenate(rows)
    yield "limit", elements(values, offsets)
    flat = np.resize(values, (WORKLOAD.count, MEAN_WORDS))
    yield "rows of one length", rows_of_one_length(flat, WORKLOAD.batch_size)
    indices = Indices(WORKLOAD.count)
    yield "indices", epoch(indices, lambda at: at)
    yield "packed in plain numpy", epoch(indices, lambda at: packed(values, offsets, at))
    gather = Compiled(compiled(folder), values, offsets)
    at = np.arange(WORKLOAD.count - WORKLOAD.batch_size, WORKLOAD.count)
    if gather.pack(at)[0].numpy().tobytes() != values[offsets[at[0]] :].tobytes():
        raise SystemExit("the gather in C returns other bytes")
    yield "packed in C", epoch(indices, gather.pack)
    yield "padded in C", epoch(indices, gather.pad)
    ours = ManyArtifacts(WORKLOAD, folder)
    ours.artifacts = 1
    ours.prepare()
    dataset = ours.dataset()
    yield "packed by prepcache", epoch(dataset, prepcache.pack_collate(leaves=["0"]))
    yield "padded by prepcache", epoch(dataset, prepcache.pad_collate(leaves=["0"]))


def measure(title: str, count: int, contenders: Iterator[tuple[str, Callable[[], Any]]], rounds: int) -> None:
    """Interleaved rounds of an epoch each; prints medians."""
    batches = -(-count // WORKLOAD.batch_size)
    measured: dict[str, tuple[Callable[[], Any], list[float]]] = {name: (run, []) for name, run in contenders}
    for _ in range(rounds + 1):  # the first is left out: nothing is in any cache yet
        for run, seconds in measured.values():
            started = time.perf_counter()
            run()
            seconds.append((time.perf_counter() - started) / batches)
    limits = measured["limit"][1][1:]
    for name, (_, seconds) in measured.items():
        ratio = statistics.median(one / other for one, other in zip(limits, seconds[1:], strict=True))
        took_us = 1e6 * statistics.median(seconds[1:])
        print(f"{title} {name:22} {took_us:5.0f} us a batch, {ratio:.2f} of the limit's speed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    compile_sources()
    torch.set_num_threads(1)
    measure("W1", WORKLOADS["W1"].count, dense(), rounds)
    with tempfile.TemporaryDirectory(prefix="prepcache-benchmarks-") as folder:
        measure("W2", WORKLOAD.count, ragged(Path(folder)), rounds)


if __name__ == "__main__":
    main()
