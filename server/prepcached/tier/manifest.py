"""One manifest object: the rows of some artifacts of a recipe, as bytes and checked. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prepcache.digests import DIGEST_BYTES, Digest, is_hex64

VERSION = 1
MAX_OBJECT_BYTES = 32 << 20
"""A larger object is not read: rows of about 500,000 items."""
MAX_ROWS = 100_000
"""Of one recipe, over all its objects."""
MAX_ITEMS = 1 << 20
"""Of one artifact, as many as the store takes in a commit."""


class ManifestError(ValueError):
    """An object under a manifest's prefix that is not a manifest."""


@dataclass(frozen=True, slots=True)
class Row:
    """One artifact: its digest and size, its items (32 bytes each, in row order), and what it cost to
    make."""

    digest: Digest
    size_bytes: int
    items: bytes
    cost_s: float

    def each_item(self) -> Iterator[bytes]:
        for start in range(0, len(self.items), DIGEST_BYTES):
            yield self.items[start : start + DIGEST_BYTES]


def encode(rows: Iterable[Row]) -> Iterator[bytes]:
    """Manifest objects that hold these rows: one, or several where one would be too large to be read."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        packed = base64.b64encode(row.items).decode()
        if part and size + len(packed) > MAX_OBJECT_BYTES // 2:
            yield _object(part)
            part, size = [], 0
        size += len(packed) + 200
        part.append(
            {"digest": row.digest, "size_bytes": row.size_bytes, "cost_s": row.cost_s, "items": packed}
        )
    if part:
        yield _object(part)


def decode(data: bytes, max_artifact_bytes: int) -> list[Row]:
    """The rows of an object.

    Args:
        data: the object; at most `MAX_OBJECT_BYTES`.
        max_artifact_bytes: artifacts that say they are larger are left out: no store could take them.

    Raises:
        ManifestError: it is not a manifest of this version.
    """
    try:
        told = json.loads(data)
        if told["version"] != VERSION:
            raise ManifestError(f"version {told['version']!r}, and this daemon reads {VERSION}")
        rows = [_row(one) for one in told["artifacts"][:MAX_ROWS]]
    except ManifestError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ManifestError(f"not a manifest ({type(error).__name__})") from None
    return [row for row in rows if row.size_bytes <= max_artifact_bytes]


def _row(told: Any) -> Row:
    digest, size_bytes, cost_s = told["digest"], told["size_bytes"], told["cost_s"]
    try:
        items = base64.b64decode(told["items"], validate=True)
    except binascii.Error:
        raise ManifestError("items are not base64") from None
    if not (isinstance(digest, str) and is_hex64(digest)):
        raise ManifestError("a digest is 64 hex digits")
    if not (type(size_bytes) is int and 0 < size_bytes < 1 << 50):
        raise ManifestError("a size is a positive number of bytes")
    if not (type(cost_s) in (int, float) and math.isfinite(cost_s) and cost_s >= 0):
        raise ManifestError("a cost is a number of seconds")
    if not items or len(items) % DIGEST_BYTES or len(items) > MAX_ITEMS * DIGEST_BYTES:
        raise ManifestError("items are whole digests, at least one")
    return Row(Digest(digest), size_bytes, items, float(cost_s))


def _object(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps({"version": VERSION, "artifacts": rows}).encode()
