"""Collation by columns: what torch's `default_collate` makes of samples, without the samples.

A DataLoader worker gathers into memory that it lends its job, and sends where that is:

    worker:  fetch ── __getitems__ ──> Batch ── collation ──> gathered into a block ── pickled: its place ──┐
    job:     gone, the block is the worker's again <── the batch <── looks into the block <── unpickled <───┘

Invariants:
    1. The result equals torch's. A column whose collation is not known to be a plain stack is left to
       torch's own code, and so is every batch if somebody has changed what that calls.
    2. Only torch's own fetcher and `Loader` are given a `Batch`, where their collate function takes one. The
       user's code sees lists of samples.
    3. What torch's fetcher makes in a worker, by any collate function, is sent by `Lends`: each array, and
       each tensor that is all of its storage; less than `SMALL_BYTES` lies in the message. Other tensors,
       and all where processes may not open each other's files, travel as torch sends them.

Source: torch.utils.data._utils.collate, and tests/property/test_batch_property.py, which compares.
"""

from __future__ import annotations

import os
import pickle
from collections import abc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from prepcache.artifact import columns
from prepcache.artifact.reader import builder
from prepcache.artifact.sample_tree import leaves_of, rebuilt
from prepcache.batching.lending import LENDING, Lender, Sent, is_plain, lent, room
from prepcache.batching.table import Dense, Numbers, Pool, Ragged, Ranges, Table
from prepcache.namedtuples import is_namedtuple

TAKES_BATCHES: dict[int, Any] = {}
"""Functions that collate batches, and types of objects that do, by identity: what users pass may be equal to
others, have no hash, or show the class of what it wraps."""
FETCHERS: list[Any] = []
"""The code of methods that ask for a batch, and then collate it by their `self.collate_fn`."""

try:
    import torch
    import torch.utils.data
    from torch.utils.data import get_worker_info as get_worker_info
    from torch.utils.data._utils import collate as _collate
    from torch.utils.data._utils import fetch as _fetch

    _SUBSET_CODE: Any = torch.utils.data.Subset.__getitems__.__code__
    _TORCH_FETCHER: Any = _fetch._MapDatasetFetcher.fetch.__code__
    _STREAM_FETCHER: Any = _fetch._IterableDatasetFetcher.fetch.__code__
    if _fetch._MapDatasetFetcher.fetch.__globals__ is vars(_fetch):  # and not somebody's
        FETCHERS.append(_TORCH_FETCHER)
    _DEFAULT: Any = _collate.default_collate
    _plain_functions: list[Any] = [_collate.collate, *_collate.default_collate_fn_map.values()]
    """What torch's default collation calls as torch made it; empty if it was changed before."""
    if any(getattr(f, "__globals__", None) is not vars(_collate) for f in (_DEFAULT, *_plain_functions)):
        _plain_functions = []
except (ImportError, AttributeError):  # a job of numpy alone, or a torch that is built otherwise
    _plain_functions, _SUBSET_CODE, _DEFAULT = [], None, None

    def get_worker_info() -> None: ...


CollateLeaf = tuple[Callable[[Numbers, Pool], Any], Callable[[Any], Any]]
"""What gathers one leaf of the picked rows, and what makes of that a tensor, or `Texts`."""


class NotAStack(Exception):
    """A column whose collation is torch's own business."""


class Gathered:
    """A `Batch`, which is gathered into memory of its pool."""

    __slots__ = ("pool",)
    pool: Pool


def as_asked(given: Any, asked_by: Any) -> Any:
    """A batch, or a list of samples, as its data set gives it to who asks."""
    if get_worker_info() is not None:
        lend_to_job(asked_by)
    while asked_by is not None and asked_by.f_code is _SUBSET_CODE:
        asked_by = asked_by.f_back
    if isinstance(given, list):
        return given
    if asked_by is None or asked_by.f_code not in FETCHERS:
        return list(given)
    fetcher = asked_by.f_locals["self"]
    if fetcher.collate_fn is _DEFAULT:
        fetcher.collate_fn = default_collate
    asks = fetcher.collate_fn
    collate = asks.function if isinstance(asks, Lends) else asks
    if id(collate) not in TAKES_BATCHES and id(type(collate)) not in TAKES_BATCHES:
        return list(given)
    if collate is not asks:
        given.pool = LENDING
    return given


def default_collate(samples: Any) -> Any:
    """What torch's makes of samples, also of a `Batch`."""
    if not isinstance(samples, Gathered):
        return _DEFAULT(samples)
    batch: Any = samples
    numbers, pool = batch.numbers, batch.pool
    is_sent = pool is LENDING
    if [_collate.collate, *_collate.default_collate_fn_map.values()] == _plain_functions:
        collation = batch.table.collation or Collation(batch.table)
        try:
            leaves = [made_of(gather(numbers, pool)) for gather, made_of in collation.leaves]
            return (collation.send if is_sent else collation.build)(leaves)
        except NotAStack:
            pass
    if is_sent:
        batch.pool = Pool()  # what others make of samples may look into them until it has gone
    return _DEFAULT(list(batch))


# --- a table's columns, collated ---


class Collation:
    """How a table's rows are collated."""

    def __init__(self, table: Table) -> None:
        self.leaves = [_collate_leaf(column) for column in table.columns]
        numbers = list(range(len(table.columns)))
        kinds = enumerate(column and column.leaf.kind for column in table.columns)
        texts = {number: Texts.decoded for number, kind in kinds if kind in columns.BYTE_KINDS}
        self.build, self.send = builder(table.tree, texts), builder(table.tree, dict.fromkeys(numbers, _sent))
        numbered = builder(table.tree)(numbers)
        self.paths = [path for path, _ in leaves_of(numbered)]
        self.planned: Any = None  # kept by prepcache.collate
        table.collation = self


