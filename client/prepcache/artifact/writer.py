"""The writer: collects the samples of some items in memory, then writes them as one artifact.

Invariants:
    1. `add` takes all samples of an item or, raising SampleError, none.
    2. What is collected is a copy: the preprocessing function may reuse its buffers.
    3. A sample costs its copy and a constant: buffers grow geometrically, nothing is built per sample
       that the file does not hold.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from prepcache.artifact import columns, tree
from prepcache.artifact.columns import Leaf
from prepcache.artifact.format import (
    ITEM_COST,
    ITEM_DIGEST,
    ITEM_ROWS,
    MAX_ELEMENTS,
    MAX_GROUPS,
    ROW_GROUP,
    ColumnSpec,
    GroupSpec,
    Tensor,
    Written,
    column_entry,
    encode_header,
    write_all,
)
from prepcache.digests import DIGEST_BYTES, RecipeDigest, entry_key
from prepcache.errors import SampleError


class Writer:
    """Collects samples of one recipe.

    Args:
        recipe: the recipe digest.
    """

    def __init__(self, recipe: RecipeDigest) -> None:
        self.recipe = recipe
        self._digests: dict[bytes, None] = {}
        self._row_counts = array("q")
        self._costs = array("d")
        self._row_groups = array("H")
        self._groups: dict[tree.Signature, _Group] = {}

    @property
    def items(self) -> int:
        """Items added so far."""
        return len(self._digests)

    @property
    def rows(self) -> int:
        """Samples added so far."""
        return len(self._row_groups)

    @property
    def cost_s(self) -> float:
        """Seconds of preprocessing that the added items took."""
        return math.fsum(self._costs)

    @property
    def nbytes(self) -> int:
        """Bytes that are collected; the file has these and a header."""
        held = sum(column.nbytes for group in self._groups.values() for column in group.columns)
        return held + self.items * (DIGEST_BYTES + 16) + self.rows * 2

    def add(self, item_digest: bytes, samples: Sequence[Any], cost_s: float) -> None:
        """Takes an item's samples.

        Args:
            item_digest: 32 bytes, not added before.
            samples: one, unless the recipe expands; may be empty then.
            cost_s: seconds that preprocessing the item took.

        Raises:
            SampleError: a sample that no column can hold; the message holds the path of the leaf.
        """
        if len(item_digest) != DIGEST_BYTES or item_digest in self._digests:
            raise ValueError("an item digest has 32 bytes and is added once")
        taken = [tree.signature(sample) for sample in samples]
        found = [self._group(sign, sample) for (sign, _), sample in zip(taken, samples, strict=True)]
        for group, (_, leaves) in zip(found, taken, strict=True):
            group.add(leaves)
            self._row_groups.append(group.number)
        self._digests[item_digest] = None
        self._row_counts.append(len(found))
        self._costs.append(max(cost_s, 0.0))

    def _group(self, sign: tree.Signature, sample: Any) -> _Group:
        group = self._groups.get(sign)
        if group is None:
            if len(self._groups) == MAX_GROUPS:
                raise SampleError(
                    f"sample: over {MAX_GROUPS} different trees in one artifact; "
                    "keys that differ from sample to sample belong into values",
                    leaf="sample",
                )
            group = self._groups[sign] = _Group(len(self._groups), *tree.describe(sample))
        return group

    def write(self, fd: int, *, producer: dict[str, Any], observed: Sequence[dict[str, Any]] = ()) -> Written:
        """Writes the artifact at the descriptor's position, which must be the file's start.

        Args:
            fd: open for writing. Neither synced nor closed here.
            producer: who made it, for people; JSON.
            observed: inputs beside the item and the recipe: dicts of kind, name and digest.
        """
        groups = [group for group in self._groups.values() if group.rows]
        numbers = {group.number: position for position, group in enumerate(groups)}
        rows_of = np.frombuffer(self._row_groups, "u2") if self.rows else np.empty(0, "u2")
        if len(groups) != len(self._groups):  # a group without rows is left by an item that was refused
            rows_of = np.array([numbers.get(n, 0) for n in range(len(self._groups))], "u2")[rows_of]
        names = ColumnNames()
        specs = [group.spec(names) for group in groups]
        bodies = [
            tensor
            for group, spec in zip(groups, specs, strict=True)
            for column, column_spec in zip(group.columns, spec.columns, strict=True)
            for tensor in column.tensors(column_spec, group.rows)
        ]
        digests = b"".join(self._digests)
        return write_artifact(
            fd,
            recipe=self.recipe,
            digests=digests,
            row_counts=self._row_counts,
            costs=self._costs,
            row_groups=(rows_of,),
            groups=specs,
            bodies=bodies,
            producer=producer,
            observed=list(observed),
        )


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
        "groups": [
            {"rows": group.rows, "tree": group.tree, "columns": [column_entry(c) for c in group.columns]}
            for group in groups
        ],
    }
    head, laid, size_bytes = encode_header(document, [*tables, *bodies])
    write_all(fd, _pieces(head, laid))
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


class _Group:
    """Samples of one tree, leaf by leaf."""

    def __init__(self, number: int, spec: tree.Tree, leaves: list[Leaf], paths: list[str]) -> None:
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

    def spec(self, names: ColumnNames) -> GroupSpec:
        specs = tuple(
            ColumnSpec(names.take(self.number, path), column.leaf, column.shape)
            for path, column in zip(self._paths, self.columns, strict=True)
        )
        return GroupSpec(self._tree, specs, self.rows)


def _column(leaf: Leaf) -> Any:
    if leaf.kind in columns.BYTE_KINDS:
        return _Bytes(leaf)
    if leaf.kind in columns.FIXED_KINDS:
        return _Numbers(leaf)
    return _Nothing(leaf) if leaf.kind == "none" else _Arrays(leaf)


class _Nothing:
    """None: no bytes."""

    shape: tuple[int, ...] = ()
    nbytes = 0

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf

    def append(self, value: None) -> None:
        pass

    def tensors(self, spec: ColumnSpec, rows: int) -> list[Tensor]:
        return []


class _Numbers:
    """Python numbers of fixed size."""

    shape: tuple[int, ...] = ()

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self._values = array({"int": "q", "float": "d", "bool": "b", "complex": "d"}[leaf.kind])
        self.append = self._append_complex if leaf.kind == "complex" else self._values.append

    def _append_complex(self, value: complex) -> None:
        self._values.append(value.real)
        self._values.append(value.imag)

    @property
    def nbytes(self) -> int:
        return len(self._values) * self._values.itemsize

    def tensors(self, spec: ColumnSpec, rows: int) -> list[Tensor]:
        ((name, (tag, shape)),) = spec.tensors(rows).items()
        return [Tensor(name, tag, shape or (), (self._values,))]


class _Bytes:
    """str, bytes and large integers: their bytes on end."""

    shape = None

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self._values = bytearray()
        self._offsets = array("q", [0])
        self._encode = columns.encode_bytes(leaf)

    def append(self, value: Any) -> None:
        self._values += self._encode(value)
        self._offsets.append(len(self._values))

    @property
    def nbytes(self) -> int:
        return len(self._values) + 8 * len(self._offsets)

    def tensors(self, spec: ColumnSpec, rows: int) -> list[Tensor]:
        return [
            Tensor(spec.name + ".offsets", "I64", (rows + 1,), (self._offsets,)),
            Tensor(spec.name, "U8", (len(self._values),), (self._values,)),
        ]


class _Arrays:
    """Tensors, ndarrays and numpy scalars: their bytes on end; dense as long as all shapes are one."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self._values = bytearray()
        self._first: tuple[int, ...] | None = None
        self._rows = 0
        self._shapes: list[tuple[int, ...]] | None = None
        _, self._dtype, self._has_byte_axis = columns.storage(leaf)
        self.append = self._append_tensor if leaf.kind == "tensor" else self._append_array
        self._word = self._word_of_tensor() if leaf.kind == "tensor" else None

    def _word_of_tensor(self) -> Any:
        """The torch dtype to view a tensor as where numpy has no such dtype, else None."""
        import torch

        word = {2: torch.int16, 4: torch.int32, 1: torch.uint8}.get(self._dtype.itemsize)
        return word if self.leaf.dtype not in _NUMPY_NAMES else None

    def _append_tensor(self, value: Any) -> None:
        shape = tuple(value.shape)
        if self._word is not None:
            value = value.resolve_conj().contiguous().view(self._word)
        try:
            found = value.numpy()
        except RuntimeError:  # a conjugate or negative view, which numpy does not know
            found = value.resolve_conj().resolve_neg().numpy()
        self._extend(found, shape)

    def _append_array(self, value: Any) -> None:
        self._extend(np.asarray(value), value.shape)

    def _extend(self, found: Any, shape: tuple[int, ...]) -> None:
        if shape != self._first or self._shapes is not None:
            self._note_shape(shape)
        self._rows += 1
        # bytearray += ndarray would be numpy's addition; not every dtype lends its buffer.
        if found.flags.c_contiguous and not self._has_byte_axis:
            self._values.extend(found)
        else:
            self._values += found.tobytes()

    def _note_shape(self, shape: tuple[int, ...]) -> None:
        if self._first is None:
            self._first = shape
        elif self._shapes is not None:
            self._shapes.append(shape)
        else:
            self._shapes = [self._first] * self._rows
            self._shapes.append(shape)

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self._first if self._shapes is None else None

    @property
    def nbytes(self) -> int:
        return len(self._values) + (8 * (1 + self.leaf.ndim) * self._rows if self._shapes is not None else 0)

    def tensors(self, spec: ColumnSpec, rows: int) -> list[Tensor]:
        parts = spec.tensors(rows)
        tag, shape = parts.pop(spec.name)
        if self._shapes is None:
            return [Tensor(spec.name, tag, shape or (), (self._values,))]
        shapes = np.array(self._shapes, "<i8")
        offsets = np.zeros(rows + 1, "<i8")
        np.cumsum(shapes.prod(axis=1), out=offsets[1:])
        total = int(offsets[-1])
        tables = {"offsets": offsets, "shapes": shapes}
        made = [Tensor(name, *parts[name], (tables[name.rsplit(".", 1)[1]],)) for name in parts]  # type: ignore[arg-type]
        tail = (self._dtype.itemsize,) if self._has_byte_axis else ()
        return [*made, Tensor(spec.name, tag, (total, *tail), (self._values,))]


_NUMPY_NAMES = frozenset(
    "float64 float32 float16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64 complex128".split()
)
"""torch dtypes that numpy has too."""
