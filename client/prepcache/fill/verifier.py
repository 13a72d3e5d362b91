"""Verification: makes a share of the samples that are there again, and compares them bit by bit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from prepcache.artifact.reader import memory_file
from prepcache.artifact.writer import Writer
from prepcache.daemon.client import Client
from prepcache.digests import DIGEST_BYTES, RecipeDigest
from prepcache.errors import PrepcacheError, PreprocessError, VerifyError
from prepcache.fill.pending import Task
from prepcache.index.item_index import MISSING, SHOWN
from prepcache.index.recipe_index import Slot
from prepcache.keys.randomness import Guard


def verify(task: Task, fraction: float) -> None:
    """Preprocesses a share of the items that are there, and compares.

    Raises:
        VerifyError: one has other bytes than the stored ones, whose artifact is removed.
        PreprocessError: the function raised.
    """
    catalogue, originals = task.catalogue, task.originals
    there = np.flatnonzero(catalogue.places.artifact != MISSING)
    with Guard():
        for index in there[np.random.default_rng().random(len(there)) < fraction].tolist():
            slot, first = catalogue.slot_of(index)
            if slot is None:  # it was purged
                continue
            name = originals.name(index, SHOWN)
            try:
                again = task.by.job.call(index, originals.item(index))
            except Exception as error:
                raise PreprocessError(f"preprocessing {name} again failed: {error}") from error
            counts = catalogue.places.count
            rows = range(first, first + (1 if counts is None else int(counts[index])))
            if _digest([slot.artifact.sample(row) for row in rows]) != _digest(again):
                raise VerifyError(
                    f"{name}, preprocessed again, differs from the cached sample: the function depends on "
                    "something that is not in its key (time, network, a file read by a C library, what "
                    "untracked= names): put it in config, or change version=. Or it draws random numbers: "
                    f"move these to transform={_removed(task, slot, name)}",
                    index=originals.position(index),
                )


def _removed(task: Task, slot: Slot, name: str) -> str:
    """Has the daemon remove an artifact; what became of it, for the message."""
    artifacts, ref = task.by.artifacts, slot.ref
    if ref is None or not artifacts.mode.is_writing:
        return ""
    try:
        with Client(artifacts.client.url, artifacts.client.token) as client:
            client.verify([ref.key], differs=f"{name} differs")
    except PrepcacheError as error:
        return f". Entry {ref.key[:12]} could not be removed: {error.message}"
    return f". Entry {ref.key[:12]} was removed"


def _digest(samples: list[Any]) -> bytes:
    """Of an artifact with these samples: equal to the bit, NaN and -0.0 included."""
    writer = Writer(RecipeDigest("0" * 64))
    writer.add(bytes(DIGEST_BYTES), samples, 0.0)
    with open(memory_file("prepcache-verify"), "r+b") as file:
        writer.write(file.fileno(), producer={})
        file.seek(0)
        return hashlib.file_digest(file, "blake2b").digest()