def _collate_leaf(column: Dense | Ragged | None) -> CollateLeaf:
    if isinstance(column, Ragged) and column.leaf.kind in columns.BYTE_KINDS:
        return column.gather, partial(Texts, column.leaf)
    if column is None or (to_tensor := tensor_maker(column)) is None:
        return _refuse, list
    if not isinstance(column, Ragged):
        return column.gather, to_tensor

    def equal_rows(numbers: Numbers, pool: Pool) -> Any:
        rows = column.gather(numbers, pool)
        shapes = np.diff(rows.offsets)[:, None] if rows.shapes is None else rows.shapes
        if (shapes != shapes[0]).any():
            raise NotAStack
        return rows.values.reshape(numbers.size, *shapes[0])

    return equal_rows, to_tensor


class Texts(NamedTuple):
    """A leaf of str or bytes, gathered."""

    leaf: columns.Leaf
    rows: Ranges

    def decoded(self, kind: type) -> Any:
        return kind(self.rows.strings(self.leaf))


def _refuse(numbers: Numbers, pool: Pool) -> Any:
    raise NotAStack


def tensor_maker(column: Dense | Ragged) -> Callable[[Any], Any] | None:
    """What makes a tensor of a column's values, or None where torch goes by rules of its own."""
    if column.leaf.kind == "tensor":
        return columns.leaf_maker(column.leaf)
    dtype, like_scalar = torch.from_numpy(np.empty(0, column.dtype)).dtype, None
    with suppress(TypeError):  # of uint64
        like_scalar = torch.as_tensor([np.zeros((), column.dtype)[()]]).dtype
    return torch.from_numpy if column.leaf.kind != "scalar" or like_scalar == dtype else None


TAKES_BATCHES[id(default_collate)] = default_collate

# --- in a worker, to be sent ---

_SENDING: dict[Any, Any] = {}
"""torch's table of collate functions, for batches that are sent."""


def lend_to_job(asked_by: Any) -> None:
    """Has what torch's fetcher makes in this worker lie in memory lent to its job, from this batch on."""
    info: Any = get_worker_info()
    while info is not None and asked_by is not None:
        code, caller = asked_by.f_code, asked_by.f_back
        is_fetcher = code is _TORCH_FETCHER or code is _STREAM_FETCHER
        if is_fetcher and caller.f_code.co_name == "_worker_loop":  # and not a loader in this worker
            fetcher, job = asked_by.f_locals["self"], f"/proc/{os.getppid()}/fd"
            if not isinstance(fetcher.collate_fn, Lends) and os.access(job, os.R_OK):
                asks = fetcher.collate_fn
                fetcher.collate_fn = Lends(default_collate if asks is _DEFAULT else asks)
            return
        asked_by = caller


class Lends:
    """A DataLoader's collate function in its worker: what it makes, as it is sent."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, samples: Any) -> Any:
        LENDING.begin_batch()
        try:
            is_list = type(samples) is list and samples and _is_bare(samples[0])
            functions = [_collate.collate, *_collate.default_collate_fn_map.values()]
            if self.function is default_collate and is_list and functions == _plain_functions:
                return _collate.collate(samples, collate_fn_map=_SENDING)
            made = self.function(samples)
            is_sent = isinstance(samples, Gathered) and samples.pool is LENDING
            return made if is_sent else Sent(pickle.loads, (bytes(Lender.dumps(made)),))
        except BaseException:
            LENDING.drop_batch()
            raise


def _is_bare(sample: Any) -> bool:
    """Whether no code of a container sees what is sent."""
    kind = type(sample)
    if kind in (dict, list, tuple) or (is_namedtuple(kind) and kind.__base__ is tuple):
        return all(map(_is_bare, sample.values() if kind is dict else sample))
    return kind in (str, bytes) or not isinstance(sample, abc.Mapping | abc.Sequence)


def _stacked(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """As torch's, for tensors as they mostly are."""
    first = batch[0]
    if not is_plain(first):
        return _collate.collate_tensor_fn(batch)
    return lent(torch.stack(batch, 0, out=room((len(batch), *first.shape), first.dtype)))


def _sent(leaf: Any, strings: type) -> Any:
    """What is sent of a leaf of a `Batch`."""
    if isinstance(leaf, Texts):
        values, offsets = (lent(torch.from_numpy(one)) for one in (leaf.rows.values, leaf.rows.offsets))
        return Sent(_decoded, (leaf.leaf, values, offsets, strings))
    return lent(leaf) if type(leaf) is torch.Tensor else rebuilt(leaf, lambda _, one: lent(one))


def _decoded(leaf: columns.Leaf, values: Any, offsets: Any, strings: type) -> Any:
    return Texts(leaf, Ranges(values.numpy(), offsets.numpy(), None)).decoded(strings)


def _sending(function: Any) -> Any:
    """A function of torch's table for numbers."""
    return lambda batch, *, collate_fn_map=None: lent(function(batch, collate_fn_map=collate_fn_map))


if _plain_functions:
    _SENDING.update({kind: _sending(made) for kind, made in _collate.default_collate_fn_map.items()})
    _SENDING[torch.Tensor] = _stacked
