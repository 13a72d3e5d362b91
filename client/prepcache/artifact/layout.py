"""The layout: lays the tables and columns of an artifact out, and writes it.

Invariants:
    1. Columns start on their borders (header.py), whatever their sizes: fillers make up for them.
    2. Bytes go out in large `writev` calls, which hold no GIL, and are asked for piece by piece: what is
       written need never be in memory at once.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from prepcache.artifact.columns import ITEM_BYTES
from prepcache.artifact.header import (
    COLUMN_BYTES,
    FILLER,
    FOLIO_BYTES,
    FORMAT_NAME,
    FORMAT_VERSION,
    ITEM_COST,
    ITEM_DIGEST,
    ITEM_ROWS,
    MAPPED_BYTES,
    MAX_HEADER_BYTES,
    PAGE_BYTES,
    ROW_GROUP,
    WAY_OUT,
    ColumnSpec,
    Document,
    GroupSpec,
)
from prepcache.digests import DIGEST_BYTES, Key, RecipeDigest, entry_key
from prepcache.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Written:
    key: Key
    size_bytes: int
    items: int
    rows: int
    cost_s: float


@dataclass(frozen=True, slots=True)
class FilePart:
    """A piece of a tensor that lies in another file."""

    fd: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to be written: its bytes come in pieces (buffers or `FilePart`s), when they are asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[Any]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def tensors_of(column: ColumnSpec, rows: int, total: int, pieces: Iterable[Iterable[Any]]) -> list[Tensor]:
    """A column's tensors, with the pieces of each."""
    places = column.tensors(rows, total)
    return [Tensor(*place, of_it) for place, of_it in zip(places, pieces, strict=True)]  # type: ignore[arg-type]


def write_artifact(
    fd: int,
    *,
    recipe: RecipeDigest,
    digests: bytes,
    row_counts: Any,
    costs: Any,
    row_groups: Any,
    groups: Sequence[GroupSpec],
    bodies: Sequence[Tensor],
    producer: dict[str, Any],
    observed: str,
    edition: int,
) -> Written:
    """Puts the tables before the columns and writes it all."""
    items, rows = len(row_counts), sum(group.rows for group in groups)
    cost_s, key = math.fsum(costs), entry_key(recipe, digests)
    tables = [
        Tensor(ITEM_DIGEST, "U8", (items, DIGEST_BYTES), (digests,)),
        Tensor(ITEM_ROWS, "I64", (items,), (row_counts,)),
        Tensor(ITEM_COST, "F64", (items,), (costs,)),
    ]
    if len(groups) > 1:
        tables.append(Tensor(ROW_GROUP, "U16", (rows,), row_groups))
    document = Document(recipe, key, items, rows, cost_s, producer, observed, edition, tuple(groups))
    head, laid, size_bytes = _encode_header(document, [*tables, *bodies])
    _write_all(fd, chain((head,), *(tensor.pieces for tensor in laid)))
    return Written(key, size_bytes, items, rows, cost_s)


