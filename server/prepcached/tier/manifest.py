"""One manifest object: the rows of some artifacts of a recipe, as bytes and checked. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prepcache.digests import DIGEST_BYTES, Digest, is_hex64

VERSION = 1
MAX_OBJECT_BYTES = 32 << 20
"""A larger object is not read: rows of about 500,000 items."""
MAX_ROWS = 100_000
"""Of one recipe, over all its objects."""
MAX_ITEMS = 1 << 18
"""Of one artifact, so that its row always fits into an object."""
MAX_OBSERVED = 4096
"""Chunks of observed inputs that one artifact names."""


class ManifestError(ValueError):
    """An object under a manifest's prefix that is not a manifest."""


@dataclass(frozen=True, slots=True)
class Row:
    """One artifact.

    Args:
        digest, size_bytes: of its bytes.
        items: 32 bytes each, in row order.
        cost_s: seconds that its samples took to make.
        edition: raised by `PREPCACHE=refresh`: of an item, the highest edition counts.
        observed: names of the chunks of inputs that its function was seen to read.
    """

    digest: Digest
    size_bytes: int
    items: bytes
    cost_s: float
    edition: int = 0
    observed: tuple[str, ...] = ()

    def each_item(self) -> Iterator[bytes]:
        for start in range(0, len(self.items), DIGEST_BYTES):
            yield self.items[start : start + DIGEST_BYTES]

    @property
    def can_be_told(self) -> bool:
        """Whether it is small enough for a manifest."""
        return len(self.items) <= MAX_ITEMS * DIGEST_BYTES and len(self.observed) <= MAX_OBSERVED


Index = dict[bytes, "Row | tuple[Row, ...]"]
"""By item, the artifacts of its highest edition; mostly one."""


def index(rows: Iterable[Row]) -> Index:
    """Which artifacts have an item."""
    found: Index = {}
    for row in rows:
        for item in row.each_item():
            others = found.get(item)
            if others is None:
                found[item] = row
                continue
            known = others if isinstance(others, tuple) else (others,)
            if row.edition > known[0].edition:
                found[item] = row
            elif row.edition == known[0].edition:
                found[item] = (*known, row)
    return found


def is_told(row: Row, told: Index) -> bool:
    """Whether the bucket has all items of an artifact, as new, and made of the same observed inputs.

    A merged artifact observed what its parts observed, so it is told by them.
    """
    observed: set[str] = set()
    for item in row.each_item():
        others = told.get(item)
        known = others if isinstance(others, tuple) else () if others is None else (others,)
        if not known or known[0].edition < row.edition:
            return False
        observed.update(*(one.observed for one in known))
    return observed.issuperset(row.observed)


def encode(rows: Iterable[Row]) -> Iterator[bytes]:
    """Manifest objects that hold these rows: one, or several where one would be too large to be read."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        told: dict[str, Any] = {
            "digest": row.digest,
            "size_bytes": row.size_bytes,
            "cost_s": row.cost_s,
            "edition": row.edition,
            "observed": row.observed,
            "items": base64.b64encode(row.items).decode(),
        }
        length = len(told["items"]) + 80 * len(row.observed) + 300
        if part and size + length > MAX_OBJECT_BYTES // 2:
            yield _object(part)
            part, size = [], 0
        size += length
        part.append(told)
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


def _row(told: Mapping[str, Any]) -> Row:
    digest, size_bytes, cost_s = told["digest"], told["size_bytes"], told["cost_s"]
    edition, observed = told["edition"], told["observed"]
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
    if not (type(edition) is int and 0 <= edition < 1 << 60):
        raise ManifestError("an edition is a number")
    if not (isinstance(observed, list) and len(observed) <= MAX_OBSERVED and all(map(_is_name, observed))):
        raise ManifestError("observed inputs are names of chunks")
    if not items or len(items) % DIGEST_BYTES or len(items) > MAX_ITEMS * DIGEST_BYTES:
        raise ManifestError("items are whole digests, at least one")
    return Row(Digest(digest), size_bytes, items, float(cost_s), edition, tuple(observed))


def _is_name(told: Any) -> bool:
    return isinstance(told, str) and 0 < len(told) <= 128


def _object(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps({"version": VERSION, "artifacts": rows}).encode()
