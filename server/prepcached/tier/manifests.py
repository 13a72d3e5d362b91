"""The manifests of recipes in the bucket: which artifacts have which items.

Objects never change, so each is read once. On the event loop; coding and indexing run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from prepcache.digests import DIGEST_BYTES, Digest
from prepcache.protocol.wire import MAX_STAGED_BYTES
from prepcached.leases import digests
from prepcached.store import scopes
from prepcached.store.queries import chunks
from prepcached.tier.bucket import MAX_LISTED, Absent, Bucket, CouldNotTell, Damaged

LOG = logging.getLogger(__name__)

PREFIX = "manifests/v1"
FRESH_S = 10.0  # how long a manifest that was read counts as the newest
KEPT_ITEMS = 4_000_000
"""Of all recipes together, about 600 MB; beyond that, other recipes than the one asked for are forgotten."""
MAX_OBJECTS = 4096
READ_BYTES = 256 << 20  # of one recipe's rows: 8 million items; objects beyond that are left unread
COMPACTED_AT = 16  # objects of one recipe that are rewritten as one
AT_ONCE = 8  # objects that are read at the same time
TRIES = 4  # readings of a list whose objects are compacted away meanwhile
MAX_OBJECT_BYTES = 32 << 20  # larger objects, of rows of over 500,000 items, are not read
MAX_ROWS = 20_000  # of one object, and of one recipe over all its objects
MAX_ITEMS = 1 << 18  # of one artifact, so that its row always fits into an object
MAX_OBSERVED = 4096  # chunks of observed inputs that one artifact names


class Row(msgspec.Struct, frozen=True):
    """One artifact; items are 32 bytes each, in row order.

    Args:
        edition: raised by `PREPCACHE=refresh`: of an item, the highest edition counts.
        observed: names of the chunks of inputs that its function was seen to read.
    """

    digest: Annotated[Digest, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size_bytes: Annotated[int, Meta(gt=0, le=MAX_STAGED_BYTES)]
    items: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=MAX_ITEMS * DIGEST_BYTES)]
    cost_s: Annotated[float, Meta(ge=0)]
    edition: Annotated[int, Meta(ge=0, lt=1 << 60)] = 0
    observed: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(max_length=MAX_OBSERVED)
    ] = ()

    def __post_init__(self) -> None:
        if len(self.items) % DIGEST_BYTES:
            raise ValueError("items are whole digests")

    @property
    def fits(self) -> bool:
        return len(self.items) <= MAX_ITEMS * DIGEST_BYTES and len(self.observed) <= MAX_OBSERVED


class _Object(msgspec.Struct):
    version: Literal[1]
    artifacts: Annotated[list[Row], Meta(max_length=MAX_ROWS)]


_DECODER = msgspec.json.Decoder(_Object)
"""Made here, not by the first thread that reads a manifest: see `be_known` in protocol/wire.py."""
Index = dict[bytes, tuple[Row, ...]]  # by item, the artifacts of its highest edition; mostly one


def index(rows: Iterable[Row]) -> Index:
    found: Index = {}
    for row in rows:
        alone = (row,)
        for item in digests(row.items):
            others = found.get(item)
            if others is None or row.edition > others[0].edition:
                found[item] = alone
            elif row.edition == others[0].edition:
                found[item] = (*others, row)
    return found


def brings_nothing(row: Row, known: Index) -> bool:
    """Whether all items are in other artifacts, in as new an edition, with the same observed inputs, as those
    of a merged artifact are."""
    observed: set[str] = set()
    for item in digests(row.items):
        others = known.get(item)
        if others is None or others[0].edition < row.edition:
            return False
        observed.update(*(one.observed for one in others))
    return observed.issuperset(row.observed)


def encode(rows: Iterable[Row]) -> list[bytes]:
    """Objects that hold these rows, each small enough to be read."""
    parts: list[list[msgspec.Raw]] = []
    size_bytes = 0
    for row in rows:
        encoded = msgspec.json.encode(row)
        is_full = size_bytes + len(encoded) > MAX_OBJECT_BYTES // 2
        if not parts or is_full or len(parts[-1]) == MAX_ROWS:
            parts.append([])
            size_bytes = 0
        parts[-1].append(msgspec.Raw(encoded))
        size_bytes += len(encoded)
    return [msgspec.json.encode({"version": 1, "artifacts": part}) for part in parts]


def decode(data: bytes) -> list[Row]:
    """The rows of an object; raises Damaged."""
    try:
        return _DECODER.decode(data).artifacts
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"not a manifest of this version ({error})") from None


@dataclass(eq=False)
class Known:
    """What was read of one recipe.

    Args:
        objects: the rows of each object; None: it is not a manifest.
        rows: by digest, without the `lost`: artifacts that the bucket lacks or has damaged, until a new
            object names them.
        tried: until when artifacts are not fetched, since they were or could not be.
    """

    objects: dict[str, list[Row] | None] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    by_item: Index = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    tried: dict[str, float] = field(default_factory=dict)
    read_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def offered(self, items: bytes, now: float) -> list[Row]:
        """The artifacts that have some of these items and may be fetched."""
        rows = {row.digest: row for item in digests(items) for row in self.by_item.get(item, ())}
        return [
            row
            for digest, row in rows.items()
            if digest not in self.lost and self.tried.get(digest, now) <= now
        ]


class Manifests:
    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._clock = clock
        self._known: dict[str, Known] = {}

    async def of(self, recipe: str, *, max_age_s: float = FRESH_S) -> Known:
        """What the bucket has of a recipe, scoped; all methods may raise CouldNotTell."""
        if sum(len(one.by_item) for one in self._known.values()) > KEPT_ITEMS:
            self._known = {name: one for name, one in self._known.items() if name == recipe}
        known = self._known.setdefault(recipe, Known())
        async with known.lock:
            if self._clock() - known.read_at >= max_age_s:
                await self._read(recipe, known)
        return known

    async def named(self) -> set[str]:
        """The artifacts of all recipes; raises Damaged, or Absent, where there may be more."""
        names, found = await self._bucket.names(f"{PREFIX}/"), set[str]()
        for name in names:
            rows = await self._object(name, Known())
            if rows is None or len(names) == MAX_LISTED:
                raise Damaged(name)
            found.update(row.digest for row in rows)
        return found

    async def add(self, recipe: str, rows: Sequence[Row]) -> None:
        """Appends rows, and compacts a manifest of many objects."""
        await self._write(recipe, rows)
        known = await self.of(recipe, max_age_s=0)
        if sum(one is not None for one in known.objects.values()) >= COMPACTED_AT:
            await self.compact(recipe)

    async def compact(self, recipe: str) -> None:
        known = await self.of(recipe, max_age_s=0)
        read = {name: rows for name, rows in known.objects.items() if rows is not None}
        rows = {row.digest: row for part in read.values() for row in part if row.digest not in known.lost}
        if len(read) > 1:
            await self._write(recipe, list(rows.values()))
            await self._bucket.delete(list(read))

    async def _write(self, recipe: str, rows: Sequence[Row]) -> None:
        for data in await asyncio.to_thread(encode, rows):
            await self._bucket.put(f"{_folder(recipe)}/{secrets.token_hex(16)}.json", data)

    async def _read(self, recipe: str, known: Known) -> None:
        for _ in range(TRIES):
            names = await self._bucket.names(_folder(recipe) + "/", MAX_OBJECTS)
            objects, left_bytes = dict[str, list[Row] | None](), READ_BYTES
            try:
                for some in chunks(names, AT_ONCE):
                    read = await asyncio.gather(*(self._object(name, known) for name in some))
                    objects.update(zip(some, read, strict=True))
                    for row in (row for part in read for row in part or ()):
                        left_bytes -= 400 + len(row.items) + 200 * len(row.observed)  # in memory
                    if left_bytes < 0:
                        LOG.warning(
                            "the manifest of recipe %s is too large: the rest is not read", recipe[:12]
                        )
                        break
                break
            except Absent:  # compacted away since it was listed
                continue
        else:
            raise CouldNotTell(f"the manifest of {recipe} changes too quickly to be read")
        for name in objects.keys() - known.objects.keys():
            known.lost.difference_update(row.digest for row in objects[name] or ())
        rows = {row.digest: row for part in objects.values() for row in part or ()}
        there = islice((one for one in rows.items() if one[0] not in known.lost), MAX_ROWS)
        known.objects, known.rows = objects, dict(there)
        known.by_item = await asyncio.to_thread(index, list(known.rows.values()))
        known.read_at = self._clock()

    async def _object(self, name: str, known: Known) -> list[Row] | None:
        if name in known.objects:
            return known.objects[name]
        try:
            return await asyncio.to_thread(decode, await self._bucket.get(name, MAX_OBJECT_BYTES))
        except Damaged as error:
            LOG.warning("%s in the tier is ignored: %s", name, error)
            return None


def _folder(recipe: str) -> str:
    return f"{PREFIX}/{scopes.digest(recipe)}/{scopes.scope_of(recipe).lstrip('.') or 'shared'}"
