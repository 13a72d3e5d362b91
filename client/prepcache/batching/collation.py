"""Collation by columns: what torch's `default_collate` makes of samples, without the samples.

In a DataLoader worker, a batch that the job can gather itself is sent as the positions of its samples:

    worker:  fetch ── __getitems__ ──> Batch ── collation ──> ByIndex ── pickled: some bytes a sample ──┐
    job:     the batch  <── collated and gathered into recycled memory <── Batch <── unpickled  <───────┘

Invariants:
    1. The result equals torch's. A column whose collation is not known to be a plain stack is left to
       torch's own code, and so is every batch if its table of functions holds one that is not torch's.
    2. Only torch's own fetcher is given a `ByIndex`, which it hands on to the queue: the user's code never
       sees one. What the user's code collates, or looks at before, travels as bytes, in shared memory.
    3. A `ByIndex` names only a data set that the job has: the DataLoader's `dataset`, or one that this is a
       subset of, which this worker did not open. All its rows are in artifacts that the job has, or finds by
       asking the daemon.
    4. What fails in the job fails in the turn of its batch, as what fails in a worker does.

What can be decided once for a table is decided in `Collation`: between two batches all Python runs from cold
memory.

Source: torch.utils.data._utils.collate, and tests/property/test_batch_property.py, which compares.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from prepcache.artifact import columns, sample_tree
from prepcache.batching.buffers import Pool
from prepcache.batching.ragged import Ragged, Ranges
from prepcache.batching.windows import Numbers
from prepcache.forks import Living

if TYPE_CHECKING:
    from prepcache.batching.gather import Dense, Table

try:
    import torch
    from torch._utils import ExceptionWrapper
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import collate as _collate
    from torch.utils.data._utils import fetch as _fetch

    FUNCTIONS: dict[Any, Any] = _collate.default_collate_fn_map
    """torch's table of collate functions, by the type of a batch's first element."""
    COLLATE_CODE: Any = _collate.collate.__code__
    _DEFAULT_CODE = _collate.default_collate.__code__
    _FETCH_CODE = getattr(
        getattr(getattr(_fetch, "_MapDatasetFetcher", None), "fetch", None), "__code__", None
    )
except ImportError:  # a job of numpy alone
    FUNCTIONS, COLLATE_CODE = {}, None

_plain_functions: list[Any] = []
"""What is in the table while it is as torch made it, and ours; empty if it was changed before."""

CollateLeaf = Callable[[Numbers, Pool], Any]
"""Gathers one leaf of the picked rows: a tensor, or a list of str or bytes."""


class NotAStack(Exception):
    """A column whose collation is torch's own business."""


def register(row_type: type) -> None:
    """Tells torch's default collation about the type of a batch's first element."""
    if COLLATE_CODE is not None:
        is_plain = all(function.__module__ == _collate.__name__ for function in FUNCTIONS.values())
        FUNCTIONS[row_type] = collate_batch
        _plain_functions[:] = FUNCTIONS.values() if is_plain else ()


