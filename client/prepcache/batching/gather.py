"""Gathering: the samples of a data set as rows of mapped artifacts, taken a batch at a time.

Invariants:
    1. Position i of the data set is one row of one artifact; which one is in arrays, at most 24 bytes a
       sample, and nothing is kept for each sample besides.
    2. What is returned is the caller's own, a copy or as good as one. A write into it never reaches an
       artifact.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact.reader import Group
from prepcache.batching.batch import Batch
from prepcache.batching.buffers import Pool
from prepcache.batching.tables import Table

Array = npt.NDArray[Any]


class Rows:
    """The rows of a data set, in its order.

    Args:
        artifacts: open artifacts.
        art_of: int32[n], the artifact of each sample.
        row_of: int64[n], its row there.
    """

    def __init__(self, artifacts: Sequence[Any], art_of: npt.NDArray[Any], row_of: npt.NDArray[Any]) -> None:
        self._artifacts = artifacts
        self._art_of = np.asarray(art_of, np.int32)
        self._row_of = np.asarray(row_of, np.int64)
        self.pool = Pool()
        self._place()

    def _place(self) -> None:
        """Sorts the groups of all artifacts into tables, and finds each sample's table, part and index."""
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
        group_of, index = self._groups_of(first_group)
        first = [
            self.tables[table].first[place]
            for table, place in zip(table_of_group, place_of_group, strict=True)
        ]
        self._number_of = index if len(first) < 2 else np.array(first, np.int64)[group_of] + index
        # One artifact, read in its own order: positions are numbers, and no cache miss finds them out.
        self._is_straight = np.array_equal(self._number_of, np.arange(len(self._number_of)))
        self._table_of: Array | None = None
        if len(self.tables) > 1:
            self._table_of = np.array(table_of_group, np.int32)[group_of]

    def _groups_of(self, first_group: Array) -> tuple[Array, Array]:
        """Each sample's group, counted through all artifacts, and its index there."""
        group_of = first_group[self._art_of]
        if all(artifact.row_group is None for artifact in self._artifacts):
            return group_of, self._row_of
        rows = np.array([artifact.rows for artifact in self._artifacts], np.int64)
        row = (np.cumsum(rows) - rows)[self._art_of] + self._row_of
        no_groups = [np.zeros(count, np.uint16) for count in rows]
        in_groups = [np.arange(count) for count in rows]
        for number, artifact in enumerate(self._artifacts):
            if artifact.row_group is not None:
                no_groups[number], in_groups[number] = artifact.row_group, artifact.row_index
        return group_of + np.concatenate(no_groups)[row], np.concatenate(in_groups)[row]

    def __len__(self) -> int:
        return len(self._row_of)

    def sample(self, i: int) -> Any:
        """The sample at position i, `0 <= i < len(self)`: a copy."""
        return self._artifacts[self._art_of[i]].sample(int(self._row_of[i]))

    def take(self, indices: Any, shown: Array | None = None) -> list[Any]:
        """The samples at these positions, as a list; `Batch` if their trees are equal.

        Args:
            indices: integers (Python's, numpy's, torch's), negative ones counted from the end; an array
                or tensor of them; or a boolean array or tensor with an entry for each sample.
            shown: the positions that messages name, if others than these.

        Raises:
            IndexError: a position out of range, or a mask of another length.
            TypeError: something that is no integer.
        """
        at = positions(indices, self._row_of.size)
        if len(at) == 0:
            return []
        numbers = self._numbers(at)
        shown = at if shown is None else shown
        if self._table_of is None:
            return Batch(self.tables[0], numbers, shown, self.pool)
        return self._take_of_tables(self._table_of.take(at), numbers, shown)

    def _numbers(self, at: Array) -> Array:
        """The number of each sample in its table; checks positions on the way."""
        # (`max` would go through Python once more.)
        if self._is_straight and int(np.maximum.reduce(at.view(np.uint64))) < self._row_of.size:
            return at
        try:
            return self._number_of.take(at)
        except IndexError:
            raise _out_of_range(at, len(self)) from None

    def _take_of_tables(self, table_of: Array, numbers: Array, at: Array) -> list[Any]:
        tables = np.unique(table_of).tolist()
        samples: list[Any] = [None] * len(at)
        for table in tables:
            places = np.flatnonzero(table_of == table)
            batch = Batch(self.tables[table], numbers[places], at[places], self.pool)
            if len(tables) == 1:
                return batch
            for place, sample in zip(places.tolist(), batch, strict=True):
                samples[place] = sample
        return samples


def positions(indices: Any, count: int) -> Array:
    """Positions in a data set of `count` samples as integers, not checked against it; see `Rows.take`."""
    if isinstance(indices, list):
        try:  # the quickest of all ways, and one that takes whatever has __index__, and no floats
            return np.frombuffer(array("q", indices), np.int64) if indices else np.empty(0, np.int64)
        except OverflowError:
            raise _out_of_range(max(indices, key=abs), count) from None
    if not hasattr(indices, "__array__"):
        return positions(list(indices), count)  # a range, a set, a generator: what a sampler may give
    at = np.asarray(indices)
    if at.dtype == np.bool_:
        if at.shape != (count,):
            raise IndexError(f"a mask of shape {at.shape} does not fit a data set of {count} samples")
        return np.flatnonzero(at)
    if at.dtype.kind not in "iu" and at.size:
        raise TypeError(f"positions must be integers, not {at.dtype}")
    if at.dtype == np.uint64 and (at >= count).any():
        raise _out_of_range(at, count)
    return at.reshape(-1).astype(np.int64, copy=False)


def _out_of_range(indices: Any, count: int) -> IndexError:
    outside = [index for index in np.ravel(indices).tolist() if not -count <= index < count]
    return IndexError(f"index {outside[0]} is out of range for a data set of {count} samples")
