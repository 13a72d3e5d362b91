"""The writer: collects the samples of some items in memory, then writes them as one artifact.

Invariants:
    1. `add` takes all samples of an item or, raising SampleError, none. After anything else that was raised
       there (an interrupt), a writer is of no use.
    2. What is collected is a copy: the preprocessing function may reuse its buffers.
    3. A sample costs its copy and a constant: nothing is built per sample that the file does not hold. What
       is too much for memory may lie in a file meanwhile (`spill`).
    4. Bytes are asked for piece by piece when they are written, where the header says.
"""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from prepcache.artifact import columns, sample_tree
from prepcache.artifact.columns import Leaf
from prepcache.artifact.header import (
    FILLER,
    FOLIO_BYTES,
    MAX_GROUPS,
    MAX_HEADER_BYTES,
    MAX_ITEM_COST_S,
    ColumnSpec,
    Document,
    GroupSpec,
    encode,
    pack_observed,
)
from prepcache.digests import DIGEST_BYTES, Key, RecipeDigest, entry_key
from prepcache.errors import ArtifactError, SampleError

_COLUMN_HEADER_BYTES = 1200
"""At most what the header says of one column: three tensors, three fillers, and itself."""


class Writer:
    """Collects samples of one recipe.

    Args:
        edition: how many refreshes came before; see index/recipe_index.py.
    """

    def __init__(self, recipe: RecipeDigest, edition: int = 0) -> None:
        self.recipe = recipe
        self.edition = edition
        self._digests: dict[bytes, None] = {}
        self._row_counts = array("q")
        self._costs = array("d")
        self._row_groups = array("H")
        self._groups: dict[sample_tree.Signature, _Group] = {}
        self._tree_bytes = 0

    @property
    def items(self) -> int:
        return len(self._digests)

    @property
    def rows(self) -> int:
        return len(self._row_groups)

    @property
    def nbytes(self) -> int:
        """Bytes that are collected; the file has these and a header."""
        held: int = sum(column.nbytes for group in self._groups.values() for column in group.columns)
        return held + self.items * (DIGEST_BYTES + 16) + self.rows * 2

    def add(self, item_digest: bytes, samples: Sequence[Any], cost_s: float) -> None:
        """Takes the samples of an item that was not added before, and the seconds that they took.

        Raises:
            SampleError: no column can hold a sample; the message holds the path of the leaf.
        """
        if len(item_digest) != DIGEST_BYTES or item_digest in self._digests:
            raise ValueError("an item digest must have 32 bytes and be added once")
        self._row_counts.append(self._take(samples))
        self._costs.append(_cost(cost_s))
        self._digests[item_digest] = None

    def extend(self, samples: Sequence[Any], cost_s: float) -> None:
        """Takes further samples of the item that was added last. Raises as `add`."""
        self._row_counts[-1] += self._take(samples)
        self._costs[-1] = _cost(self._costs[-1] + cost_s)

    def spill(self, fd: int) -> None:
        """Moves the values that are collected to the end of a file, which stays open until all is written."""
        for group in self._groups.values():
            for column in group.columns:
                column.spill(fd)

    def _take(self, samples: Sequence[Any]) -> int:
        taken = []
        for sample in samples:  # all are looked at before the first is taken
            sign, leaves = sample_tree.signature(sample)
            taken.append((self._groups.get(sign) or self._new_group(sign, sample), leaves))
        for group, leaves in taken:
            group.add(leaves)
            self._row_groups.append(group.number)
        return len(taken)

    def _new_group(self, sign: sample_tree.Signature, sample: Any) -> _Group:
        spec, leaves, paths = sample_tree.describe(sample)
        # Quoted twice, as the tree is in the file. Refused here, one item is lost; in `write`, all are.
        size = len(json.dumps(json.dumps(spec))) + len(leaves) * _COLUMN_HEADER_BYTES
        if len(self._groups) == MAX_GROUPS or self._tree_bytes + size > MAX_HEADER_BYTES // 2:
            raise SampleError(
                f"sample: too many different sample trees, or too large ones (after {len(self._groups)}); "
                f"if keys differ from sample to sample, return them as values",
                leaf="sample",
            )
        self._tree_bytes += size
        group = self._groups[sign] = _Group(len(self._groups), spec, leaves, paths)
        return group

    def write(
        self, file: Any, *, producer: dict[str, Any], observed: Sequence[dict[str, Any]] = ()
    ) -> Written:
        """Writes the artifact to a descriptor (or what has one) at its start, unsynced; may be called again.

        Args:
            producer: who made it, for people; JSON.
            observed: inputs beside the item and the recipe: dicts of kind, name and digest.
        """
        groups = [group for group in self._groups.values() if group.rows]
        numbers = {group.number: position for position, group in enumerate(groups)}
        rows_of = np.frombuffer(self._row_groups, "u2") if self.rows else np.empty(0, "u2")
        if len(groups) != len(self._groups):  # a group without rows is left by an item that was refused
            rows_of = np.array([numbers.get(n, 0) for n in range(len(self._groups))], "u2")[rows_of]
        names = ColumnNames()
        specs = [group.spec(position, names) for position, group in enumerate(groups)]
        columns = [column for group in groups for column in group.columns]
        named = zip((column.name for spec in specs for column in spec.columns), columns, strict=True)
        digests = b"".join(self._digests)
        return write_artifact(
            file if isinstance(file, int) else file.fileno(),
            recipe=self.recipe,
            digests=digests,
            row_counts=self._row_counts,
            costs=self._costs,
            row_groups=(rows_of,),
            groups=specs,
            totals={name: column.total for name, column in named if column.shape is None},
            bodies=[pieces for column in columns for pieces in column.pieces()],
            producer=producer,
            observed=pack_observed(observed),
            edition=self.edition,
        )


