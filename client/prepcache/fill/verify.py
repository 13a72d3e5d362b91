"""Verifying hits: a share of what was found is preprocessed again and compared, bit by bit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.artifact import Writer
from prepcache.digests import DIGEST_BYTES, RecipeDigest
from prepcache.errors import PreprocessError, VerifyError
from prepcache.fill.call import Job
from prepcache.index.item_index import MISSING, Catalogue, rows_of
from prepcache.keys.randomness import Guard
from prepcache.protocol.wire import ArtifactRef

if TYPE_CHECKING:
    from prepcache.fill.input_guard import Originals

SHOWN = 200
"""Characters of an item in a message."""
_NO_RECIPE = RecipeDigest("0" * 64)


def verify(
    job: Job,
    catalogue: Catalogue,
    originals: Originals,
    fraction: float,
    remove: Callable[[ArtifactRef, str], str],
) -> int:
    """Preprocesses a share of the items that are there, and compares; how many.

    Args:
        remove: removes the artifact that an item differs from; says what became of it.

    Raises:
        VerifyError: one has other bytes than the stored ones.
        PreprocessError: the function raised.
    """
    there = np.flatnonzero(catalogue.places.artifact != MISSING)
    compared = 0
    with Guard():
        for index in there[np.random.default_rng().random(len(there)) < fraction].tolist():
            numbers, rows = rows_of(np.array([index]), catalogue.places)
            held = [catalogue.slots.get(number) for number in numbers.tolist()]
            slots = [slot for slot in held if slot is not None]
            if len(slots) < len(held) or catalogue.is_missing(index):  # it was purged
                continue
            name = originals.name(index, SHOWN)
            try:
                again = job.call(index, originals.item(index))
            except Exception as error:  # noqa: BLE001 - the function may raise anything
                raise PreprocessError.of(error, f"preprocessing {name} again failed: {error}") from None
            stored = [slot.artifact.sample(row) for slot, row in zip(slots, rows.tolist(), strict=True)]
            if _digest(stored) != _digest(again):
                ref = slots[0].ref if slots else None
                fate = "" if ref is None else remove(ref, f"{name} differs")
                raise VerifyError(
                    f"{name}, preprocessed again, differs from the cached sample: the "
                    "function depends on something that is not in its key (time, network, randomness, a "
                    "file read by a C library, what untracked= names); "
                    f"put it in config, or change version={fate}",
                    index=originals.position(index),
                )
            compared += 1
    return compared


def _digest(samples: list[Any]) -> bytes:
    """Of an artifact with these samples: equal to the bit, NaN and -0.0 included."""
    writer = Writer(_NO_RECIPE)
    writer.add(bytes(DIGEST_BYTES), samples, 0.0)
    with open(os.memfd_create("prepcache-verify"), "r+b") as file:
        writer.write(file.fileno(), producer={})
        file.seek(0)
        return hashlib.file_digest(file, "blake2b").digest()
