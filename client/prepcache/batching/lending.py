"""Memory that a DataLoader worker lends its job: a batch is gathered, stacked or copied into it, to be sent.

NOTE [ Blocks ]
    A block is a file in memory, which its worker makes and its job maps by the worker's descriptor. Its first
    byte says whose it is:

        FREE -> SENT    by the worker, which puts the place of the block into its message
        SENT -> FREE    by the worker, where nothing was sent
        SENT -> HELD    by the job, which unpickles the message
        HELD -> FREE    by the job, when nothing refers to the batch any more
        HELD -> LOST    by the job, in place of that, where a child of it may still read the batch

    Both keep their maps. A worker gives up blocks that are LOST, or that it has not used for some batches;
    then the job gives up its maps of them. The second byte says so where a job collects batches.

Invariants:
    1. Nobody writes into a block while the other one has it.
    2. A message is pickled by another thread, later: nothing in it looks into memory of the worker that is
       not in a block.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from contextlib import suppress
from functools import partial
from itertools import islice
from multiprocessing import active_children
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np

from prepcache.artifact.reader import Mapping, memory_file
from prepcache.batching.table import PLACE_IN_PAGE, SMALL_BYTES, Pool, rounded
from prepcache.forks import note

with suppress(ImportError):  # a job of numpy alone lends nothing
    import torch

_FREE, _SENT, _HELD, _LOST = range(4)
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


class Lender(ForkingPickler):
    """Pickles what a collate function made: of arrays and whole tensors, where they lie in lent memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent: dict[int, Any] = {}  # of each storage; None if torch sends it

    def reducer_override(self, one: Any) -> Any:
        is_large = type(one) is np.ndarray and one.nbytes >= SMALL_BYTES and one.flags.carray
        if is_large and one.dtype.isnative and one.dtype.char in "?bBhilqefdFD":
            return torch.Tensor.numpy, (lent(torch.from_numpy(one)),)
        if not is_plain(one):
            return NotImplemented
        storage = one.untyped_storage()
        if storage._cdata not in self._sent:
            whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            self._sent[storage._cdata] = lent(whole) if whole.nbytes == one.nbytes else None
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
        with open(f"/proc/self/fd/{self.fd}", "r+b", 0):
            pass  # as the job will: not every kernel can
        self.memory = np.asarray(Mapping(size_bytes, _READ_WRITE, mmap.MAP_SHARED, self.fd))
        self.begin = self.memory.ctypes.data + _LEAD_BYTES
        self.place = os.getpid(), self.fd, os.fstat(self.fd).st_ino, size_bytes
        self.used_at = 0  # the last batch that it was for


class Lending(Pool):
    """The blocks of this worker, one for each column of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.after_fork()
        note(self)

    def after_fork(self) -> None:
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
                for block in self._all:
                    block.memory[1] = block.memory[0] != _SENT
                self._all = [block for block in self._all if not block.memory[1]]
            self._all.append(block := _Block(size_bytes))
        block.memory[0], block.used_at = _SENT, self._batch
        self._taken[block.begin] = block
        return block

    def sent(self, made: Any) -> Sent:
        """What is sent of a tensor: the block that it fills, or one for a copy. Raises as `block`."""
        block = self._taken.pop(made.data_ptr(), None) if made.is_contiguous() else None
        if block is None:
            made = made.contiguous()
            block = self.block(made.nbytes)
            ctypes.memmove(block.begin, made.data_ptr(), made.nbytes)
            del self._taken[block.begin]
        self._sent.append(block)
        return Sent(_received, (block.place, tuple(made.shape), made.dtype))


def lent(made: Any) -> Any:
    """What is sent of a leaf of a batch."""
    if not is_plain(made):
        return made
    if made.nbytes < SMALL_BYTES:
        whole = made.contiguous()
        raw = ctypes.string_at(whole.data_ptr(), whole.nbytes)
        return Sent(_small, (raw, tuple(made.shape), made.dtype))
    with suppress(OSError):
        return LENDING.sent(made)
    return made


def is_plain(one: Any) -> bool:
    if type(one) is not torch.Tensor or one.layout is not torch.strided or one.device.type != "cpu":
        return False
    return not (one.is_nested or one.requires_grad or one.is_quantized or one.is_conj() or one.is_neg())


def room(shape: tuple[int, ...], dtype: Any) -> Any:
    """A tensor to be filled, in a block if it is large."""
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes >= SMALL_BYTES:
        with suppress(OSError):
            return _tensor(LENDING.block(size_bytes).memory, _LEAD_BYTES, shape, dtype)
    return torch.empty(shape, dtype=dtype, device="cpu")  # whatever the job has made the default


def _small(raw: bytes, *of: Any) -> Any:
    return _tensor(bytearray(raw), 0, *of)


def _tensor(memory: Any, begin: int, shape: tuple[int, ...], dtype: Any) -> Any:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device="cpu")
    flat = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=begin)
    return flat if len(shape) == 1 else flat.view(shape)


_BEGUN, _ENDED = list[int](), list[int]()
"""An entry for each fork: while one is under way, another thread may let go of what the child has."""
_MAPS: dict[tuple[int, ...], Any] = {}
"""Blocks of workers, in the process that reads them; the one that was used last is last."""
_WORKERS = weakref.WeakSet[Any]()
"""When a loader lets go of one, which has ended, the maps of its blocks are given up."""
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
        except OSError as error:
            for child in active_children():  # else torch's handler of its end raises later, anywhere
                child.join(1.0 if child.pid == worker else 0.0)
            told = f"DataLoader worker (pid {worker}) ended before its batch was read, or hides its files"
            raise RuntimeError(f"{told}: {error}") from None
        with file:
            super().__init__(size_bytes, _READ_WRITE, mmap.MAP_SHARED, file.fileno())
        for child in active_children():
            if child.pid == worker and child not in _WORKERS:
                _WORKERS.add(child)
                weakref.finalize(child, _forget).atexit = False

    def mark(self, state: int) -> None:
        ctypes.memset(self._place[0], state, 1)
        if ctypes.string_at(self._place[0], 2)[1]:
            _MAPS.pop(self.place, None)

    def is_kept(self) -> bool:
        with suppress(OSError):
            return self._path.stat().st_ino == self._number
        return False


class _Hold:
    """A batch in a block, which is the worker's again when this is gone, unless a child has it, too."""

    def __init__(self, block: _Map) -> None:
        self._forks, self._block = len(_ENDED), block
        self.__array_interface__ = block.__array_interface__
        block.mark(_HELD)

    def __del__(self) -> None:
        self._block.mark(_FREE if self._forks == len(_BEGUN) == len(_ENDED) else _LOST)


def _forget(most: int | None = None) -> None:
    for place, block in list(islice(_MAPS.items(), most)):
        if not block.is_kept():
            _MAPS.pop(place, None)


def _received(place: tuple[int, ...], *of: Any) -> Any:
    _MAPS[place] = block = _MAPS.pop(place, None) or _Map(place)  # the last one
    _forget(1)  # the oldest
    return _tensor(np.asarray(_Hold(block)), _LEAD_BYTES, *of)


LENDING = Lending()
"""The pool of a batch that is gathered to be sent."""