class ColumnNames:
    """Gives columns distinct names: the leaf's path, and the group's number from the second on."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def take(self, group: int, path: str) -> str:
        """A name of which neither it nor its `.offsets` and `.shapes` are taken."""
        base = re.sub(r"[^A-Za-z0-9_.-]", "_", path)[:80].lstrip("_") or "sample"
        base = f"{base}~{group}" if group else base
        name, tries = base, 1
        while not self._used.isdisjoint(_with_parts(name)):
            tries += 1
            name = f"{base}~{group}.{tries}"
        self._used.update(_with_parts(name))
        return name


def _with_parts(name: str) -> tuple[str, str, str]:
    return name, name + ".offsets", name + ".shapes"


def _encode_header(document: Document, tensors: Sequence[Tensor]) -> tuple[bytes, list[Tensor], int]:
    """The first bytes of the file up to the data, the tensors with fillers between them, and its size.

    Raises:
        ArtifactError: the header exceeds its bound.
    """
    text = json.dumps(asdict(document), separators=(",", ":"), allow_nan=False)
    metadata = {"format": FORMAT_NAME, "version": str(FORMAT_VERSION), "document": text}
    raw, pages = b"", 0
    while 8 + len(raw) > pages * PAGE_BYTES:  # where columns begin depends on how many pages the header has
        pages = -(-(8 + len(raw)) // PAGE_BYTES)
        laid, entries, end = _laid_out(tensors, pages * PAGE_BYTES)
        raw = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    if len(raw) > MAX_HEADER_BYTES - PAGE_BYTES:
        raise ArtifactError(
            f"the header has {len(raw)} bytes, over the limit of {MAX_HEADER_BYTES}: "
            f"too many different trees or observed inputs ({WAY_OUT})"
        )
    raw = raw.ljust(pages * PAGE_BYTES - 8)
    return len(raw).to_bytes(8, "little") + raw, laid, end


_ZEROS = bytes(64 << 10)


def _laid_out(tensors: Sequence[Tensor], start: int) -> tuple[list[Tensor], dict[str, Any], int]:
    """The tensors with fillers, their entries in the header, and their end, if they begin at `start`."""
    laid: list[Tensor] = []
    entries: dict[str, Any] = {}
    end = start
    for tensor in tensors:
        both = [tensor]
        if gap := -end % _border_bytes(tensor):
            both.insert(0, Tensor(f"{FILLER}{len(laid)}", "U8", (gap,), _zeros(gap)))
        for one in both:
            offsets = [end - start, end - start + one.size_bytes]
            entries[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": offsets}
            end += one.size_bytes
        laid += both
    return laid, entries, end


def _zeros(count: int) -> list[bytes]:
    return [_ZEROS] * (count // len(_ZEROS)) + [_ZEROS[: count % len(_ZEROS)]]


def _border_bytes(tensor: Tensor) -> int:
    """A tensor begins on a multiple of this: columns of many files are mapped as one array by their
    pages, and by folios where they are 8 of them or more.
    """
    size_bytes = tensor.size_bytes
    if size_bytes < MAPPED_BYTES:
        return COLUMN_BYTES
    return PAGE_BYTES if size_bytes < 8 * FOLIO_BYTES else FOLIO_BYTES


_MAX_PIECES = 512
"""Buffers of one writev; the kernel takes 1024."""
_BATCH_BYTES = 8 * FOLIO_BYTES
"""Bytes of one writev: pieces that are made on demand are let go after it."""


class _Output:
    """A file that is written from its start, without the GIL.

    NOTE [ Large folios ]
        The page cache takes folios as large as one write, as far as both lie on a border of that size, and a
        map has one entry for a folio of 2 MiB instead of 512: random rows are copied a sixth faster. So calls
        end on borders of 2 MiB.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._batch: list[memoryview] = []
        self._position = 0  # behind the batch
        self._limit = _BATCH_BYTES
        self._read = memoryview(b"")

    def add(self, view: memoryview) -> None:
        """Puts bytes at the end; they are read until the next `flush`."""
        while view.nbytes:
            taken = view[: self._limit - self._position]
            view = view[taken.nbytes :]
            self._batch.append(taken)
            self._position += taken.nbytes
            if self._position == self._limit or len(self._batch) == _MAX_PIECES:
                self.flush()

    def copy(self, part: FilePart) -> None:
        """Puts a piece of another file at the end; what is read of it at a time has its place in a folio."""
        if not self._read:
            self._read = memoryview(bytearray(FOLIO_BYTES))
        begin = part.begin
        while begin < part.end:
            place = self._position % FOLIO_BYTES
            self._limit = self._position - place + FOLIO_BYTES
            length = os.preadv(part.fd, [self._read[place : place + part.end - begin]], begin)
            if length == 0:
                raise ArtifactError(f"a file ends before byte {part.end}: it was cut while it was read")
            begin += length
            self.add(self._read[place : place + length])

    def flush(self) -> None:
        first = 0
        while first < len(self._batch):
            written = os.writev(self._fd, self._batch[first:])
            while first < len(self._batch) and written >= self._batch[first].nbytes:
                written -= self._batch[first].nbytes
                first += 1
            if written:
                self._batch[first] = self._batch[first][written:]
        self._batch = []
        self._limit = self._position - self._position % _BATCH_BYTES + _BATCH_BYTES


def copy(fd: int, to_fd: int, size_bytes: int) -> None:
    """Copies the first bytes of a file into an empty one. Raises ArtifactError where it is shorter."""
    _write_all(to_fd, [FilePart(fd, 0, size_bytes)])


def _write_all(fd: int, pieces: Iterable[Any]) -> None:
    output = _Output(fd)
    for piece in pieces:
        if isinstance(piece, FilePart):
            output.copy(piece)
        elif len(piece):
            output.add(memoryview(piece).cast("B"))
    output.flush()
