"""Gathering: the samples of a data set as rows of mapped artifacts, taken a batch at a time.

    DataLoader ── __getitems__(indices) ──> Batch ── default_collate ──> the columns, gathered, as they are

Artifacts hold rows in groups of equal trees. All groups of one tree, whatever artifact they are in, are
the parts of one table; a row is named by its number, which is counted through all parts (table.py).

Invariants:
    1. At most 24 bytes a sample are kept, in arrays.
    2. Only what collates by columns is given a `Batch`: see `as_asked` in collation.py. Who iterates over one
       sees its samples.
    3. Every number comes from an artifact that was checked when it was opened, so `mode="clip"` (the one
       mode of `take` that copies once) never clips.
"""

from __future__ import annotations

import itertools
import json
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact import columns
from prepcache.artifact.reader import Group, builder
from prepcache.batching.collation import Gathered
from prepcache.batching.table import Numbers, Pool, Ranges, Table

Array = npt.NDArray[Any]
Make = Callable[[Array], list[Any]]
MISSING = -1


class Batch(Gathered):
    """Rows of one table, by their numbers."""

    __slots__ = ("numbers", "table")

    def __init__(self, table: Table, numbers: Numbers, pool: Pool) -> None:
        self.table = table
        self.numbers = numbers
        self.pool = pool

    def __len__(self) -> int:
        return self.numbers.size

    def __iter__(self) -> Iterator[Any]:
        build = builder(self.table.tree)
        leaves = [self.leaf(number) for number in range(len(self.table.columns))]
        rows = zip(*leaves, strict=True) if leaves else itertools.repeat((), len(self))
        return (build(list(row)) for row in rows)

    def leaf(self, number: int) -> Any:
        """The values of one leaf, as the samples hold them: views of what is gathered here."""
        column, count = self.table.columns[number], self.numbers.size
        if column is None:
            return [None] * count
        leaf, rows = column.leaf, column.gather(self.numbers, self.pool)
        if isinstance(rows, Ranges):
            if leaf.kind in columns.BYTE_KINDS:
                return rows.strings(leaf)
            return list(map(columns.leaf_maker(leaf), rows.rows()))
        if leaf.kind in columns.FIXED_KINDS:
            return rows.tolist()
        if leaf.kind == "tensor":
            return columns.leaf_maker(leaf)(rows).unbind(0)
        is_scalar = leaf.kind == "ndarray" and rows.ndim == 1
        return [rows[i, ...] for i in range(count)] if is_scalar else list(rows)


class Rows:
    """The rows of a data set, in its order: of each sample the artifact, or `MISSING`, and its row there."""

    def __init__(self, artifacts: Sequence[Any], art_of: npt.NDArray[Any], row_of: npt.NDArray[Any]) -> None:
        self._artifacts = artifacts
        self._art_of = np.asarray(art_of, np.int32)
        self._row_of = np.asarray(row_of, np.int64)
        self.pool = Pool()
        groups_of_table: dict[Any, tuple[int, list[Group]]] = {}
        table_of_group: list[int] = []
        place_of_group: list[int] = []
        first_group = np.zeros(len(self._artifacts), np.int64)
        for number, artifact in enumerate(self._artifacts):
            first_group[number] = len(table_of_group)
            for group in artifact.groups:
                signature = (json.dumps(group.tree), *(column.leaf for column in group.columns))
                table, groups = groups_of_table.setdefault(signature, (len(groups_of_table), []))
                table_of_group.append(table)
                place_of_group.append(len(groups))
                groups.append(group)
        self.tables = [Table(groups) for _, groups in groups_of_table.values()]
        is_there = self._art_of != MISSING
        is_whole = bool(is_there.all())
        there: Any = slice(None) if is_whole else np.flatnonzero(is_there)
        group_of, number_of = self._groups_of(first_group, self._art_of[there], self._row_of[there])
        places = zip(table_of_group, place_of_group, strict=True)
        first = np.array([self.tables[table].first[place] for table, place in places], np.int64)
        if len(first) > 1:
            number_of = first[group_of] + number_of
        self._number_of, self._table_of = number_of, None
        if len(self.tables) > 1 or not is_whole:
            self._number_of, self._table_of = np.zeros(len(self), np.int64), np.full(len(self), MISSING, "i4")
            self._number_of[there] = number_of
            self._table_of[there] = np.array(table_of_group, "i4")[group_of]

    def _groups_of(self, first_group: Array, art_of: Array, row_of: Array) -> tuple[Array, Array]:
        """Each sample's group, counted through all artifacts, and its index there."""
        group_of = first_group[art_of]
        if all(artifact.row_group is None for artifact in self._artifacts):
            return group_of, row_of
        rows = np.array([artifact.rows for artifact in self._artifacts], np.int64)
        row = (np.cumsum(rows) - rows)[art_of] + row_of
        no_groups = [np.zeros(count, np.uint16) for count in rows]
        in_groups = [np.arange(count) for count in rows]
        for number, artifact in enumerate(self._artifacts):
            if artifact.row_group is not None:
                no_groups[number], in_groups[number] = artifact.row_group, artifact.row_index
        return group_of + np.concatenate(no_groups)[row], np.concatenate(in_groups)[row]

    def __len__(self) -> int:
        return len(self._row_of)

    def sample(self, i: int) -> Any:
        return self._artifacts[self._art_of[i]].sample(int(self._row_of[i]))

    def take(self, indices: Any, make: Make | None = None) -> list[Any] | Batch:
        """The samples at these positions, negative ones counted from the end: a `Batch` if their trees are
        equal, else a list. `make` gives those that are missing."""
        at = positions(indices)
        if at.size == 0:
            return []
        try:
            numbers = self._number_of.take(at)
        except IndexError:
            wrong = next(one for one in at.tolist() if not -len(self) <= one < len(self))
            raise IndexError(f"index {wrong} is out of range for a data set of {len(self)} samples") from None
        if self._table_of is None:
            return Batch(self.tables[0], numbers, self.pool)
        table_of = self._table_of.take(at)
        samples: list[Any] = [None] * len(at)
        for table in sorted({*table_of.tolist()}):
            places = np.flatnonzero(table_of == table)
            if table == MISSING and make is not None:
                found: Any = make(at[places])
            else:
                found = Batch(self.tables[table], numbers[places], self.pool)
                if len(places) == len(at):
                    return found  # type: ignore[no-any-return]
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = sample
        return samples


def positions(indices: Any) -> Array:
    """Positions in a data set as integers, not checked against it; see `Rows.take`."""
    if isinstance(indices, list):  # the quickest of all ways, and one that takes whatever has __index__
        try:
            raw: Any = struct.pack(f"{len(indices)}q", *indices)
        except struct.error:
            raw = array("q", indices)  # raises what says which they are
        return np.frombuffer(raw, np.int64)
    if not hasattr(indices, "__array__"):
        return positions(list(indices))  # a range, a set, a generator: what a sampler may give
    at = np.asarray(indices)
    if at.dtype == np.uint64:
        return positions(at.reshape(-1).tolist())  # one beyond 64 bits would count from the end
    if at.dtype.kind not in "iu" and at.size:
        raise TypeError(f"positions must be integers, not {at.dtype}")
    return at.reshape(-1).astype(np.int64, copy=False)
