"""The artifact format: a safetensors file of columns, and the complete check of a header before any view.

    8 bytes   header length, little-endian
    header    JSON, padded with spaces so that the data start on a page border
    data      tensors, each on 64 bytes; on a page from 32 KiB on; on 2 MiB of the file from 16 MiB on;
              with `_fill.N` tensors in the gaps:
              _items.digest U8[m,32] · _items.row_count I64[m] · _items.cost_s F64[m]      the item table
              _rows.group U16[n]                                  only where there are several groups
              NAME [rows, ...]                                    a dense column
              NAME [total] · NAME.offsets I64[rows+1] · NAME.shapes I64[rows,ndim]         a ragged one
                                                                  (shapes from two axes on)
    `__metadata__` holds strings: "format", "version", and "document": a `Document` in JSON. Its observed
    inputs are one text, base64(zlib(msgpack of [[kind, name, digest], ...])), "" for none.

Invariants:
    1. `read_header` returns only if the header is, byte for byte, the one that `encode` makes of its
       document, and the file as long as that says. So every tensor has the dtype, the shape and the place
       that it must have, and every later view is inside the file. A change of `encode` raises the version.
    2. The item table's digests are distinct and its row counts add up to the rows.
    3. What rows are indexed by (row groups, offsets, shapes) is proved by `reader.check_rows`.
    4. Reads go through `pread`: a file that shrinks is an `ArtifactError` here, never a SIGBUS.

Source: the safetensors format, https://huggingface.co/docs/safetensors (header, offsets, no holes).
"""

from __future__ import annotations

import base64
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from prepcache.artifact import columns, sample_tree
from prepcache.artifact.columns import ITEM_BYTES, Array, Leaf
from prepcache.digests import DIGEST_BYTES, Key, RecipeDigest, entry_key, is_hex64
from prepcache.errors import ArtifactError

FORMAT_NAME = "prepcache artifact"
FORMAT_VERSION = 5
"""Rises when a file written before could be read wrongly; pinned by tests/golden."""

PAGE_BYTES = 4096
FOLIO_BYTES = 2 << 20
"""What a processor maps with one entry of its tables: NOTE [ Large folios ] in writer.py."""
COLUMN_BYTES = 64
"""A cache line: vectorised copies of a column start aligned."""
MAPPED_BYTES = 8 * PAGE_BYTES
"""A column from here on begins on a page, so that readers can map it beside those of other artifacts. They
copy smaller ones: a page for each would nearly double small artifacts with many columns."""
MAX_HEADER_BYTES = 8 << 20
"""Bounds what parsing costs (25 bytes of objects for a byte of hostile JSON); safetensors allows 100 MB."""
MAX_GROUPS = 4096
MAX_ELEMENTS = 1 << 48
"""Of a row, and of one axis: products of checked sizes fit 64 bits."""
MAX_ITEM_COST_S = 1e9
"""30 years for one item: the sum of any artifact's, merged ones too, is an amount that messages carry."""

MAX_OBSERVED_BYTES = 32 << 20
"""Of the observed inputs' text, unpacked."""
MAX_INPUTS = 1 << 18
WAY_OUT = "if the function opens that many files, put their paths in the items"

ITEM_DIGEST, ITEM_ROWS, ITEM_COST = "_items.digest", "_items.row_count", "_items.cost_s"
ROW_GROUP = "_rows.group"
FILLER = "_fill."
_MALFORMED = (LookupError, TypeError, ValueError, RecursionError, OverflowError, msgspec.ValidationError)

