"""The layout: lays the tables and columns of an artifact out, and writes it.

Invariants:
    1. Columns start on their borders (`format`), whatever their sizes: fillers make up for them.
    2. Bytes go out in large `writev` calls, which hold no GIL, and are asked for piece by piece: what is
       written need never be in memory at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prepcache.artifact.columns import ITEM_BYTES
from prepcache.artifact.format import (
    COLUMN_BYTES,
    FILLER,
    FORMAT_NAME,
    FORMAT_VERSION,
    ITEM_COST,
    ITEM_DIGEST,
    ITEM_ROWS,
    MAX_HEADER_BYTES,
    PAGE_BYTES,
    ROW_GROUP,
    ColumnSpec,
    GroupSpec,
)
from prepcache.digests import DIGEST_BYTES, Key, RecipeDigest, entry_key
from prepcache.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    key: Key
    size_bytes: int
    items: int
    rows: int
    cost_s: float


@dataclass(frozen=True, slots=True)
class FilePart:
    """A piece of a tensor that lies in another file: copied by the kernel, never in our memory."""

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
    observed: list[dict[str, Any]],
    edition: int,
) -> Written:
    """Puts the tables before the columns and writes it all; shared by the writer and the merge."""
    items, rows = len(row_counts), sum(group.rows for group in groups)
    cost_s = math.fsum(costs)
    key = entry_key(recipe, digests)
    tables = [
        Tensor(ITEM_DIGEST, "U8", (items, DIGEST_BYTES), (digests,)),
        Tensor(ITEM_ROWS, "I64", (items,), (row_counts,)),
        Tensor(ITEM_COST, "F64", (items,), (costs,)),
    ]
    if len(groups) > 1:
        tables.append(Tensor(ROW_GROUP, "U16", (rows,), row_groups))
    document = {
        "recipe": recipe,
        "key": key,
        "items": items,
        "rows": rows,
        "cost_s": cost_s,
        "producer": producer,
        "observed": observed,
        "edition": edition,
        "groups": [
            {"rows": group.rows, "tree": group.tree, "columns": [_column_entry(c) for c in group.columns]}
            for group in groups
        ],
    }
    head, laid, size_bytes = _encode_header(document, [*tables, *bodies])
    _write_all(fd, _pieces(head, laid))
    return Written(key, size_bytes, items, rows, cost_s)


def _pieces(head: bytes, laid: Sequence[Tensor]) -> Iterator[Any]:
    yield head
    for tensor in laid:
        yield from tensor.pieces


class ColumnNames:
    """Gives columns readable, distinct names: the leaf's path, and the group's number from the second on."""

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


def _column_entry(spec: ColumnSpec) -> dict[str, Any]:
    """A column as the document holds it."""
    shape = None if spec.shape is None else list(spec.shape)
    return {
        "name": spec.name,
        "kind": spec.leaf.kind,
        "dtype": spec.leaf.dtype,
        "ndim": spec.leaf.ndim,
        "shape": shape,
    }


def _encode_header(document: dict[str, Any], tensors: Sequence[Tensor]) -> tuple[bytes, list[Tensor], int]:
    """Lays the tensors out.

    Returns:
        The first bytes of the file up to the data, the tensors with fillers between them, the file's size.

    Raises:
        ArtifactError: the header exceeds its bound.
    """
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    entries: dict[str, Any] = {
        "__metadata__": {"format": FORMAT_NAME, "version": str(FORMAT_VERSION), "document": text}
    }
    laid: list[Tensor] = []
    position = 0
    for tensor in tensors:
        if gap := -position % _border_bytes(tensor):
            filler = Tensor(f"{FILLER}{len(laid)}", "U8", (gap,), (bytes(gap),))
            entries[filler.name] = _entry(filler, position)
            laid.append(filler)
            position += gap
        entries[tensor.name] = _entry(tensor, position)
        laid.append(tensor)
        position += tensor.size_bytes
    raw = json.dumps(entries, separators=(",", ":")).encode()
    if len(raw) > MAX_HEADER_BYTES - PAGE_BYTES:
        raise ArtifactError(
            f"a header of {len(raw)} bytes, over {MAX_HEADER_BYTES}: "
            "too many different trees or observed inputs"
        )
    raw += b" " * (-(8 + len(raw)) % PAGE_BYTES)
    return len(raw).to_bytes(8, "little") + raw, laid, 8 + len(raw) + position


def _border_bytes(tensor: Tensor) -> int:
    """Where a tensor may begin: on a multiple of this. Rows that divide a page in whole begin alike in every
    file, so that the columns of many files can be mapped as one array (`windows`)."""
    row_bytes = math.prod(tensor.shape[1:]) * ITEM_BYTES[tensor.dtype]
    return max(COLUMN_BYTES, math.gcd(PAGE_BYTES, row_bytes)) if len(tensor.shape) > 1 else COLUMN_BYTES


def _entry(tensor: Tensor, position: int) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "data_offsets": [position, position + tensor.size_bytes],
    }


_MAX_PIECES = 512
"""Buffers of one writev; the kernel takes 1024."""
_BATCH_BYTES = 16 << 20
"""Bytes of one writev: pieces that are made on demand are let go after it."""
_DIRECT_BYTES = 256 << 10
"""Less than this is written as it is: NOTE [ Small folios ]."""
_READ_BYTES = 1 << 20
"""Of a file that the kernel does not copy, so much is read at a time."""


def _write_all(fd: int, pieces: Iterable[Any]) -> None:
    """Writes buffers to a descriptor, without the GIL, at the descriptor's position.

    NOTE [ Small folios ]
        The page cache takes folios as large as one write. In a virtual machine large ones were dear: 0.9 to
        2.5 s of processor time a GB to write, beside 0.3 by 64 KiB, and epochs over them ran at 0.58 of the
        limit, beside 0.81 (W3 of the benchmarks). A write call for each 64 KiB would ask for the GIL each
        time. So buffers go to memory that is a file, and from there by `sendfile`, which writes what its
        pipe holds, 64 KiB, and is one call.
    """
    with contextlib.ExitStack() as stack:
        _write_batches(fd, pieces, stack)


def _write_batches(fd: int, pieces: Iterable[Any], stack: contextlib.ExitStack) -> None:
    bounce: int | None = None
    batch: list[memoryview] = []
    size = 0

    def flush() -> None:
        nonlocal bounce
        if size < _DIRECT_BYTES:
            _flush(fd, batch)
            return
        if bounce is None:
            bounce = _memory_file(stack)
        if bounce < 0:
            _flush(fd, batch)
            return
        os.lseek(bounce, 0, os.SEEK_SET)
        _flush(bounce, batch)
        _copy(fd, FilePart(bounce, 0, size))

    for piece in pieces:
        if isinstance(piece, FilePart):
            flush()
            batch, size = [], 0
            _copy(fd, piece)
        elif len(piece):
            whole = memoryview(piece).cast("B")
            for start in range(0, whole.nbytes, _BATCH_BYTES):
                view = whole[start : start + _BATCH_BYTES]
                if len(batch) == _MAX_PIECES or size + view.nbytes > _BATCH_BYTES:
                    flush()
                    batch, size = [], 0
                batch.append(view)
                size += view.nbytes
    flush()


def _memory_file(stack: contextlib.ExitStack) -> int:
    """A file in memory, closed by the stack; -1 where none can be made."""
    try:
        fd = os.memfd_create("prepcache-write")
    except OSError:
        return -1
    stack.callback(os.close, fd)
    return fd


def _copy(fd: int, part: FilePart) -> None:
    position = part.begin
    while position < part.end:
        left = part.end - position
        try:
            copied = os.sendfile(fd, part.fd, position, min(left, 1 << 30))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            # Not every filesystem can be written from a pipe, and not every sandbox knows the call.
            copied = os.write(fd, os.pread(part.fd, min(left, _READ_BYTES), position))
        if copied == 0:
            raise ArtifactError(f"a file ends before byte {part.end}: it was cut while it was read")
        position += copied


def _flush(fd: int, batch: list[memoryview]) -> None:
    first = 0
    while first < len(batch):
        written = os.writev(fd, batch[first:])
        while first < len(batch) and written >= batch[first].nbytes:
            written -= batch[first].nbytes
            first += 1
        if written:
            batch[first] = batch[first][written:]
