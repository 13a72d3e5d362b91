"""Collation by columns: what torch's `default_collate` makes of samples, without the samples.

A DataLoader worker gathers into memory that it lends its job, and sends where that is:

    worker:  fetch ── __getitems__ ──> Batch ── collation ──> gathered into a block ── pickled: its place ──┐
    job:     gone, the block is the worker's again <── the batch <── looks into the block <── unpickled <───┘

Invariants:
    1. The result equals torch's. A column whose collation is not known to be a plain stack is left to
       torch's own code, and so is every batch if its table of functions holds one that is not torch's.
    2. Only torch's own fetcher and `Loader` are given a `Batch`, where their collate function takes one. The
       user's code sees lists of samples.
    3. What torch's fetcher makes in a worker, by any collate function, is sent by `Lends`: each array, and
       each tensor that is all of its storage; less than `SMALL_BYTES` lies in the message. Other tensors,
       and all where processes may not open each other's files, travel as torch sends them.

Source: torch.utils.data._utils.collate, and tests/property/test_batch_property.py, which compares.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
import weakref
from collections import abc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prepcache.artifact import columns
from prepcache.artifact.reader import Mapping, builder, memory_file
from prepcache.artifact.sample_tree import leaves_of, rebuilt
from prepcache.batching.table import (
    PLACE_IN_PAGE,
    SMALL_BYTES,
    Dense,
    Numbers,
    Pool,
    Ragged,
    Ranges,
    Table,
    rounded,
)
from prepcache.namedtuples import is_namedtuple

TAKES_BATCHES: dict[int, Any] = {}
"""Functions that collate batches, and types of objects that do, by identity: what users pass may be equal to
others, have no hash, or show the class of what it wraps."""
FETCHERS: list[Any] = []
"""The code of methods that ask for a batch to collate it by `self.collate_fn`."""

try:
    import torch
    import torch.utils.data
    from torch.utils.data import get_worker_info as get_worker_info
    from torch.utils.data._utils import collate as _collate
    from torch.utils.data._utils import fetch as _fetch

    FUNCTIONS: dict[Any, Any] = _collate.default_collate_fn_map
    """torch's table of collate functions, by the type of a batch's first element."""
    _SUBSET_CODE: Any = torch.utils.data.Subset.__getitems__.__code__
    _TORCH_FETCHER: Any = _fetch._MapDatasetFetcher.fetch.__code__
    _STREAM_FETCHER: Any = _fetch._IterableDatasetFetcher.fetch.__code__
    FETCHERS.append(_TORCH_FETCHER)
    TAKES_BATCHES[id(_collate.default_collate)] = _collate.default_collate  # last: only where all is known
except (ImportError, AttributeError):  # a job of numpy alone, or a torch that is built otherwise
    FUNCTIONS, _SUBSET_CODE = {}, None

    def get_worker_info() -> None: ...


_plain_functions: list[Any] = []
"""What is in the table while it is as torch made it, and ours; empty if it was changed before."""

CollateLeaf = Callable[[Numbers, Pool], Any]
"""Gathers one leaf of the picked rows: a tensor, or `Texts`."""


class NotAStack(Exception):
    """A column whose collation is torch's own business."""


class Row:
    """What torch's collation sees of a batch of ours."""


class Gathered:
    """A `Batch`, which is gathered into memory of its pool."""

    __slots__ = ("pool",)
    pool: Pool


def as_asked(given: Any, asked_by: Any) -> Any:
    """A batch, or a list of samples, as its data set gives it to who asks."""
    lend_to_job(asked_by)
    while asked_by is not None and asked_by.f_code is _SUBSET_CODE:
        asked_by = asked_by.f_back
    if isinstance(given, list):
        return given
    if asked_by is None or asked_by.f_code not in FETCHERS:
        return list(given)
    collate = asked_by.f_locals["self"].collate_fn
    pool = LENDING if isinstance(collate, Lends) else given.pool
    collate = collate.function if isinstance(collate, Lends) else collate
    if id(collate) not in TAKES_BATCHES and id(type(collate)) not in TAKES_BATCHES:
        return list(given)
    given.pool = pool
    return given


