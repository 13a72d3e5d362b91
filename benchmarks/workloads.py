"""Workloads: what is cached, sample by sample; deterministic, so that every contestant can be checked.

Invariants:
    1. Sample i of a workload has the same bytes in every process; its second field is i.
    2. The function of a workload is cheap; what is measured begins when everything is cached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MEAN_WORDS = 200
"""Mean length of W2's sequences; its limit copies rows of exactly this length."""


@dataclass(frozen=True)
class Workload:
    """Samples (array, number).

    Args:
        name: in tables and on the command line.
        about: for people.
        count: samples.
        batch_size: of every contestant.
        shape: of a sample's array; None if they differ in length.
        dtype: of it.
        array: number -> array.
    """

    name: str
    about: str
    count: int
    batch_size: int
    shape: tuple[int, ...] | None
    dtype: str
    array: Callable[[int], Array]

    @property
    def is_ragged(self) -> bool:
        return self.shape is None

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """The shape of a row of the limit: of every sample, or of one of mean length."""
        return (MEAN_WORDS,) if self.shape is None else self.shape

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample, on the mean."""
        return int(np.prod(self.flat_shape)) * np.dtype(self.dtype).itemsize

    def sample(self, number: int) -> tuple[Any, int]:
        """A sample as preprocessing makes it: (tensor, number)."""
        import torch

        return torch.from_numpy(self.array(number)), number


def _noise(number: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Bytes that no file system or codec can squeeze, different for each number, and quick to make."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.Generator(np.random.SFC64(number)).bytes(count)
    return np.frombuffer(bytearray(raw), dtype).reshape(shape)


def _images(number: int) -> Array:
    return _noise(number, (3, 64, 64), "u1")


def _crops(number: int) -> Array:
    return (_noise(number, (3, 224, 224), "u2") / np.float32(65536)).astype("f4")


def _words(number: int) -> Array:
    length = int(np.random.Generator(np.random.SFC64(number)).integers(1, 2 * MEAN_WORDS))
    return _noise(number, (length,), "i4")


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "20,000 x uint8[3,64,64] + label", 20_000, 256, (3, 64, 64), "u1", _images),
        Workload("W2", "50,000 sequences of int32, mean length 200", 50_000, 256, None, "i4", _words),
        Workload("W3", "2,000 x float32[3,224,224] + label", 2_000, 64, (3, 224, 224), "f4", _crops),
    )
}
