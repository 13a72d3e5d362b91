"""Verifying hits: a share of what was found is preprocessed again and compared, bit by bit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.artifact import Writer
from prepcache.digests import DIGEST_BYTES, RecipeDigest
from prepcache.errors import PrepcacheError, PreprocessError, VerifyError
from prepcache.fill.call import Job
from prepcache.index.item_index import MISSING, Catalogue, rows_of
from prepcache.index.recipe_index import Slot
from prepcache.keys.randomness import Guard
from prepcache.protocol.wire import ArtifactRef

if TYPE_CHECKING:
    from prepcache.fill.input_guard import Originals
    from prepcache.index.artifact_set import ArtifactSet

SHOWN = 200
"""Characters of an item in a message."""
_NO_RECIPE = RecipeDigest("0" * 64)


def verify(
    job: Job,
    catalogue: Catalogue,
    originals: Originals,
    fraction: float,
    random: Random,
    condemn: Callable[[ArtifactRef, str], str] = lambda ref, what: "",
) -> int:
    """Preprocesses a share of the items that are there, and compares.

    Args:
        fraction: of the distinct items that are there, each drawn independently.
        condemn: told of the artifact that an item differs from; says what became of it.

    Returns:
        How many were compared, each with what was there when its turn came.

    Raises:
        VerifyError: one has other bytes than the stored ones.
        PreprocessError: the function raised.
    """
    there = np.flatnonzero(catalogue.places.artifact != MISSING).tolist()
    chosen = [index for index in there if random.random() < fraction]
    compared = 0
    with Guard():
        for index in chosen:
            if (held := _held(catalogue, index)) is None:
                continue
            try:
                again = job.call(index, originals.item(index))
            except Exception as error:
                raise PreprocessError(
                    f"preprocessing {originals.name(index, SHOWN)} again failed: {error}"
                ) from error
            if not _is_equal([slot.artifact.sample(row) for slot, row in held], again):
                name = originals.name(index, SHOWN)
                ref = held[0][0].ref if held else None
                fate = "" if ref is None else condemn(ref, f"{name} differs")
                raise VerifyError(
                    f"{name}, preprocessed again, differs from the cached sample: the "
                    "function depends on something that is not in its key (time, network, randomness, a "
                    "file read by a C library, what untracked= names); "
                    f"put it in config, or change version={fate}",
                    index=originals.position(index),
                )
            compared += 1
    return compared


def _held(catalogue: Catalogue, index: int) -> list[tuple[Slot, int]] | None:
    """Where an item's samples lie now, which stays mapped; None if it is not there any more."""
    while True:
        places = catalogue.places
        if places.artifact[index] == MISSING:
            return None
        numbers, rows = rows_of(np.array([index]), places)
        slots = [slot for number in numbers.tolist() if (slot := catalogue.slots.get(number)) is not None]
        if len(slots) == len(rows):  # else one was let go this moment: look again
            return list(zip(slots, rows.tolist(), strict=True))


def put_away(artifacts: ArtifactSet, ref: ArtifactRef, what: str) -> str:
    """Asks the daemon to remove an artifact; what became of it, for the message."""
    if not artifacts.mode.is_writing:
        return ""
    try:
        artifacts.client.remove_differing([ref.key], what)
    except PrepcacheError as error:
        return f". Entry {ref.key[:12]} could not be removed: {error.message}"
    return f". Entry {ref.key[:12]} was removed"


def _is_equal(stored: list[Any], again: list[Any]) -> bool:
    """Whether samples are the same, as an artifact's bytes: to the bit, NaN and -0.0 included."""
    return _digest(stored) == _digest(again)


def _digest(samples: list[Any]) -> bytes:
    """Of an artifact of one item."""
    writer = Writer(_NO_RECIPE)
    writer.add(bytes(DIGEST_BYTES), samples, 0.0)
    with open(os.memfd_create("prepcache-verify"), "r+b") as file:
        writer.write(file.fileno(), producer={})
        file.seek(0)
        return hashlib.file_digest(file, "blake2b").digest()
