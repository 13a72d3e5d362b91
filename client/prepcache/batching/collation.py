"""Collation by columns: what torch's `default_collate` makes of samples, without the samples.

In a DataLoader worker, a batch that the job can gather itself is sent as the positions of its samples:

    worker:  fetch ── __getitems__ ──> Batch ── collation ──> by_index ── pickled: some bytes a sample ─┐
    job:     the batch  <── collated and gathered into recycled memory <── Batch <── unpickled  <───────┘

Invariants:
    1. The result equals torch's. A column whose collation is not known to be a plain stack is left to
       torch's own code, and so is every batch if its table of functions holds one that is not torch's.
    2. Only torch's own fetcher and `Loader` are given a `Batch`, where its collate function takes one, and
       then a `Sent`, which the fetcher hands on to the queue. The user's code sees lists of samples.
    3. A batch is sent by index only of a data set that the job has: the DataLoader's `dataset`, or one that
       this is a `Subset` of, which this worker did not open. The job has its rows, or asks the daemon.
    4. What fails in the job fails in the turn of its batch, as what fails in a worker does.
    5. What torch's default collation, or ours, makes of other samples of a worker's (of a transform, or that
       the worker alone has) lies in memory that the worker lends its job (below). What another collate
       function makes travels as torch sends tensors.

Source: torch.utils.data._utils.collate, and tests/property/test_batch_property.py, which compares.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from collections import abc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, cast

import numpy as np

from prepcache.artifact import columns
from prepcache.artifact.reader import Mapping, builder, memory_file
from prepcache.artifact.sample_tree import leaves_of
from prepcache.batching.table import (
    KEPT_BLOCKS,
    SMALL_BYTES,
    Dense,
    Numbers,
    Pool,
    Ragged,
    Ranges,
    Table,
    rounded,
)
from prepcache.forks import Living
from prepcache.namedtuples import is_namedtuple

TAKES_BATCHES: dict[int, Any] = {}
"""Functions that collate batches, and types of objects that do, by identity: what users pass may be equal to
others, have no hash, or show the class of what it wraps."""
FETCHERS: list[Any] = []
"""The code of methods that ask for a batch to collate it by `self.collate_fn`."""

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
    _ALONE_CODE: Any = torch.utils.data.dataloader._SingleProcessDataLoaderIter._next_data.__code__
    _TORCH_FETCHER: Any = _fetch._MapDatasetFetcher.fetch.__code__
    FETCHERS.append(_TORCH_FETCHER)
    TAKES_BATCHES[id(_collate.default_collate)] = _collate.default_collate  # last: only where all is known
except (ImportError, AttributeError):  # a job of numpy alone, or a torch that is built otherwise
    FUNCTIONS, _SUBSET_CODE, _ALONE_CODE, _TORCH_FETCHER = {}, None, None, None

_plain_functions: list[Any] = []
"""What is in the table while it is as torch made it, and ours; empty if it was changed before."""

CollateLeaf = Callable[[Numbers, Pool], Any]
"""Gathers one leaf of the picked rows: a tensor, or a list of str or bytes."""


class NotAStack(Exception):
    """A column whose collation is torch's own business."""


class Row:
    """What torch's collation sees of a batch of ours."""


def as_asked(given: Any, source: Any, asked_by: Any) -> Any:
    """A batch or a list of samples of `source`, some `Samples`, as its data set gives them to who asks."""
    while asked_by is not None and asked_by.f_code is _SUBSET_CODE:
        asked_by = asked_by.f_back
    if asked_by is None or asked_by.f_code not in FETCHERS:
        return list(given)
    fetcher = asked_by.f_locals["self"]
    collate = fetcher.collate_fn
    is_torchs = asked_by.f_code is _TORCH_FETCHER
    is_alone = not is_torchs or asked_by.f_back.f_code is _ALONE_CODE  # in a worker, too
    info = None if is_alone else get_worker_info()
    is_sent = info is not None and fetcher.dataset is info.dataset
    is_named = is_sent and source.is_known_to_parent
    is_taken = not TAKES_BATCHES.keys().isdisjoint((id(collate), id(type(collate))))
    if is_taken and not isinstance(given, list) and (info is None or is_named):
        given.source = source if is_named else None
        return given
    samples = list(given)
    return Made(samples) if is_sent and is_taken and samples and _lends(samples[0]) else samples


