"""torch's default collation, of columns: what `default_collate` makes of the samples, without the samples.

Invariants:
    1. The result equals torch's: containers (a tuple becomes a list), dtypes, and which leaves become
       tensors. A column whose collation is not known to be a plain stack is left to torch's own code,
       and so is every batch if its table of functions holds one that is not torch's.
    2. In a DataLoader worker nothing is gathered where the job can do that (by_index.py); else columns are
       gathered into shared memory, where torch would copy them to.
    3. torch is never imported here before the caller did.

Between two batches a few megabytes have gone through the caches, and every line of Python here runs from
cold memory: what can be decided once for a table is decided in `Collation`.

Source: torch/utils/data/_utils/collate.py, and tests/property/test_batch_property.py, which compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prepcache.artifact import columns, sample_tree
from prepcache.batching import by_index
from prepcache.batching.buffers import Pool
from prepcache.batching.ragged import Ragged, Ranges
from prepcache.batching.tables import Dense, Nothing, Table
from prepcache.batching.unequal import raise_explained
from prepcache.batching.windows import Numbers

CollateLeaf = Callable[[Numbers, Pool], Any]
"""Gathers one leaf of the picked rows: a tensor, or a list of str or bytes."""

torch_code: Any = None
"""The code object of torch's `collate`, or None before `register` found it."""
_default_code: Any = None
_map: dict[Any, Any] = {}
_plain_functions: list[Any] = []
_working: Any = None
"""torch's `default_collate` (its code), the table of functions, what is in it while it is as torch made it,
and the module that knows whether this is a DataLoader worker."""


class NotAStack(Exception):
    """A column whose collation is torch's own business."""


def register(row_type: type) -> None:
    """Tells torch's default collation about the type of a batch's first element, if torch is there."""
    global torch_code, _default_code, _map, _plain_functions, _working
    collation = sys.modules.get("torch.utils.data._utils.collate")
    if torch_code is None and collation is not None:  # for several threads at once too: all find the same
        _map = collation.default_collate_fn_map
        before = [function for function in list(_map.values()) if function is not collate_batch]
        _map[row_type] = collate_batch
        is_plain = all(function.__module__ == collation.__name__ for function in before)
        _plain_functions = list(_map.values()) if is_plain else []
        _default_code = collation.default_collate.__code__
        _working = sys.modules["torch.utils.data._utils.worker"]
        torch_code = collation.collate.__code__


