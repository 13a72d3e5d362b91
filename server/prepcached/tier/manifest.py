"""One manifest object: the rows of some artifacts of a recipe, as bytes and checked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from prepcache.digests import DIGEST_BYTES, Digest

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


class Row(msgspec.Struct, frozen=True):
    """One artifact.

    Args:
        digest, size_bytes: of its bytes.
        items: 32 bytes each, in row order.
        cost_s: seconds that its samples took to make.
        edition: raised by `PREPCACHE=refresh`: of an item, the highest edition counts.
        observed: names of the chunks of inputs that its function was seen to read.
    """

    digest: Annotated[Digest, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size_bytes: Annotated[int, Meta(gt=0, lt=1 << 50)]
    items: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=MAX_ITEMS * DIGEST_BYTES)]
    cost_s: Annotated[float, Meta(ge=0)]
    edition: Annotated[int, Meta(ge=0, lt=1 << 60)] = 0
    observed: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(max_length=MAX_OBSERVED)
    ] = ()

    def __post_init__(self) -> None:
        if len(self.items) % DIGEST_BYTES:
            raise ValueError("items are whole digests")

    def each_item(self) -> Iterator[bytes]:
        for start in range(0, len(self.items), DIGEST_BYTES):
            yield self.items[start : start + DIGEST_BYTES]

    @property
    def can_be_told(self) -> bool:
        """Whether it is small enough for a manifest."""
        return len(self.items) <= MAX_ITEMS * DIGEST_BYTES and len(self.observed) <= MAX_OBSERVED


class _Object(msgspec.Struct):
    version: Literal[1]
    artifacts: Annotated[list[Row], Meta(max_length=MAX_ROWS)]


Index = dict[bytes, tuple[Row, ...]]
"""By item, the artifacts of its highest edition; mostly one."""


def index(rows: Iterable[Row]) -> Index:
    """Which artifacts have an item."""
    found: Index = {}
    for row in rows:
        alone = (row,)
        for item in row.each_item():
            others = found.get(item)
            if others is None or row.edition > others[0].edition:
                found[item] = alone
            elif row.edition == others[0].edition:
                found[item] = (*others, row)
    return found


def is_told(row: Row, told: Index) -> bool:
    """Whether others are told of all items of an artifact, in as new an edition, and of the same observed
    inputs.

    A merged artifact observed what its parts observed, so it is told by them.
    """
    observed: set[str] = set()
    for item in row.each_item():
        others = told.get(item)
        if others is None or others[0].edition < row.edition:
            return False
        observed.update(*(one.observed for one in others))
    return observed.issuperset(row.observed)


def encode(rows: Iterable[Row]) -> list[bytes]:
    """Manifest objects that hold these rows: one, or several where one would be too large to be read."""
    parts: list[list[msgspec.Raw]] = []
    size_bytes = 0
    for row in rows:
        encoded = msgspec.json.encode(row)
        if not parts or size_bytes + len(encoded) > MAX_OBJECT_BYTES // 2:
            parts.append([])
            size_bytes = 0
        parts[-1].append(msgspec.Raw(encoded))
        size_bytes += len(encoded)
    return [msgspec.json.encode({"version": 1, "artifacts": part}) for part in parts]


def decode(data: bytes, max_artifact_bytes: int) -> list[Row]:
    """The rows of an object.

    Args:
        data: the object; at most `MAX_OBJECT_BYTES`.
        max_artifact_bytes: artifacts that say they are larger are left out: no store could take them.

    Raises:
        ManifestError: it is not a manifest of this version.
    """
    try:
        found = msgspec.json.decode(data, type=_Object)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError(f"not a manifest of this version ({error})") from None
    return [row for row in found.artifacts if row.size_bytes <= max_artifact_bytes]