def _cost(cost_s: float) -> float:
    return cost_s if 0.0 < cost_s <= MAX_ITEM_COST_S else 0.0


class _Group:
    """Samples of one tree, leaf by leaf."""

    def __init__(self, number: int, spec: sample_tree.Tree, leaves: list[Leaf], paths: list[str]) -> None:
        self.number = number
        self.rows = 0
        self._tree = spec
        self._paths = paths
        self.columns = [_column(leaf) for leaf in leaves]
        self._appends = [column.append for column in self.columns]

    def add(self, leaves: list[Any]) -> None:
        for append, leaf in zip(self._appends, leaves, strict=True):
            append(leaf)
        self.rows += 1

    def spec(self, position: int, names: ColumnNames) -> GroupSpec:
        specs = tuple(
            ColumnSpec(
                names.take(position, path),
                column.leaf.kind,
                column.leaf.dtype,
                column.leaf.ndim,
                column.shape,
            )
            for path, column in zip(self._paths, self.columns, strict=True)
        )
        return GroupSpec(self.rows, self._tree, specs)


def _column(leaf: Leaf) -> _Column:
    if leaf.kind == "none":
        return _Column(leaf)
    if leaf.kind in columns.BYTE_KINDS:
        return _Bytes(leaf)
    return _Numbers(leaf) if leaf.kind in columns.FIXED_KINDS else _Arrays(leaf)


class _Column:
    """One leaf of a group's rows: values end to end, and offsets or shapes. This one is always None.

    Attributes:
        shape: of every row, or None if they differ.
    """

    shape: tuple[int, ...] | None = ()

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self._dtype = columns.storage(leaf)[1]
        self._values: Any = bytearray()
        self._table = array("q")
        self._spilled: list[FilePart] = []
        self._spilled_bytes = 0

    def append(self, value: Any) -> None:
        """Takes the value of the next row."""

    @property
    def nbytes(self) -> int:
        held = len(self._values) * getattr(self._values, "itemsize", 1)
        return self._spilled_bytes + held + 8 * len(self._table)

    @property
    def total(self) -> int:
        """How many values there are, if the column is ragged."""
        return (self._spilled_bytes + len(self._values)) // self._dtype.itemsize

    def spill(self, fd: int) -> None:
        begin = os.lseek(fd, 0, os.SEEK_END)
        write(fd, memoryview(self._values).cast("B"))
        self._spilled.append(FilePart(fd, begin, end := os.lseek(fd, 0, os.SEEK_END)))
        self._spilled_bytes += end - begin
        del self._values[:]

    def pieces(self) -> list[Any]:
        """Those of each of its tensors."""
        return []


class _Numbers(_Column):
    """Python numbers of fixed size; complex ones as two numbers each."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._values = array({"int": "q", "bool": "b"}.get(leaf.kind, "d"))
        if leaf.kind != "complex":
            self.append = self._values.append  # type: ignore[method-assign]

    def append(self, value: complex) -> None:
        self._values.extend((value.real, value.imag))

    def pieces(self) -> list[Any]:
        return [(*self._spilled, self._values)]


class _Bytes(_Column):
    """str and bytes, with their offsets."""

    shape = None

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._table.append(0)

    def append(self, value: Any) -> None:
        self._values += value.encode("utf-8", "surrogatepass") if self.leaf.kind == "str" else value
        self._table.append(self._spilled_bytes + len(self._values))

    def pieces(self) -> list[Any]:
        return [(self._table,), (*self._spilled, self._values)]


class _Arrays(_Column):
    """Tensors, ndarrays and numpy scalars; dense as long as all shapes are one, and then with the shapes."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._word = columns.torch_word(leaf)
        self._is_tensor = leaf.kind == "tensor"
        self._rows = 0

    def append(self, value: Any) -> None:
        shape = tuple(value.shape)
        if self._rows == 0:
            self.shape = shape
        elif self.shape is not None and shape != self.shape:
            self._table.extend(self.shape * self._rows)
            self.shape = None
        if self.shape is None:
            self._table.extend(shape)
        self._rows += 1
        found = self._numpy(value) if self._is_tensor else np.asarray(value, self._dtype)
        self._values += np.ascontiguousarray(found).reshape(-1).view("u1").data

    def _numpy(self, value: Any) -> Any:
        try:
            return value.numpy() if self._word is None else value.contiguous().view(self._word).numpy()
        except RuntimeError:  # a conjugate or negative view, which numpy does not know
            value = value.resolve_conj().resolve_neg().contiguous()
            return value.numpy() if self._word is None else value.view(self._word).numpy()

    def pieces(self) -> list[Any]:
        values = *self._spilled, self._values
        if self.shape is not None:
            return [values]
        shapes = np.frombuffer(self._table, "<i8").reshape(self._rows, self.leaf.ndim)
        offsets = np.zeros(self._rows + 1, "<i8")
        np.cumsum(shapes.prod(axis=1), out=offsets[1:])
        tables = [(offsets,), (shapes,)] if self.leaf.ndim >= 2 else [(offsets,)]
        return [*tables, values]


# --- the file ---


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
