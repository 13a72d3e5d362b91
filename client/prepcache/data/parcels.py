"""Parcels: parts, and what was observed, on their way from a forked worker to its parent.

torch's own pickling would move tensors into shared memory, one file each. Here both share a few slots of
memory from before the fork: the worker copies arrays and tensors into one as raw buffers, and the parent
reads them there. What does not fit goes through the pipe.

Invariants:
    1. A slot belongs to the worker until it is sent, then to the parent, until nothing refers to an array in
       it and the worker was told so.
    2. Nobody waits for a slot: without a free one, all goes through the pipe.
"""

from __future__ import annotations

import io
import mmap
import pickle
import sys
import traceback
import weakref
from collections import deque
from contextlib import suppress
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from prepcache.data.calls import Part

IN_BAND_BYTES = 1 << 10
"""Smaller buffers go in the message itself."""
SLOT_BYTES = 8 << 20
"""A worker sends what it has when it has so much; slots are small, so that they stay in the caches."""
SLOTS = 4
"""One that is filled, and some that wait for their turn at the parent's."""
_ALIGNMENT = 64

Told = tuple[list[int], list[int]]
"""What a worker is told: its next chunk, which may be empty, and slots that are free again."""
Observed = list[dict[str, Any]]
Parcel = tuple[list[Part], Observed, set[str]]


class Slots:
    """Memory that a worker and its parent share; made before the fork, and used as it is needed."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        with suppress(OSError):  # a limit on addresses
            self._map = mmap.mmap(-1, SLOTS * SLOT_BYTES)

    @property
    def numbers(self) -> range:
        return range(SLOTS if self._map is not None else 0)

    def view(self, slot: int) -> Any:
        """uint8[SLOT_BYTES]: a new array each time, which all arrays made of it refer to."""
        assert self._map is not None
        return np.frombuffer(self._map, np.uint8, SLOT_BYTES, slot * SLOT_BYTES)


class Outbox:
    """The worker's end of its pipe."""

    def __init__(self, pipe: Connection, slots: Slots) -> None:
        self._pipe = pipe
        self._slots = slots
        self._free = list(slots.numbers)
        self._chunks: deque[list[int]] = deque()

    def chunk(self) -> list[int]:
        """The next items to be made; waits for them.

        Raises:
            EOFError: the parent wants no more.
        """
        while not self._chunks:
            self._listen()
        return self._chunks.popleft()

    def _listen(self) -> None:
        chunk, freed = self._pipe.recv()
        self._free += freed
        if chunk:
            self._chunks.append(chunk)

    def send(self, parts: list[Part], observed: Observed, drawn: set[str]) -> None:
        """Sends parts, what the function was seen to read, and the random generators that it drew from."""
        buffers: list[pickle.PickleBuffer] = []
        head = _dump(([_picklable(part) for part in parts], observed, drawn), buffers)
        raws = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        begins = _begins([raw.nbytes for raw in raws])
        fitting = sum(begin + raw.nbytes <= SLOT_BYTES for begin, raw in zip(begins, raws, strict=True))
        slot = self._take_slot() if fitting else None
        if slot is None:
            fitting = 0
        else:
            view = self._slots.view(slot)
            for begin, raw in zip(begins[:fitting], raws[:fitting], strict=True):
                view[begin : begin + raw.nbytes] = raw
        self._pipe.send_bytes(pickle.dumps((slot, fitting, [raw.nbytes for raw in raws])))
        self._pipe.send_bytes(head)
        for raw in raws[fitting:]:
            self._pipe.send_bytes(raw.data)

    def _take_slot(self) -> int | None:
        while not self._free and self._pipe.poll():
            self._listen()
        return self._free.pop() if self._free else None


class Inbox:
    """The parent's end of a worker's pipe."""

    def __init__(self, pipe: Connection, slots: Slots) -> None:
        self.pipe = pipe
        self._slots = slots
        self._freed: deque[int] = deque()

    def submit(self, chunk: list[int]) -> None:
        """Tells the worker its next items."""
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        if chunk or freed:
            with suppress(BrokenPipeError):  # its death is found by `receive`
                self.pipe.send((chunk, freed))

    def receive(self) -> Parcel:
        """What the worker sent; its arrays lie in the slot.

        Raises:
            EOFError, ConnectionResetError: the worker is dead.
        """
        slot, fitting, sizes = pickle.loads(self.pipe.recv_bytes())
        head = self.pipe.recv_bytes()
        buffers: list[Any] = []
        if slot is not None:
            view = self._slots.view(slot)
            weakref.finalize(view, self._freed.append, slot).atexit = False
            begins = _begins(sizes)
            buffers += (view[begins[n] : begins[n] + sizes[n]] for n in range(fitting))
        for size_bytes in sizes[fitting:]:
            buffers.append(bytearray(size_bytes))
            self.pipe.recv_bytes_into(buffers[-1])
        parcel: Parcel = pickle.loads(head, buffers=buffers)
        return parcel


def _begins(sizes: list[int]) -> list[int]:
    """Where buffers of these sizes begin in a slot."""
    return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))[:-1]


class _Pickler(pickle.Pickler):
    """Pickles dense CPU tensors as arrays: out of band, without torch's shared memory."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        if value.layout is not torch.strided or value.device.type != "cpu" or value.requires_grad:
            return NotImplemented
        if value.is_conj() or value.is_neg() or value.numel() == 0:
            return NotImplemented
        dense = value.contiguous()
        raw = dense.reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(raw), str(value.dtype), tuple(value.shape))


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(raw, dtype=getattr(torch, dtype.removeprefix("torch."))).reshape(shape)


def _dump(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer goes in the message itself."""
        if buffer.raw().nbytes < IN_BAND_BYTES:
            return True
        buffers.append(buffer)
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=keep).dump(value)
    return stream.getvalue()


def _picklable(part: Part) -> Part:
    """`part`, with an error that survives the pipe and keeps the worker's traceback as a note."""
    if part.error is None:
        return part
    error = part.error
    note = "in a preprocessing worker:\n" + "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a foreign exception's own pickling may raise anything
        error = RuntimeError(f"{type(error).__qualname__}: {error}")
    error.add_note(note)
    return Part(part.index, [], True, part.cost_s, error)
