"""Verifying hits: a share of what was found is preprocessed again and compared, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.artifact import Writer
from prepcache.data.calls import Job
from prepcache.data.catalogue import Catalogue
from prepcache.data.plan import MISSING, rows_of
from prepcache.digests import DIGEST_BYTES, RecipeDigest
from prepcache.errors import PrepcacheError, PreprocessError, VerifyError
from prepcache.keys.randomness import guard
from prepcache.protocol.explain import shortened
from prepcache.protocol.wire import ArtifactRef

if TYPE_CHECKING:
    from prepcache.data.originals import Originals
    from prepcache.data.supply import Supply

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
                again = job.call(index, originals.item(index))
            except Exception as error:
                raise PreprocessError(
                    f"preprocessing {_name(originals, index)} again failed: {error}"
                ) from error
            slots, rows = rows_of(np.array([index]), places)
            stored = [
                slot.artifact.sample(row)
                for number, row in zip(slots.tolist(), rows.tolist(), strict=True)
                if (slot := catalogue.slots[number]) is not None
            ]
            if _bytes(stored) != _bytes(again):
                name = _name(originals, index)
                slot = catalogue.slots[int(slots[0])] if len(slots) else None
                ref = None if slot is None else slot.ref
                fate = "" if ref is None else condemn(ref, f"{name} differs")
                raise VerifyError(
                    f"{name}, preprocessed again, is not what the cache holds: the "
                    "function depends on something that is not in its key (time, network, randomness, a "
                    f"file read by a C library); put it in config, or raise version={fate}",
                    index=originals.position(index),
                )
    return len(chosen)


def put_away(supply: Supply, ref: ArtifactRef, what: str) -> str:
    """Asks the daemon to quarantine an artifact; what became of it, for the message."""
    if not supply.mode.is_writing:
        return ""
    try:
        supply.client.quarantine([ref.key], what)
    except PrepcacheError as error:
        return f". Entry {ref.key[:12]} could not be put in quarantine: {error.message}"
    return f". Entry {ref.key[:12]} is in quarantine"


def _name(originals: Originals, index: int) -> str:
    return f"item {originals.position(index)} ({shortened(repr(originals.item(index)), SHOWN)})"


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
