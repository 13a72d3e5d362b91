"""Collation by columns: what torch's `default_collate` makes of samples, without the samples.

In a DataLoader worker, a batch that the job can gather itself is sent as the positions of its samples:

    worker:  fetch ── __getitems__ ──> Batch ── collation ──> ByIndex ── pickled: some bytes a sample ──┐
    job:     the batch  <── collated and gathered into recycled memory <── Batch <── unpickled  <───────┘

Invariants:
    1. The result equals torch's. A column whose collation is not known to be a plain stack is left to
       torch's own code, and so is every batch if its table of functions holds one that is not torch's.
    2. Only torch's own fetcher and `Loader` are given a `Batch`, where its collate function takes one, and
       then a `ByIndex`, which the fetcher hands on to the queue. The user's code sees lists of samples, which
       travel as bytes, in shared memory.
    3. A `ByIndex` names only a data set that the job has: the DataLoader's `dataset`, or one that this is a
       `Subset` of, which this worker did not open. The job has its rows, or finds them by asking the daemon.
    4. What fails in the job fails in the turn of its batch, as what fails in a worker does.

Source: torch.utils.data._utils.collate, and tests/property/test_batch_property.py, which compares.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from prepcache.artifact import columns
from prepcache.artifact.reader import builder
from prepcache.artifact.sample_tree import leaves_of
from prepcache.batching.table import Dense, Numbers, Pool, Ragged, Ranges, Table
from prepcache.forks import Living

_TAKES_BATCHES: dict[int, Any] = {}
"""Functions that collate batches, by identity: what users pass may be equal to others, or have no hash."""
_FETCHERS: list[Any] = []
"""The code of methods that ask for a batch to collate it by `self.collate_fn`; torch's is the first."""

try:
    import torch
    import torch.utils.data
    from torch._utils import ExceptionWrapper
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import collate as _collate
    from torch.utils.data._utils import fetch as _fetch

    FUNCTIONS: dict[Any, Any] = _collate.default_collate_fn_map
    """torch's table of collate functions, by the type of a batch's first element."""
    _SUBSET_CODE: Any = torch.utils.data.Subset.__getitems__.__code__
    _FETCHERS.append(_fetch._MapDatasetFetcher.fetch.__code__)
    _TAKES_BATCHES[id(_collate.default_collate)] = _collate.default_collate  # last: only where all is known
except (ImportError, AttributeError):  # a job of numpy alone, or a torch that is built otherwise
    FUNCTIONS, _SUBSET_CODE = {}, None

_plain_functions: list[Any] = []
"""What is in the table while it is as torch made it, and ours; empty if it was changed before."""

CollateLeaf = Callable[[Numbers, Pool], Any]
"""Gathers one leaf of the picked rows: a tensor, or a list of str or bytes."""


class NotAStack(Exception):
    """A column whose collation is torch's own business."""


def register(row_type: type) -> None:
    """Tells torch's default collation about the type of a batch's first element."""
    if FUNCTIONS:
        is_plain = all(function.__module__ == _collate.__name__ for function in FUNCTIONS.values())
        FUNCTIONS[row_type] = collate_batch
        _plain_functions[:] = FUNCTIONS.values() if is_plain else ()


class TakesBatches:
    """A collate function that is an object and collates batches."""


def takes_batches(function: Any) -> None:
    """Says that a collate function collates batches."""
    _TAKES_BATCHES[id(function)] = function


def fetches(method: Any) -> None:
    """Says that a method asks a data set for batches to collate them by its object's `collate_fn`."""
    _FETCHERS.append(method.__code__)


def as_asked(batch: Any, source: Any, asked_by: FrameType | None) -> Any:
    """A batch of `source`, some `Samples`, as its data set gives it: as it is if it is collated so."""
    while asked_by is not None and asked_by.f_code is _SUBSET_CODE:
        asked_by = asked_by.f_back
    if asked_by is None or asked_by.f_code not in _FETCHERS:
        return list(batch)
    fetcher = asked_by.f_locals["self"]
    collate = fetcher.collate_fn
    # By its type: a wrapper may show the class of what it wraps.
    if id(collate) not in _TAKES_BATCHES and not issubclass(type(collate), TakesBatches):
        return list(batch)
    info = get_worker_info() if asked_by.f_code is _FETCHERS[0] else None
    if info is not None and fetcher.dataset is info.dataset and source.is_known_to_parent:
        batch.source = source
    return batch


def collate_batch(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """What torch calls for a batch."""
    if collate_fn_map is FUNCTIONS and list(FUNCTIONS.values()) == _plain_functions:
        collation = collation_of(batch.table)
        if batch.source is not None and collation.is_gathered:
            return ByIndex(batch, None)
        try:
            return collation.build([leaf(batch.numbers, batch.pool) for leaf in collation.leaves])
        except NotAStack:
            pass
    return _collate.collate(list(batch), collate_fn_map=collate_fn_map)


# --- a table's columns, collated ---


class Collation:
    """How a table's rows are collated."""

    def __init__(self, table: Table) -> None:
        self.leaves = [_collate_leaf(column) for column in table.columns]
        self.is_gathered = _refuse not in self.leaves
        self.build = builder(table.tree, list)
        numbered = builder(table.tree)(list(range(len(table.columns))))
        self.paths = [path for path, _ in leaves_of(numbered)]
        self.planned: Any = None  # kept by prepcache.collate


def collation_of(table: Table) -> Collation:
    if table.collation is None:
        table.collation = Collation(table)
    collation: Collation = table.collation
    return collation


def _collate_leaf(column: Dense | Ragged | None) -> CollateLeaf:
    if column is None:
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
    """Gathers where torch would copy what a worker sends: into memory that its job can map."""
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


def receives(samples: Any) -> None:
    """Has batches of these `Samples` of a data set arrive in this process."""
    _DATASETS.add(samples)


class ByIndex:
    """A batch on its way: pickled here, it is unpickled as the batch.

    Args:
        batch: with a `source`.
        collate: of ours; None for torch's default collation.
    """

    __slots__ = ("_sent",)

    def __init__(self, batch: Any, collate: Any) -> None:
        source, at = batch.source, batch.indices
        count = len(source)
        small = np.where(at < 0, at + count, at).astype(np.min_scalar_type(max(count, 1)))
        worker: Any = get_worker_info()
        self._sent = source.token, count, small.dtype.char, small.tobytes(), collate, worker.id

    def __reduce__(self) -> Any:
        return arrived, self._sent


def arrived(token: str, count: int, dtype: str, raw: bytes, collate: Any, worker: int) -> Any:
    """The batch that a worker named, in the process that receives it; or torch's wrapper of an error."""
    try:
        batch = _found(token, count).gathered(np.frombuffer(raw, dtype).astype(np.int64))
        return (collate or _collate.default_collate)(batch)
    except Exception:  # noqa: BLE001 - raised by the DataLoader in the batch's turn
        return ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]


def _found(token: str, count: int) -> Any:
    lengths = {len(one): one for one in _DATASETS if one.token == token}
    if count not in lengths:
        raise RuntimeError(
            "a DataLoader worker sent positions of a CachedDataset that this process has deleted or prepared "
            "again: keep it until its last batch has arrived, and start a new epoch after prepare()"
        )
    return lengths[count]
