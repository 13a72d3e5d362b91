"""torch's default collation, of columns: what `default_collate` makes of the samples, without the samples.

Invariants:
    1. The result equals torch's: containers (a tuple becomes a list), dtypes, and which leaves become
       tensors. A column whose collation is not known to be a plain stack is left to torch's own code.
    2. In a DataLoader worker columns are gathered into shared memory, where torch would copy them to.
    3. torch is never imported here before the caller did.

Source: torch/utils/data/_utils/collate.py, and tests/property/test_batch_property.py, which compares.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import numpy as np

from prepcache.artifact import columns, tree
from prepcache.tables import Dense, Nothing, Ragged, Ranges

_code: Any = None
"""The code of torch's `collate`, once it is registered with."""


class _NotAStack(Exception):
    """A column that torch's own code must see."""


def register(row_type: type) -> None:
    """Tells torch's default collation about the type of a batch's first element, if torch is there."""
    global _code
    collation = sys.modules.get("torch.utils.data._utils.collate")
    if _code is None and collation is not None:
        collation.default_collate_fn_map[row_type] = collate_batch
        _code = collation.collate.__code__


def torch_code() -> Any:
    """The code object of torch's `collate`, or None before `register` found it."""
    return _code


def collate_batch(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """What torch calls for a batch whose samples nobody looked at."""
    from torch.utils.data._utils import collate as collation

    own = (collation.__name__, __name__)
    if all(function.__module__ in own for function in collate_fn_map.values()):
        try:
            return _collated(batch)
        except _NotAStack:
            pass
    try:
        return collation.collate(list(batch), collate_fn_map=collate_fn_map)
    except RuntimeError as error:
        raise RuntimeError(f"{error}{_who_differs(batch)}") from error


def _collated(batch: Any) -> Any:
    leaves = [_leaf(batch, i) for i in range(len(batch.table.columns))]
    return contain(batch.table.tree, leaves, list)


def contain(spec: tree.Tree, leaves: list[Any], strings: type) -> Any:
    """Puts collated leaves together.

    Args:
        strings: what torch leaves the strings of a leaf in: the tuple of a transposed sequence, or a list.
    """
    if isinstance(spec, int):
        leaf = leaves[spec]
        return strings(leaf) if isinstance(leaf, list) else leaf
    word = spec[0]
    if word == "dict":
        return {key: contain(child, leaves, list) for key, child in spec[1]}
    if word == "ordered":
        return OrderedDict((key, contain(child, leaves, list)) for key, child in spec[1])
    children = [contain(child, leaves, tuple) for child in spec[-1]]
    return tree.named_class(spec[1], spec[2], tuple(spec[3]))._make(children) if word == "named" else children


def collate_leaf(batch: Any, number: int) -> Any:
    """One leaf of a batch, collated as torch would."""
    from torch.utils.data import default_collate

    try:
        return _leaf(batch, number)
    except _NotAStack:
        return default_collate(batch.leaf(number))


def _leaf(batch: Any, number: int) -> Any:
    """One collated leaf: a tensor, or a list of str or bytes."""
    column: Dense | Ragged | Nothing = batch.table.columns[number]
    kind = column.leaf.kind
    if isinstance(column, Nothing) or kind in ("complex", "bigint"):
        raise _NotAStack
    if isinstance(column, Dense):
        return _stack(batch, number, column)
    rows: Ranges = batch.gathered()[number]
    if kind in columns.BYTE_KINDS:
        decode = columns.decode_bytes(column.leaf)
        return [decode(rows.row(i).tobytes()) for i in range(len(batch))]
    shapes = np.diff(rows.offsets)[:, None] if rows.shapes is None else rows.shapes
    if (shapes != shapes[0]).any():
        raise _NotAStack
    return _tensor(rows.values.reshape(len(batch), *shapes[0]), column.leaf)


def _stack(batch: Any, number: int, column: Dense) -> Any:
    import torch.utils.data

    if torch.utils.data.get_worker_info() is None:
        return _tensor(batch.gathered()[number], column.leaf)
    shape = (len(batch), *column.shape)
    dtype = _tensor(np.empty(0, column.dtype), column.leaf).dtype
    storage = torch.UntypedStorage._new_shared(int(np.prod(shape)) * column.dtype.itemsize)  # type: ignore[no-untyped-call]
    shared = torch.empty(0, dtype=torch.uint8).set_(storage)
    column.take(batch.picked, shared.numpy().view(column.dtype).reshape(shape))
    return shared.view(dtype).view(shape)


def _tensor(values: columns.Array, leaf: columns.Leaf) -> Any:
    import torch

    if leaf.kind == "tensor":
        return columns.to_leaf(values, leaf)
    if values.dtype.kind not in "biufc":
        raise _NotAStack
    try:
        return torch.from_numpy(values)
    except (TypeError, ValueError):  # no torch dtype: big-endian, long double
        raise _NotAStack from None


def _who_differs(batch: Any) -> str:
    """Names a leaf that could not be stacked, and two samples that differ in it."""
    for column in batch.table.columns:
        if isinstance(column, Ragged) and column.leaf.kind in ("tensor", "ndarray"):
            shapes = column.shapes(batch.picked)
            shapes = column.lengths(batch.picked)[:, None] if shapes is None else shapes
            others = np.flatnonzero((shapes != shapes[0]).any(axis=1))
            if len(others):
                first, other = (int(batch.indices[i]) for i in (0, others[0]))
                return (
                    f" (leaf {column.name!r}: sample {first} has shape {shapes[0].tolist()}, "
                    f"sample {other} {shapes[others[0]].tolist()}; prepcache.pad_collate batches such rows)"
                )
    return ""