def collate_batch(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """What torch calls for a batch."""
    is_sent = batch.pool is LENDING
    if _is_plain_table(collate_fn_map):
        collation = collation_of(batch.table)
        with suppress(NotAStack):
            leaves = [leaf(batch.numbers, batch.pool) for leaf in collation.leaves]
            return (collation.send if is_sent else collation.build)(leaves)
    if is_sent:
        batch.pool = Pool()  # what others make of samples may look into them until it has gone
    return _collate.collate(list(batch), collate_fn_map=collate_fn_map)


def _is_plain_table(functions: Any) -> bool:
    return functions is FUNCTIONS and list(FUNCTIONS.values()) == _plain_functions


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


def collation_of(table: Table) -> Collation:
    return table.collation or Collation(table)


def _collate_leaf(column: Dense | Ragged | None) -> CollateLeaf:
    if isinstance(column, Ragged) and column.leaf.kind in columns.BYTE_KINDS:
        return lambda numbers, pool: Texts(column.leaf, column.gather(numbers, pool))
    if column is None or (to_tensor := tensor_maker(column)) is None:
        return _refuse
    if not isinstance(column, Ragged):
        return lambda numbers, pool: to_tensor(column.gather(numbers, pool))

    def equal_rows(numbers: Numbers, pool: Pool) -> Any:
        rows = column.gather(numbers, pool)
        shapes = np.diff(rows.offsets)[:, None] if rows.shapes is None else rows.shapes
        if (shapes != shapes[0]).any():
            raise NotAStack
        return to_tensor(rows.values.reshape(numbers.size, *shapes[0]))

    return equal_rows


class Texts(NamedTuple):
    """A leaf of str or bytes, gathered."""

    leaf: columns.Leaf
    rows: Ranges

    def decoded(self, kind: type) -> Any:
        return kind(map(columns.decode_bytes(self.leaf), self.rows.octets()))


def _refuse(numbers: Numbers, pool: Pool) -> Any:
    raise NotAStack


def tensor_maker(column: Dense | Ragged) -> Callable[[Any], Any] | None:
    """What makes a tensor of a column's values, or None where torch goes by rules of its own."""
    if column.leaf.kind == "tensor":
        return columns.leaf_maker(column.leaf)
    dtype = torch.from_numpy(np.empty(0, column.dtype)).dtype
    if column.leaf.kind == "scalar" and torch.as_tensor([np.zeros((), column.dtype)[()]]).dtype != dtype:
        return None
    return torch.from_numpy


# --- what workers send: where it lies in memory that they lend their job ---

_SENDING: dict[Any, Any] = {}
"""torch's table of collate functions, for batches that are sent."""
_FREE, _SENT, _HELD, _LOST = range(4)
"""What the first byte of a block says: it is the worker's, nobody's, the job's, or that of its children."""
_LEAD_BYTES = PLACE_IN_PAGE
_MOST_BLOCKS = min(os.sysconf("SC_OPEN_MAX") // 4, 1024)
"""Of a worker, each with a descriptor: more are those of a job that collects batches."""
_IDLE_BATCHES = 32
"""A worker gives up a block that it has not used for so many batches."""
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class Sent:
    """What is in a message in place of a tensor: a call, which its unpickling makes."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call


def lend_to_job(asked_by: Any) -> None:
    """Has what torch's fetcher makes in this worker lie in memory lent to its job, from this batch on."""
    info: Any = get_worker_info()
    while info is not None and asked_by is not None:
        code, caller = asked_by.f_code, asked_by.f_back
        is_fetcher = code is _TORCH_FETCHER or code is _STREAM_FETCHER
        if is_fetcher and caller.f_code.co_name == "_worker_loop":  # and not a loader in this worker
            fetcher, job = asked_by.f_locals["self"], f"/proc/{os.getppid()}/fd"
            if not isinstance(fetcher.collate_fn, Lends) and os.access(job, os.R_OK):
                fetcher.collate_fn = Lends(fetcher.collate_fn)
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
            if self.function is _collate.default_collate and is_list and _is_plain_table(FUNCTIONS):
                return _collate.collate(samples, collate_fn_map=_SENDING)
            made = self.function(samples)
            is_sent = isinstance(samples, Gathered) and samples.pool is LENDING
            return made if is_sent else Sent(pickle.loads, (bytes(_Lender.dumps(made)),))
        except BaseException:
            LENDING.drop_batch()
            raise


def _is_bare(sample: Any) -> bool:
    """Whether no code of a container sees what is sent."""
    kind = type(sample)
    if kind in (dict, list, tuple) or (is_namedtuple(kind) and kind.__base__ is tuple):
        return all(map(_is_bare, sample.values() if kind is dict else sample))
    return kind in (str, bytes) or not isinstance(sample, abc.Mapping | abc.Sequence)


class _Lender(ForkingPickler):
    """Pickles what a collate function made: of arrays and whole tensors, where they lie in lent memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent: dict[int, Any] = {}  # of each storage; None if torch sends it

    def reducer_override(self, one: Any) -> Any:
        is_large = type(one) is np.ndarray and one.nbytes >= SMALL_BYTES and one.flags.carray
        if is_large and one.dtype.isnative and one.dtype.char in "?bBhilqefdFD":
            return torch.Tensor.numpy, (_put(torch.from_numpy(one)),)
        if not _is_plain(one):
            return NotImplemented
        storage = one.untyped_storage()
        if storage._cdata not in self._sent:
            whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            self._sent[storage._cdata] = _put(whole) if whole.nbytes == one.nbytes else None
        sent, place = self._sent[storage._cdata], (tuple(one.shape), one.stride(), one.storage_offset())
        return (_view, (sent, one.dtype, *place)) if isinstance(sent, Sent) else NotImplemented


def _view(raw: Any, dtype: Any, *place: Any) -> Any:
    return raw.view(dtype).as_strided(*place)


class _Block:
    """Memory of this worker, which its job maps by the descriptor."""

    def __init__(self, size_bytes: int) -> None:
        self.fd = memory_file("prepcache batch")
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.truncate(self.fd, size_bytes)
        self.memory = np.asarray(Mapping(size_bytes, _READ_WRITE, mmap.MAP_SHARED, self.fd))
        self.place = os.getpid(), self.fd, os.fstat(self.fd).st_ino, size_bytes
        self.used_at = 0  # the last batch that it was for


class _Lending(Pool):
    """The blocks of this worker, one for each column of a batch."""

    def after_fork(self) -> None:
        super().after_fork()
        self._all: list[_Block] = []
        self._taken: dict[int, _Block] = {}  # for the batch that is gathered, by the address of its column
        self._sent: list[_Block] = []  # of that batch
        self._batch = 0

    def begin_batch(self) -> None:
        """Of the last one all is sent that will be."""
        for block in self._taken.values():
            block.memory[0] = _FREE
        self._taken.clear()
        self._sent.clear()
        self._batch += 1
        oldest = self._batch - _IDLE_BATCHES
        self._all = [one for one in self._all if one.memory[0] != _FREE or one.used_at >= oldest]

    def drop_batch(self) -> None:
        """Nothing of this one is sent."""
        for block in self._sent:
            block.memory[0] = _FREE

    def _free_block(self, size_bytes: int) -> tuple[Any, int]:
        with suppress(OSError):
            return self.block(size_bytes).memory, _LEAD_BYTES
        return super()._free_block(size_bytes)

    def block(self, size_bytes: int) -> _Block:
        """One for so many bytes. Raises OSError: there is no descriptor left, or no file in memory."""
        size_bytes = rounded(size_bytes + _LEAD_BYTES)
        for block in self._all:
            if block.memory[0] == _FREE and size_bytes <= block.memory.size <= 2 * size_bytes:
                break
        else:
            self._all = [block for block in self._all if block.memory[0] != _LOST]
            if len(self._all) >= _MOST_BLOCKS:
                self._all = [block for block in self._all if block.memory[0] == _SENT]
            self._all.append(block := _Block(size_bytes))
        block.memory[0], block.used_at = _SENT, self._batch
        self._taken[block.memory.ctypes.data + _LEAD_BYTES] = block
        return block

    def sent(self, made: Any) -> Sent | None:
        """What is sent of a tensor that fills a block, from its begin."""
        if not made.is_contiguous() or (block := self._taken.pop(made.data_ptr(), None)) is None:
            return None
        self._sent.append(block)
        return Sent(_received, (block.place, made.nbytes, tuple(made.shape), made.dtype))


def _stacked(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """As torch's, for tensors as they mostly are."""
    first = batch[0]
    if not _is_plain(first):
        return _collate.collate_tensor_fn(batch)
    return lent(torch.stack(batch, 0, out=_room((len(batch), *first.shape), first.dtype)))


def lent(made: Any) -> Any:
    """What is sent of a leaf of a batch."""
    return _put(made) if _is_plain(made) else made


def _put(made: Any) -> Any:
    """The same, of a plain tensor."""
    if made.nbytes < SMALL_BYTES:
        raw = made.reshape(-1).view(torch.uint8).numpy().tobytes()
        return Sent(_small, (raw, tuple(made.shape), made.dtype))
    return LENDING.sent(made) or LENDING.sent(_room(tuple(made.shape), made.dtype).copy_(made)) or made


def _sent(leaf: Any, strings: type) -> Any:
    """What is sent of a leaf of a `Batch`."""
    if isinstance(leaf, Texts):
        return Sent(
            _decoded, (leaf.leaf, _put(torch.from_numpy(leaf.rows.values)), leaf.rows.offsets, strings)
        )
    return _put(leaf) if type(leaf) is torch.Tensor else rebuilt(leaf, lambda _, one: lent(one))


def _decoded(leaf: columns.Leaf, values: Any, offsets: Any, strings: type) -> Any:
    return Texts(leaf, Ranges(values.numpy(), offsets, None)).decoded(strings)


def _is_plain(one: Any) -> bool:
    if type(one) is not torch.Tensor or one.layout is not torch.strided or one.device.type != "cpu":
        return False
    return not (one.is_nested or one.requires_grad or one.is_quantized or one.is_conj() or one.is_neg())


def _room(shape: tuple[int, ...], dtype: Any) -> Any:
    """A tensor to be filled, in a block if it is large."""
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes >= SMALL_BYTES:
        with suppress(OSError):
            return _tensor(LENDING.block(size_bytes).memory[_LEAD_BYTES:][:size_bytes], shape, dtype)
    return torch.empty(shape, dtype=dtype)


def _sending(function: Any) -> Any:
    """A function of torch's table for numbers."""
    return lambda batch, *, collate_fn_map=None: lent(function(batch, collate_fn_map=collate_fn_map))


def _small(raw: bytes, shape: tuple[int, ...], dtype: Any) -> Any:
    if not raw:
        return torch.empty(shape, dtype=dtype, device="cpu")
    flat = torch.frombuffer(bytearray(raw), dtype=dtype)
    return flat if len(shape) == 1 else flat.view(shape)


def _tensor(raw: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.from_numpy(raw).view(dtype).view(shape)


_BEGUN, _ENDED = list[int](), list[int]()
"""An entry for each fork: while one is under way, another thread may let go of what the child has."""
_MAPS: dict[tuple[int, ...], Any] = {}
"""Blocks of workers, in the process that reads them; the one that was used last is last."""
_end = partial(_ENDED.append, 0)
os.register_at_fork(before=partial(_BEGUN.append, 0), after_in_parent=_end, after_in_child=_end)
os.register_at_fork(after_in_child=_MAPS.clear)


class _Map(Mapping):
    """A block of a worker's, by a `place` that no other block has while it is mapped."""

    def __init__(self, place: tuple[int, ...]) -> None:
        self.place = place
        worker, fd, self._number, size_bytes = place
        self._path = Path(f"/proc/{worker}/fd/{fd}")
        try:
            file = self._path.open("r+b", 0)
        except OSError:  # torch says so too, once the worker's end is seen
            raise RuntimeError(f"DataLoader worker (pid {worker}) ended before its batch was read") from None
        with file:
            super().__init__(size_bytes, _READ_WRITE, mmap.MAP_SHARED, file.fileno())

    def mark(self, state: int) -> None:
        ctypes.memset(self._place[0], state, 1)

    def is_kept(self) -> bool:
        """Whether its worker still has it."""
        with suppress(OSError):
            return self._path.stat().st_ino == self._number
        return False


class _Hold:
    """What is left of a batch in a block: when it is gone the worker may use the block again, unless a child
    of this process has it, too."""

    def __init__(self, block: _Map) -> None:
        self._forks, self._block = len(_ENDED), block
        self.__array_interface__ = block.__array_interface__
        block.mark(_HELD)

    def __del__(self) -> None:
        self._block.mark(_FREE if self._forks == len(_BEGUN) == len(_ENDED) else _LOST)
        if self._block.place in _MAPS and not self._block.is_kept():
            _forget()


def _forget() -> None:
    for place, block in list(_MAPS.items()):
        if not block.is_kept():
            _MAPS.pop(place, None)


def _received(place: tuple[int, ...], size_bytes: int, *of: Any) -> Any:
    _MAPS[place] = block = _MAPS.pop(place, None) or _Map(place)  # the last one
    for oldest, one in list(_MAPS.items())[:1]:
        if not one.is_kept():
            _MAPS.pop(oldest, None)
    return _tensor(np.asarray(_Hold(block))[_LEAD_BYTES:][:size_bytes], *of)


if FUNCTIONS:  # torch's default collation is told about the type of a batch's first element
    _SENDING.update({kind: _sending(function) for kind, function in FUNCTIONS.items()})
    _SENDING[torch.Tensor] = _stacked
    _is_as_made = all(function.__module__ == _collate.__name__ for function in FUNCTIONS.values())
    FUNCTIONS[Row] = collate_batch
    _plain_functions[:] = FUNCTIONS.values() if _is_as_made else ()
LENDING = _Lending()
"""The pool of a batch that is gathered to be sent."""
