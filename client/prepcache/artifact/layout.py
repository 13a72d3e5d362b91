"""The layout: writes the tables and columns of an artifact where its header says.

Bytes are asked for piece by piece: what is written need never be in memory at once.
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


def copy(fd: int, to_fd: int, size_bytes: int) -> None:
    """Copies the first bytes of a file into an empty one. Raises ArtifactError where it is shorter."""
    _write_all(to_fd, [FilePart(fd, 0, size_bytes)])


def _write_all(fd: int, pieces: Iterable[Any]) -> None:
    """Writes pieces end to end, from the file's start.

    NOTE [ Large folios ]
        The page cache takes folios as large as one write, as far as both lie on a border of that size, and a
        map has one entry for a folio of 2 MiB instead of 512: random rows are copied a sixth faster. So calls
        end on borders of 2 MiB.
    """
    folio, filled = memoryview(bytearray(FOLIO_BYTES)), 0
    for piece in pieces:
        done, size_bytes = 0, _size_bytes(piece)
        while done < size_bytes:
            done_now = _put(piece, done, folio[filled : filled + size_bytes - done])
            done, filled = done + done_now, filled + done_now
            if filled == FOLIO_BYTES:
                write(fd, folio)
                filled = 0
    write(fd, folio[:filled])


def _size_bytes(piece: Any) -> int:
    return piece.end - piece.begin if isinstance(piece, FilePart) else memoryview(piece).nbytes


def _put(piece: Any, start: int, into: memoryview) -> int:
    """Puts bytes of a piece from `start` on into a buffer; how many."""
    if not isinstance(piece, FilePart):
        into[:] = memoryview(piece).cast("B")[start : start + len(into)]
        return len(into)
    if length := os.preadv(piece.fd, [into], piece.begin + start):
        return length
    raise ArtifactError(f"a file ends before byte {piece.end}: it was cut while it was read")


def write(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.writev(fd, [view]) :]
