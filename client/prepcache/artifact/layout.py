"""The layout: writes the tables and columns of an artifact where its header says.

Bytes go out in large `writev` calls, which hold no GIL, and are asked for piece by piece: what is written
need never be in memory at once.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from prepcache.artifact.header import FILLER, FOLIO_BYTES, Document, GroupSpec, encode
from prepcache.digests import Key, RecipeDigest, entry_key
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


def write_artifact(
    fd: int,
    *,
    recipe: RecipeDigest,
    digests: bytes,
    row_counts: Any,
    costs: Any,
    row_groups: Iterable[Any],
    groups: Sequence[GroupSpec],
    totals: Mapping[str, int],
    bodies: Sequence[Iterable[Any]],
    producer: dict[str, Any],
    observed: str,
    edition: int,
) -> Written:
    """Puts the tables before the columns and writes it all.

    Args:
        totals: as `encode` takes it.
        bodies: of each tensor of the columns, in the order of the file, the bytes: pieces (buffers or
            `FilePart`s) that are asked for when they are written.
    """
    items, rows = len(row_counts), sum(group.rows for group in groups)
    cost_s, key = math.fsum(costs), entry_key(recipe, digests)
    document = Document(recipe, key, items, rows, cost_s, producer, observed, edition, tuple(groups))
    head, spans, size_bytes = encode(document, totals)
    tables = [(digests,), (row_counts,), (costs,), *([row_groups] if len(groups) > 1 else [])]
    names = [name for name in spans if not name.startswith(FILLER)]
    pieces = dict(zip(names, [*tables, *bodies], strict=True))
    laid = (pieces.get(name) or _zeros(span.end - span.begin) for name, span in spans.items())
    _write_all(fd, chain((head,), chain.from_iterable(laid)))
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


_ZEROS = bytes(64 << 10)


def _zeros(count: int) -> list[bytes]:
    return [_ZEROS] * (count // len(_ZEROS)) + [_ZEROS[: count % len(_ZEROS)]]


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
