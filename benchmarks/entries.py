"""Roots with very many entries, made quickly: for measuring the daemon, not for using it.

A million take five minutes and 8 GB.

The files of a recipe are one small artifact whose item, key and so digest were replaced; their rows are
written without a commit each.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from prepcache import artifact
from prepcache.artifact.writer import Writer
from prepcache.digests import RecipeDigest, entry_key
from prepcached.store import queries
from prepcached.store.commit import row_values
from prepcached.store.records import Limits
from prepcached.store.store import Store

PER_RECIPE = 1000
"""Artifacts of one recipe: what a resolve answers."""


NAME = "benchmarks.recipe"


def recipe(number: int) -> RecipeDigest:
    return RecipeDigest(blake3(b"recipe %d" % number).hexdigest())


def fill(root: Path, count: int) -> None:
    """A closed root with so many entries, `PER_RECIPE` of each recipe."""
    store = Store(root, limits=Limits(max_bytes=1 << 50, min_free_bytes=0))
    try:
        for start in range(0, count, PER_RECIPE):
            digest = recipe(start // PER_RECIPE)
            store.register(digest, NAME, {"format": 1, "version": str(start)})
            _add(store, digest, range(start, min(start + PER_RECIPE, count)))
    finally:
        store.close()


def _add(store: Store, digest: RecipeDigest, numbers: range) -> None:
    """Artifacts of one item each."""
    first = blake3(b"item").digest()
    writer = Writer(digest)
    writer.add(first, [{"x": np.zeros(1000, np.uint8)}], 0.5)
    with tempfile.TemporaryFile() as file:
        writer.write(file.fileno(), producer={"script": "benchmarks"})
        header = artifact.read_header(file.fileno())
        file.seek(0)
        raw = bytearray(file.read())
    key_at, item_at = raw.index(header.key.encode()), raw.index(first)
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    with store.index.write() as conn:
        row = queries.recipe(conn, digest)
        assert row is not None
        generation = queries.raise_generation(conn, row.id, is_removal=False)
        for number in numbers:
            item = blake3(b"item %d" % number).digest()
            key = entry_key(digest, item)
            raw[key_at : key_at + 64], raw[item_at : item_at + 32] = key.encode(), item
            name = blake3(raw).hexdigest()
            path = Path(store.objects, name[:2], name)
            with path.open("wb") as out:
                out.write(raw)
            values = row_values(header, name, len(raw))
            more = {
                "key": bytes.fromhex(key),
                "recipe_id": row.id,
                "owner": os.getuid(),
                "created_at": 1e9,
                "used_at": 1e9 + number,
                "is_pinned": False,
                "generation": generation,
            }
            found.append(({**values, **more}, header.producer))
        for chunk in queries.chunks(found):
            queries.add_artifacts(conn, chunk)