def collate_batch(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """What torch calls for a batch whose samples nobody looked at."""
    if collate_fn_map is _map and list(collate_fn_map.values()) == _plain_functions:
        is_worker = getattr(_working, "_worker_info", None) is not None
        if is_worker and batch.source is not None and collation_of(batch.table).is_gathered:
            asked_by = sys._getframe(1).f_back  # torch's `collate`, and what called that
            is_default = asked_by is not None and asked_by.f_code is _default_code
            sent = by_index.in_place_of(batch, None, asked_by.f_back) if asked_by and is_default else None
            if sent is not None:
                return sent
        try:
            return collation_of(batch.table).collate(batch.numbers, batch.pool)
        except NotAStack:
            pass
    from torch.utils.data._utils import collate as collation

    samples = list(batch)
    try:
        return collation.collate(samples, collate_fn_map=collate_fn_map)
    except (RuntimeError, TypeError) as error:
        raise_explained(error, sample_tree.rows_of_leaves(samples), batch.indices)


def collate_plain(batch: Any) -> Any:
    """What `default_collate` makes of such a batch, without going through it; or of a list of samples."""
    from torch.utils.data._utils import collate as collation

    if type(batch) is list:
        return collation.default_collate(batch)  # type: ignore[no-untyped-call]
    return collate_batch(batch, collate_fn_map=collation.default_collate_fn_map)


class Collation:
    """How a table's rows are collated.

    Args:
        table: the table.
    """

    def __init__(self, table: Table) -> None:
        self.leaves = [_collate_leaf(column) for column in table.columns]
        self.is_gathered = _refuse not in self.leaves
        self.build = builder(table.tree, list)
        numbered = sample_tree.builder(table.tree)(list(range(len(table.columns))))
        self.paths = [path for path, _ in sample_tree.leaves_of(numbered)]
        self.planned: Any = None  # kept by collate

    def collate(self, numbers: Numbers, pool: Pool) -> Any:
        """The batch that `default_collate` makes of these rows, or `NotAStack`."""
        return self.build([leaf(numbers, pool) for leaf in self.leaves])


def collation_of(table: Table) -> Collation:
    """The table's collation, made once."""
    if table.collation is None:
        table.collation = Collation(table)
    collation: Collation = table.collation
    return collation


def builder(spec: sample_tree.Tree, strings: type) -> Callable[[Sequence[Any]], Any]:
    """A function that puts collated leaves together as torch does.

    Args:
        strings: what torch leaves the strings of a leaf in: the tuple of a transposed sequence, or a list.
    """
    if isinstance(spec, int):
        return lambda leaves: strings(leaves[spec]) if isinstance(leaves[spec], list) else leaves[spec]
    word = spec[0]
    if word == "dict":
        parts = [(key, builder(child, list)) for key, child in spec[1]]
        return lambda leaves: {key: build(leaves) for key, build in parts}
    children = [builder(child, tuple) for child in spec[-1]]
    if word == "named":
        named = sample_tree.named_class(spec[1], spec[2], tuple(spec[3]))._make
        return lambda leaves: named([build(leaves) for build in children])
    return lambda leaves: [build(leaves) for build in children]


def _collate_leaf(column: Dense | Ragged | Nothing) -> CollateLeaf:
    if isinstance(column, Nothing) or column.leaf.kind == "complex":
        return _refuse
    if isinstance(column, Ragged):
        if column.leaf.kind in columns.BYTE_KINDS:
            return _strings(column)
        return _equal_rows(column)
    return _stack(column)


def _refuse(numbers: Numbers, pool: Pool) -> Any:
    raise NotAStack


def _strings(column: Ragged) -> CollateLeaf:
    decode = columns.decode_bytes(column.leaf)
    return lambda numbers, pool: list(map(decode, column.take(numbers, pool).octets()))


def _equal_rows(column: Ragged) -> CollateLeaf:
    to_tensor = _to_tensor(column)
    if to_tensor is None:
        return _refuse

    def collate(numbers: Numbers, pool: Pool) -> Any:
        rows: Ranges = column.take(numbers, pool)
        shapes = np.diff(rows.offsets)[:, None] if rows.shapes is None else rows.shapes
        if (shapes != shapes[0]).any():
            raise NotAStack
        return to_tensor(rows.values.reshape(numbers.size, *shapes[0]))

    return collate


def _stack(column: Dense) -> CollateLeaf:
    import torch.utils.data

    to_tensor = _to_tensor(column)
    if to_tensor is None:
        return _refuse
    worker = torch.utils.data.get_worker_info
    dtype = to_tensor(np.empty(0, column.dtype)).dtype

    def collate(numbers: Numbers, pool: Pool) -> Any:
        if worker() is None:
            return to_tensor(column.gather(numbers, pool))
        shape = (numbers.size, *column.shape)
        storage = torch.UntypedStorage._new_shared(numbers.size * column.row_bytes)  # type: ignore[no-untyped-call]
        shared = torch.empty(0, dtype=torch.uint8).set_(storage)
        column.take(numbers, shared.numpy().view(column.dtype).reshape(shape))
        return shared.view(dtype).view(shape)

    return collate


def _to_tensor(column: Dense | Ragged) -> Callable[[Any], Any] | None:
    """What makes a tensor of a column's values, or None if torch has no such dtype (big-endian, dates)."""
    import torch

    leaf = column.leaf
    if leaf.kind == "tensor" and leaf.dtype != str(column.dtype):
        return lambda values: columns.to_leaf(values, leaf)
    try:
        dtype = torch.from_numpy(np.empty(0, column.dtype)).dtype
        if leaf.kind == "scalar" and torch.as_tensor([np.zeros((), column.dtype)[()]]).dtype != dtype:
            return None  # torch reads lists of numpy scalars by rules of its own
    except (TypeError, ValueError):
        return None
    return torch.from_numpy