def collate_batch(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """What torch calls for a batch."""
    is_plain = collate_fn_map is FUNCTIONS and list(FUNCTIONS.values()) == _plain_functions
    if isinstance(batch, Made):
        return _collate.collate(batch.samples, collate_fn_map=_SENDING if is_plain else collate_fn_map)
    if is_plain:
        collation = collation_of(batch.table)
        if batch.source is not None and collation.is_gathered:
            return by_index(batch, None)
        try:
            return collation.build([leaf(batch.numbers, batch.pool) for leaf in collation.leaves])
        except NotAStack:
            pass
    return _collate.collate(list(batch), collate_fn_map=collate_fn_map)


# --- a table's columns, collated ---


class Collation:
    """How a table's rows are collated."""

    def __init__(self, table: Table) -> None:
        table.collation = self
        self.leaves = [_collate_leaf(column) for column in table.columns]
        self.is_gathered = _refuse not in self.leaves
        self.build = builder(table.tree, list)
        numbered = builder(table.tree)(list(range(len(table.columns))))
        self.paths = [path for path, _ in leaves_of(numbered)]
        self.planned: Any = None  # kept by prepcache.collate


def collation_of(table: Table) -> Collation:
    return table.collation or Collation(table)


def _collate_leaf(column: Dense | Ragged | None) -> CollateLeaf:
    if column is None:
        return _refuse
    if isinstance(column, Ragged) and column.leaf.kind in columns.BYTE_KINDS:
        decode = columns.decode_bytes(column.leaf)
        return lambda numbers, pool: list(map(decode, column.gather(numbers, pool).octets()))
    to_tensor = tensor_maker(column)
    if to_tensor is None:
        return _refuse
    if isinstance(column, Ragged):
        return _equal_rows(column, to_tensor)
    return lambda numbers, pool: to_tensor(column.gather(numbers, pool))


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


def tensor_maker(column: Dense | Ragged) -> Callable[[Any], Any] | None:
    """What makes a tensor of a column's values, or None where torch goes by rules of its own."""
    if column.leaf.kind == "tensor":
        return columns.leaf_maker(column.leaf)
    dtype = torch.from_numpy(np.empty(0, column.dtype)).dtype
    if column.leaf.kind == "scalar" and torch.as_tensor([np.zeros((), column.dtype)[()]]).dtype != dtype:
        return None
    return torch.from_numpy


# --- what workers send ---

_DATASETS: Living[Any] = Living()
"""Those of this process."""


def receives(samples: Any) -> None:
    """Has batches of these `Samples` of a data set arrive in this process."""
    _DATASETS.add(samples)


class Sent:
    """What is in a message in place of a batch, or of a tensor: a call, which its unpickling makes."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call


def by_index(batch: Any, collate: Any) -> Sent:
    """A batch that has a `source`, for the job to gather; `collate`: of ours, None for torch's default."""
    source, at, worker = batch.source, batch.indices, cast(Any, get_worker_info())
    count = len(source)
    small = np.where(at < 0, at + count, at).astype(np.min_scalar_type(max(count, 1)))
    sent = source.token, count, small.dtype.char, small.tobytes(), collate, worker.id
    return Sent(arrived, sent)


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


# --- what travels as bytes: in memory that a worker lends its job ---

_SENDING: dict[Any, Any] = {}
"""torch's table of collate functions, for batches that are sent."""
_FREE, _SENT, _HELD = range(3)
"""What the first byte of a block says: whose it is, the worker's, nobody's, or the job's."""
_LEAD_BYTES = 64
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class Made:
    """Samples of a worker's whose batch is put into lent memory."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __getitem__(self, index: Literal[0]) -> Row:
        return Row()


def _lends(sample: Any) -> bool:
    """Whether job and worker may open each other's files, and no code of a container sees what is sent."""
    return os.access(f"/proc/{os.getppid()}/fd", os.R_OK) and _is_bare(sample)


def _is_bare(sample: Any) -> bool:
    kind = type(sample)
    if kind in (dict, list, tuple) or (is_namedtuple(kind) and kind.__base__ is tuple):
        return all(map(_is_bare, sample.values() if kind is dict else sample))
    return kind in (str, bytes) or not isinstance(sample, abc.Mapping | abc.Sequence)


class _Block:
    """Memory of this worker, which its job maps by the descriptor."""

    def __init__(self, size_bytes: int) -> None:
        self.fd = memory_file("prepcache batch")
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.truncate(self.fd, size_bytes)
        self.memory = np.asarray(Mapping(size_bytes, _READ_WRITE, mmap.MAP_SHARED, self.fd))


_BLOCKS: list[_Block] = []


def _block(size_bytes: int) -> _Block:
    for block in _BLOCKS:
        if block.memory[0] == _FREE and size_bytes <= block.memory.size <= 2 * size_bytes:
            return block
    if len(_BLOCKS) >= KEPT_BLOCKS:  # somebody collects batches
        _BLOCKS[:] = [block for block in _BLOCKS if block.memory[0] == _SENT]
    _BLOCKS.append(_Block(rounded(size_bytes)))
    return _BLOCKS[-1]


def _stacked(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """As torch's, for tensors as they mostly are."""
    first = batch[0]
    if not _is_plain(first):
        return _collate.collate_tensor_fn(batch)
    return _filled((len(batch), *first.shape), first.dtype, lambda out: torch.stack(batch, 0, out=out))


def lent(made: Any) -> Any:
    """What is sent of a leaf of a batch."""
    return _filled(tuple(made.shape), made.dtype, lambda out: out.copy_(made)) if _is_plain(made) else made


def _is_plain(one: Any) -> bool:
    is_plain = type(one) is torch.Tensor and one.layout is torch.strided and one.device.type == "cpu"
    return is_plain and not (one.is_nested or one.requires_grad or one.is_quantized)


def _filled(shape: tuple[int, ...], dtype: Any, fill: Callable[[Any], Any]) -> Any:
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes >= SMALL_BYTES:
        with suppress(OSError):  # there is no descriptor left, or memfd_create is forbidden
            block = _block(_LEAD_BYTES + size_bytes)
            fill(_tensor(block.memory[_LEAD_BYTES:][:size_bytes], shape, dtype))
            block.memory[0] = _SENT
            return Sent(_received, (os.getpid(), block.fd, block.memory.size, size_bytes, shape, dtype))
    out = torch.empty(shape, dtype=dtype)
    fill(out)
    of = out.reshape(-1).view(torch.uint8).numpy(), shape, dtype
    return out if size_bytes >= SMALL_BYTES else Sent(_tensor, of)


def _sending(function: Any) -> Any:
    """A function of torch's table for numbers."""
    return lambda batch, *, collate_fn_map=None: lent(function(batch, collate_fn_map=collate_fn_map))


def _tensor(raw: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.from_numpy(raw).view(dtype).view(shape)


_BEGUN, _ENDED = list[int](), list[int]()
"""An entry for each fork: while one is under way, another thread may let go of what the child has."""
_end = partial(_ENDED.append, 0)
os.register_at_fork(before=partial(_BEGUN.append, 0), after_in_parent=_end, after_in_child=_end)


class _Lent(Mapping):
    """A worker's block, in the process that reads it: the worker's again when nobody can, a child neither."""

    def __init__(self, worker: int, fd: int, size_bytes: int) -> None:
        self._forks = len(_ENDED)
        with open(f"/proc/{worker}/fd/{fd}", "r+b", 0) as file:
            super().__init__(size_bytes, _READ_WRITE, mmap.MAP_SHARED, file.fileno())
        ctypes.memset(self._place[0], _HELD, 1)

    def __del__(self) -> None:
        if "_place" in vars(self) and self._forks == len(_BEGUN) == len(_ENDED):
            ctypes.memset(self._place[0], _FREE, 1)
        super().__del__()


def _received(worker: int, fd: int, block_bytes: int, size_bytes: int, *of: Any) -> Any:
    return _tensor(np.asarray(_Lent(worker, fd, block_bytes))[_LEAD_BYTES:][:size_bytes], *of)


if FUNCTIONS:  # torch's default collation is told about the type of a batch's first element
    _SENDING.update({kind: _sending(function) for kind, function in FUNCTIONS.items()})
    _SENDING[torch.Tensor] = _stacked
    _is_as_made = all(function.__module__ == _collate.__name__ for function in FUNCTIONS.values())
    FUNCTIONS[Row] = collate_batch
    _plain_functions[:] = FUNCTIONS.values() if _is_as_made else ()