def collate_batch(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """What torch calls for a batch whose samples nobody looked at."""
    if collate_fn_map is FUNCTIONS and list(FUNCTIONS.values()) == _plain_functions:
        collation = collation_of(batch.table)
        if get_worker_info() is not None and collation.is_gathered:
            asked_by = sys._getframe(1).f_back  # torch's `collate`, and what called that
            if asked_by is not None and asked_by.f_code is _DEFAULT_CODE:
                sent = sent_instead(batch, None, asked_by.f_back)
                if sent is not None:
                    return sent
        try:
            return collation.collate(batch.numbers, batch.pool)
        except NotAStack:
            pass
    samples = list(batch)
    try:
        return _collate.collate(samples, collate_fn_map=collate_fn_map)
    except (RuntimeError, TypeError) as error:
        raise_explained(error, sample_tree.rows_of_leaves(samples), batch.indices)


def collate_plain(batch: Any) -> Any:
    """What `default_collate` makes of such a batch, without going through it; or of a list of samples."""
    if type(batch) is list:
        return _collate.default_collate(batch)  # type: ignore[no-untyped-call]
    return collate_batch(batch, collate_fn_map=FUNCTIONS)


def leaf_text(path: Sequence[str]) -> str:
    """A leaf by its dotted path in the sample, which is empty where the sample is one leaf."""
    return f"leaf {'.'.join(path)!r}" if path else "leaf '' (the sample itself)"


def raise_explained(
    error: RuntimeError | TypeError,
    leaves: Mapping[tuple[str, ...], Sequence[Any]],
    indices: npt.NDArray[np.int64] | None,
) -> NoReturn:
    """Raises the error of a collation, with the first of the leaves (path -> rows) that may be the reason.

    Args:
        indices: the positions of the samples in the data set, where they are known.
    """
    for path, rows in leaves.items():
        if isinstance(error, TypeError):
            if rows[0] is None:
                mend = "leave it out of the sample, return a number, or pass a collate_fn"
                raise TypeError(f"{error} ({leaf_text(path)} is None: {mend})") from error
            continue
        shapes = [tuple(row.shape) for row in rows if hasattr(row, "shape")]
        if len(shapes) < len(rows) or len(set(shapes)) == 1:
            continue
        other = next(number for number, shape in enumerate(shapes) if shape != shapes[0])
        names = [f"entry {number}" for number in (0, other)]
        if indices is not None:
            names = [f"sample {int(indices[number])} of the data set" for number in (0, other)]
        told = f"{names[0]} has shape {list(shapes[0])}, {names[1]} {list(shapes[other])}"
        axes = [n for n, sizes in enumerate(zip(*shapes, strict=False)) if len(set(sizes)) > 1]
        mend = "prepcache.pad_collate pads one axis"
        if len(axes) == 1 and len(set(map(len, shapes))) == 1:
            mend = f"prepcache.pad_collate(leaves={ {'.'.join(path): axes[0]} }) pads them"
        raise RuntimeError(f"{error} ({leaf_text(path)}: {told}; {mend})") from error
    raise error


# --- a table's columns, collated ---


class Collation:
    """How a table's rows are collated."""

    def __init__(self, table: Table) -> None:
        self.leaves = [_collate_leaf(column) for column in table.columns]
        self.is_gathered = _refuse not in self.leaves
        self.build = sample_tree.builder(table.tree, list)
        numbered = sample_tree.builder(table.tree)(list(range(len(table.columns))))
        self.paths = [path for path, _ in sample_tree.leaves_of(numbered)]
        self.planned: Any = None  # kept by prepcache.collate

    def collate(self, numbers: Numbers, pool: Pool) -> Any:
        """The batch that `default_collate` makes of these rows, or `NotAStack`."""
        return self.build([leaf(numbers, pool) for leaf in self.leaves])


def collation_of(table: Table) -> Collation:
    if table.collation is None:
        table.collation = Collation(table)
    collation: Collation = table.collation
    return collation


def _collate_leaf(column: Dense | Ragged | None) -> CollateLeaf:
    if column is None or column.leaf.kind == "complex":
        return _refuse
    if isinstance(column, Ragged) and column.leaf.kind in columns.BYTE_KINDS:
        decode = columns.decode_bytes(column.leaf)
        return lambda numbers, pool: list(map(decode, column.gather(numbers, pool).octets()))
    to_tensor = _to_tensor(column)
    if to_tensor is None:
        return _refuse
    return _equal_rows(column, to_tensor) if isinstance(column, Ragged) else _stack(column, to_tensor)


def _refuse(numbers: Numbers, pool: Pool) -> Any:
    raise NotAStack


def _equal_rows(column: Ragged, to_tensor: Callable[[Any], Any]) -> CollateLeaf:
    def collate(numbers: Numbers, pool: Pool) -> Any:
        rows: Ranges = column.gather(numbers, pool)
        shapes = np.diff(rows.offsets)[:, None] if rows.shapes is None else rows.shapes
        if (shapes != shapes[0]).any():
            raise NotAStack
        return to_tensor(rows.values.reshape(numbers.size, *shapes[0]))

    return collate


def _stack(column: Dense, to_tensor: Callable[[Any], Any]) -> CollateLeaf:
    dtype = to_tensor(np.empty(0, column.dtype)).dtype

    def collate(numbers: Numbers, pool: Pool) -> Any:
        if get_worker_info() is None:
            return to_tensor(column.gather(numbers, pool))
        shape = (numbers.size, *column.shape)
        storage = torch.UntypedStorage._new_shared(numbers.size * column.row_bytes)  # type: ignore[no-untyped-call]
        shared = torch.empty(0, dtype=torch.uint8).set_(storage)
        column.take(numbers, shared.numpy().view(column.dtype).reshape(shape))
        return shared.view(dtype).view(shape)

    return collate


def _to_tensor(column: Dense | Ragged) -> Callable[[Any], Any] | None:
    """What makes a tensor of a column's values, or None if torch has no such dtype (dates)."""
    leaf = column.leaf
    if leaf.kind == "tensor" and leaf.dtype != str(column.dtype):
        return columns.leaf_maker(leaf)
    try:
        dtype = torch.from_numpy(np.empty(0, column.dtype)).dtype
        if leaf.kind == "scalar" and torch.as_tensor([np.zeros((), column.dtype)[()]]).dtype != dtype:
            return None  # torch reads lists of numpy scalars by rules of its own
    except (TypeError, ValueError):
        return None
    return torch.from_numpy


# --- what workers send ---

_DATASETS: Living[Any] = Living()
"""Those of this process."""


def receives(dataset: Any) -> None:
    """Has batches of this `CachedDataset` arrive in this process."""
    _DATASETS.add(dataset)


class ByIndex:
    """A batch on its way: pickled here, it is unpickled as the batch.

    Args:
        collate: of ours; None for torch's default collation.
        worker: its number, for messages.
    """

    __slots__ = ("_sent",)

    def __init__(self, dataset: Any, positions: npt.NDArray[np.int64], collate: Any, worker: int) -> None:
        count = len(dataset)
        small = positions.astype(np.min_scalar_type(max(count, 1)))
        self._sent = dataset.token, count, small.dtype.char, small.tobytes(), collate, worker

    def __reduce__(self) -> Any:
        return arrived, self._sent


def sent_instead(batch: Any, collate: Any, asked_by: FrameType | None) -> ByIndex | None:
    """What to send in place of a batch that is about to be collated; None where its bytes must be sent.

    Args:
        asked_by: the frame that gets what is returned here.
    """
    source, info = batch.source, get_worker_info()
    if source is None or info is None or asked_by is None or asked_by.f_code is not _FETCH_CODE:
        return None
    if source.opened_in == os.getpid() or not source.is_known_to_parent():
        return None
    dataset: Any = info.dataset
    while dataset is not source:
        if dataset is None:
            return None
        dataset = getattr(dataset, "dataset", None)
    at = batch.indices
    return ByIndex(source, np.where(at < 0, at + len(source), at), collate, info.id)


def arrived(token: str, count: int, dtype: str, raw: bytes, collate: Any, worker: int) -> Any:
    """The batch that a worker named, in the process that receives it; or torch's wrapper of an error."""
    try:
        batch = _found(token, count).gathered(np.frombuffer(raw, dtype).astype(np.int64))
        return collate_plain(batch) if collate is None else collate(batch)
    except Exception:  # noqa: BLE001 - raised by the DataLoader in the batch's turn
        return ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]


def _found(token: str, count: int) -> Any:
    lengths = {len(one): one for one in _DATASETS if one.token == token}
    if not lengths:
        raise RuntimeError(
            "a DataLoader worker sent positions of a CachedDataset that this process has already deleted: "
            "keep the data set until its last batch has arrived"
        )
    if count not in lengths:
        raise RuntimeError(
            f"the data set has {max(lengths):,} samples now, but had {count:,} when its DataLoader "
            "workers started: start a new epoch after prepare()"
        )
    return lengths[count]
