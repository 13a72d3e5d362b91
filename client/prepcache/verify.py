"""Verifying hits: a share of what was found is preprocessed again and compared, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from prepcache.artifact import Writer
from prepcache.calls import Job
from prepcache.catalogue import Catalogue
from prepcache.digests import DIGEST_BYTES, RecipeDigest
from prepcache.errors import PreprocessError, VerifyError
from prepcache.plan import MISSING, rows_of
from prepcache.randomness import guard

_NO_RECIPE = RecipeDigest("0" * 64)


def verify(
    job: Job, catalogue: Catalogue, item_of: Callable[[int], Any], fraction: float, random: Random
) -> int:
    """Preprocesses a share of the items that are there, and compares.

    Args:
        fraction: of the distinct items that are there, each drawn independently.

    Returns:
        How many were compared.

    Raises:
        VerifyError: one has other bytes than the stored ones.
        PreprocessError: the function raised.
    """
    places = catalogue.places
    there = np.flatnonzero(places.artifact != MISSING).tolist()
    chosen = [index for index in there if random.random() < fraction]
    with guard(job.function):
        for index in chosen:
            try:
                again = job.call(item_of(index))
            except Exception as error:
                raise PreprocessError(
                    f"preprocessing {_name(catalogue, index)} again failed: {error}"
                ) from error
            slots, rows = rows_of(np.array([index]), places)
            stored = [
                slot.artifact.sample(row)
                for number, row in zip(slots.tolist(), rows.tolist(), strict=True)
                if (slot := catalogue.slots[number]) is not None
            ]
            if _bytes(stored) != _bytes(again):
                raise VerifyError(
                    f"{_name(catalogue, index)}, preprocessed again, is not what the cache holds: the "
                    "function depends on something that is not in its key (time, network, randomness, a "
                    "file read by a C library); put it in config, or raise version=",
                    index=int(catalogue.distinct.first[index]),
                )
    return len(chosen)


def _name(catalogue: Catalogue, index: int) -> str:
    return f"item {int(catalogue.distinct.first[index])}"


def _bytes(samples: list[Any]) -> bytes:
    """The samples as an artifact's bytes: equal exactly where they are, NaN and -0.0 included."""
    writer = Writer(_NO_RECIPE)
    writer.add(bytes(DIGEST_BYTES), samples, 0.0)
    fd = os.memfd_create("prepcache-verify")
    try:
        size = writer.write(fd, producer={}).size_bytes
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