Count = Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)]
Shape = Annotated[tuple[Count, ...], Meta(max_length=columns.MAX_NDIM + 2)]
Observed = Annotated[list[tuple[str, bytes, str]], Meta(max_length=MAX_INPUTS)]
Tensor = tuple[str, str, tuple[int, ...]]
"""Its name, dtype and shape."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One column as the document describes it; `shape` is that of every row, or None if it is ragged.

    `total` is how many values a ragged column has.
    """

    name: Annotated[str, Meta(pattern="^[^_]", max_length=200)]
    leaf: Leaf
    shape: Shape | None
    total: Count

    def tensors(self, rows: int) -> list[Tensor]:
        """The tensors it consists of, in the order of the file."""
        if self.leaf.kind == "none":
            return []
        tag, dtype, has_byte_axis = columns.storage(self.leaf)
        tail = (dtype.itemsize,) if has_byte_axis else ()
        if self.shape is not None:
            return [(self.name, tag, (rows, *self.shape, *tail))]
        tables: list[Tensor] = [(self.name + ".offsets", "I64", (rows + 1,))]
        if self.leaf.ndim >= 2:
            tables.append((self.name + ".shapes", "I64", (rows, self.leaf.ndim)))
        return [*tables, (self.name, tag, (self.total, *tail))]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Rows that share one tree: the tree, and a column for each leaf."""

    rows: Annotated[int, Meta(ge=1, le=MAX_ELEMENTS)]
    tree: sample_tree.Tree
    columns: tuple[ColumnSpec, ...]


@dataclass(frozen=True)
class Document:
    """What an artifact says of itself, in its metadata."""

    recipe: RecipeDigest
    key: Key
    items: Count
    producer: dict[str, str | int | float]
    observed: str = field(repr=False)
    edition: Count
    groups: Annotated[tuple[GroupSpec, ...], Meta(max_length=MAX_GROUPS)]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)


msgspec.json.Decoder(Document)  # as `be_known` in protocol/wire.py


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies: absolute offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header(Document):
    """What a file says of itself, where its tensors lie, and its item table."""

    spans: dict[str, Span]
    size_bytes: int
    item_digests: Array
    first_row: Array
    row_count: Array
    item_cost: Array

    @property
    def cost_s(self) -> float:
        return float(self.item_cost.sum())

    @property
    def inputs(self) -> list[dict[str, str]]:
        """Unpacked each time, and checked only then: ArtifactError where they are malformed."""
        return unpack_observed(self.observed)


def pack_observed(observed: Sequence[Mapping[str, str]]) -> str:
    """Kind, name and digest of each, as one text. Raises ArtifactError where they are too many."""
    if not observed:
        return ""
    rows = [(one["kind"], one["name"].encode("utf-8", "surrogatepass"), one["digest"]) for one in observed]
    raw = msgspec.msgpack.encode(rows)
    if len(rows) > MAX_INPUTS or len(raw) > MAX_OBSERVED_BYTES:
        raise ArtifactError(f"too many observed inputs: {len(observed)} ({WAY_OUT})")
    return base64.b64encode(zlib.compress(raw, 1)).decode()


def unpack_observed(packed: str) -> list[dict[str, str]]:
    """Takes observed inputs apart. Raises ArtifactError for what `pack_observed` does not give."""
    if not packed:
        return []
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(base64.b64decode(packed, validate=True), MAX_OBSERVED_BYTES)
        rows = msgspec.msgpack.decode(raw, type=Observed)
        names = [name.decode("utf-8", "surrogatepass") for _, name, _ in rows]
    except (zlib.error, ValueError) as error:
        raise ArtifactError(f"the observed inputs cannot be read: {error}") from None
    if not inflate.eof or inflate.unused_data:
        raise ArtifactError("the observed inputs cannot be read: they are cut, or too many")
    found = zip(rows, names, strict=True)
    return [{"kind": kind, "name": name, "digest": digest} for (kind, _, digest), name in found]


def read_header(fd: int, *, size_bytes: int | None = None, max_items: int = MAX_ELEMENTS) -> Header:
    """Reads and checks the header and the item table, held whole in memory, of an open regular file.

    Raises ArtifactError: it is no whole, valid artifact of this size, if one is given; what is wrong.
    """
    size = os.fstat(fd).st_size
    if size_bytes is not None and size != size_bytes:
        raise ArtifactError(f"the file has {size} bytes instead of {size_bytes}: it is incomplete")
    raw_length = pread(fd, 0, 8) if size >= 8 else b""
    length = int.from_bytes(raw_length, "little")
    if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise ArtifactError(f"header of {length} bytes in a file of {size}: truncated, or not an artifact")
    raw = pread(fd, 0, 8 + length)
    try:
        document = _parse(raw[8:])
        head, spans = encode(document)
    except _MALFORMED as error:
        raise ArtifactError(f"the header cannot be read: {type(error).__name__}: {error}") from None
    if head != raw:
        raise ArtifactError("the header is not the one that its document gives: damaged, or no artifact")
    if (end := max(span.end for span in spans.values())) != size:
        raise ArtifactError(f"the tensors end at byte {end}, the file at {size}: truncated")
    if document.items > max_items:
        raise ArtifactError(f"{document.items} items: the limit is {max_items}")
    try:
        return _read(fd, spans, document, size)
    except _MALFORMED as error:
        raise ArtifactError(f"the item table cannot be read: {error}") from None


def pread(fd: int, begin: int, count: int) -> bytes:
    """Exactly `count` bytes from `begin`, or an ArtifactError: the file may shrink under us."""
    parts = []
    while count:
        part = os.pread(fd, min(count, 1 << 30), begin)
        if not part:
            raise ArtifactError(f"the file ends before byte {begin + count}: it was cut while it was read")
        parts.append(part)
        begin += len(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_array(fd: int, span: Span, dtype: str, start: int = 0, stop: int | None = None) -> Array:
    """Elements `start:stop` (of the flattened tensor) of a span, by pread."""
    item = np.dtype(dtype).itemsize
    stop = (span.end - span.begin) // item if stop is None else stop
    return np.frombuffer(pread(fd, span.begin + start * item, (stop - start) * item), dtype)


def _parse(raw: bytes) -> Document:
    header = json.loads(raw)
    strings = header.get("__metadata__") if type(header) is dict else None
    if type(strings) is not dict or strings.get("format") != FORMAT_NAME:
        raise ArtifactError("a safetensors file, but not an artifact of prepcache")
    if strings.get("version") != str(FORMAT_VERSION):
        raise ArtifactError(
            f"artifact format {str(strings.get('version'))[:20]!r}; this prepcache reads {FORMAT_VERSION}"
        )
    document = msgspec.convert(json.loads(strings["document"]), Document)
    if not is_hex64(document.recipe):
        raise ValueError("the recipe must be 64 hex digits")
    for group in document.groups:
        if sample_tree.count_leaves(group.tree) != len(group.columns):
            raise ValueError("a group's columns do not match the leaves of its tree")
        for column in group.columns:
            _check_column(column)
    return document


def encode(document: Document) -> tuple[bytes, dict[str, Span]]:
    """The bytes of the file up to the data, and where the tensors and fillers lie, in order."""
    text = json.dumps(msgspec.to_builtins(document), separators=(",", ":"), allow_nan=False)
    strings = {"format": FORMAT_NAME, "version": str(FORMAT_VERSION), "document": text}
    raw, start = b"", 0
    while 8 + len(raw) > start:  # where columns begin depends on how many pages the header has
        start = -(-(8 + len(raw)) // PAGE_BYTES) * PAGE_BYTES
        spans = _laid_out(document, start)
        entries = {
            name: {"dtype": at.dtype, "shape": at.shape, "data_offsets": (at.begin - start, at.end - start)}
            for name, at in spans.items()
        }
        raw = json.dumps({"__metadata__": strings, **entries}, separators=(",", ":")).encode()
    if len(raw) > MAX_HEADER_BYTES - PAGE_BYTES:
        raise ArtifactError(
            f"the header has {len(raw)} bytes, over the limit of {MAX_HEADER_BYTES}: "
            f"too many different trees or observed inputs ({WAY_OUT})"
        )
    return (start - 8).to_bytes(8, "little") + raw.ljust(start - 8), spans


def _laid_out(document: Document, start: int) -> dict[str, Span]:
    """Every tensor, with fillers before those that would lie off their border."""
    tensors: list[Tensor] = [
        (ITEM_DIGEST, "U8", (document.items, DIGEST_BYTES)),
        (ITEM_ROWS, "I64", (document.items,)),
        (ITEM_COST, "F64", (document.items,)),
    ]
    if len(document.groups) > 1:
        tensors.append((ROW_GROUP, "U16", (document.rows,)))
    for group in document.groups:
        tensors += chain.from_iterable(column.tensors(group.rows) for column in group.columns)
    spans: dict[str, Span] = {}
    end = start
    for name, tag, shape in tensors:
        size_bytes = math.prod(shape) * ITEM_BYTES[tag]
        if gap := -end % _border_bytes(size_bytes):
            spans[f"{FILLER}{len(spans)}"] = Span("U8", (gap,), end, end + gap)
            end += gap
        if name in spans:
            raise ValueError("two columns are named alike")
        spans[name] = Span(tag, shape, end, end + size_bytes)
        end += size_bytes
    return spans


def _border_bytes(size_bytes: int) -> int:
    """A tensor begins on a multiple of this: columns of many files are mapped as one array by their pages,
    and by folios where they are 8 of them or more."""
    if size_bytes < MAPPED_BYTES:
        return COLUMN_BYTES
    return PAGE_BYTES if size_bytes < 8 * FOLIO_BYTES else FOLIO_BYTES


def _read(fd: int, spans: dict[str, Span], document: Document, size: int) -> Header:
    items, rows, recipe = document.items, document.rows, document.recipe
    digests = read_array(fd, spans[ITEM_DIGEST], "u1").reshape(items, DIGEST_BYTES)
    counts = read_array(fd, spans[ITEM_ROWS], "<i8")
    first_row, costs = _check_items(digests, counts, rows), read_array(fd, spans[ITEM_COST], "<f8")
    if not ((costs >= 0) & (costs <= MAX_ITEM_COST_S)).all():
        raise ValueError("a cost is negative, not a number, or over 30 years")
    if entry_key(recipe, digests.tobytes()) != document.key:
        raise ValueError("the key does not match the recipe and items")
    return Header(**vars(document), spans=spans, size_bytes=size, item_digests=digests, first_row=first_row,
                  row_count=counts, item_cost=costs)  # fmt: skip


def _check_column(column: ColumnSpec) -> None:
    (kind, dtype, ndim), shape = column.leaf, column.shape
    columns.storage(column.leaf)  # refuses dtypes that it does not know
    if kind in columns.VALUE_KINDS:
        is_fitting = ndim > 0 if shape is None else len(shape) == ndim
        is_fitting = is_fitting and bool(dtype) and (kind != "scalar" or ndim == 0)
    else:
        is_fitting = shape == (None if kind in columns.BYTE_KINDS else ())
        is_fitting = is_fitting and kind in columns.KINDS and not dtype and ndim == 0
    # With 1 in place of 0, too: every product of sizes fits 64 bits.
    if not is_fitting or math.prod(max(size, 1) for size in shape or ()) > MAX_ELEMENTS:
        raise ValueError(f"no sample has a {kind[:40]!r} column with {ndim} axes and shape {str(shape)[:80]}")


def _check_items(digests: Array, counts: Array, rows: int) -> Array:
    """Proves the item table, and gives each item's first row."""
    items = len(counts)
    if items and (counts.min() < 0 or counts.max() > rows):
        raise ValueError("an item's row count is out of range")
    past = np.cumsum(counts)
    if (int(past[-1]) if items else 0) != rows or (past[1:] < past[:-1]).any():
        raise ValueError("the items' row counts do not add up to the rows")
    if has_twice(digests):
        raise ValueError("duplicate item in the item table")
    return past - counts


def has_twice(digests: Array) -> bool:
    """Whether two of the digests (`uint8[n, 32]`) are equal."""
    return bool(sort_digests(np.ascontiguousarray(digests).view("<u8"))[1].any())


def sort_digests(words: Array) -> tuple[Array, Array]:
    """A stable order of digests (`uint64[n, 4]`), and of each but the first whether it equals the last."""
    order = np.argsort(words[:, 0], kind="stable")
    prefix = words[order, 0]
    is_same = prefix[1:] == prefix[:-1]
    at = np.flatnonzero(is_same)
    if len(at) and not (words[order[at]] == words[order[at + 1]]).all():
        # Different digests with 8 bytes in common: equal ones need not be neighbours yet.
        order = np.lexsort(words.T[::-1])
        is_same = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    return order, is_same
