"""Parcels: parts, and what was observed, on their way from a forked worker to its parent.

torch's own pickling would move tensors into shared memory, one file each. Here both share a few slots of
memory from before the fork: the worker copies arrays and tensors into one as raw buffers, and the parent
reads them there. What does not fit goes through the pipe.

Invariants:
    1. A slot belongs to the worker until it is sent, then to the parent, until nothing refers to an array in
       it and the worker was told so.
    2. Nobody waits for a slot: without a free one, all goes through the pipe.
    3. What waits in a worker is a copy: the function may use its memory again.
    4. A part that does not pickle leaves what was put before it as it was.
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
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.fill.call import Part

if TYPE_CHECKING:
    from prepcache.keys.observation.inputs import Input

IN_BAND_BYTES = 1 << 10
"""Smaller buffers go in the message itself."""
SLOT_BYTES = 8 << 20
"""Small, so that slots stay in the caches."""
SLOTS = 4
"""One that is filled, and some that wait for their turn at the parent's."""
_ALIGNMENT = 64

Told = tuple[list[int], list[int]]
"""What a worker is told: its next chunk, which may be empty, and slots that are free again."""
Observed = list["Input"]
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


@dataclass(slots=True)
class _Waiting:
    """What was put and not sent.

    Args:
        heads: each part's fields as a pickle, and how many buffers it has beside.
        places: each buffer's size, and where in the slot it is; None if it is in `rest`.
    """

    slot: int | None = None
    used_bytes: int = 0
    heads: list[tuple[bytes, int]] = field(default_factory=list)
    places: list[tuple[int, int | None]] = field(default_factory=list)
    rest: list[Any] = field(default_factory=list)


class Outbox:
    """The worker's end of its pipe."""

    def __init__(self, pipe: Connection, slots: Slots) -> None:
        self._pipe = pipe
        self._slots = slots
        self._free = list(slots.numbers)
        self._chunks: deque[list[int]] = deque()
        self._waiting = _Waiting()

    def chunk(self) -> list[int]:
        """The next items to be made; waits for them.

        Raises:
            EOFError: the parent wants no more.
        """
        while not self._chunks:
            self._listen()
        return self._chunks.popleft()

    def _listen(self) -> None:
        told: Told | None = self._pipe.recv()
        if told is None:
            raise EOFError
        chunk, freed = told
        self._free += freed
        if chunk:
            self._chunks.append(chunk)

    def put(self, part: Part) -> bool:
        """Takes a part; whether it may wait for others. Then it is a copy, else it is to be sent at once.

        Raises:
            Exception: what came of a sample that does not pickle.
        """
        buffers: list[Any] = []
        self._waiting.heads.append((_dump(_picklable(part), buffers), len(buffers)))
        is_copied = True
        for raw in buffers:
            place = self._place(raw)
            self._waiting.places.append((raw.nbytes, place))
            if place is None:
                self._waiting.rest.append(raw)
                is_copied = False
        return is_copied

    def _place(self, raw: Any) -> int | None:
        """Where in the slot the bytes are now; None if they found no room."""
        waiting = self._waiting
        if waiting.slot is None and raw.nbytes <= SLOT_BYTES:
            waiting.slot = self._take_slot()
        begin, end = waiting.used_bytes, waiting.used_bytes + raw.nbytes
        if waiting.slot is None or end > SLOT_BYTES:
            return None
        self._slots.view(waiting.slot)[begin:end] = raw
        waiting.used_bytes = -(-end // _ALIGNMENT) * _ALIGNMENT
        return begin

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting.heads

    def send(self, observed: Observed, drawn: set[str]) -> None:
        """Sends what was put, what the function was seen to read, and the generators that it drew from."""
        waiting, self._waiting = self._waiting, _Waiting()
        head = (waiting.slot, waiting.heads, waiting.places, observed, drawn)
        self._pipe.send_bytes(pickle.dumps(head))
        for raw in waiting.rest:
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

    def end(self) -> None:
        """Tells the worker to end: that the pipe closes it may not see, where another thread was forking."""
        with suppress(OSError):
            self.pipe.send(None)
        self.pipe.close()

    def receive(self) -> Parcel:
        """What the worker sent; its arrays lie in the slot.

        Raises:
            EOFError, ConnectionResetError: the worker is dead.
        """
        slot, heads, places, observed, drawn = pickle.loads(self.pipe.recv_bytes())
        view = None
        if slot is not None:
            view = self._slots.view(slot)
            weakref.finalize(view, self._freed.append, slot).atexit = False
        buffers = iter([self._buffer(view, size_bytes, place) for size_bytes, place in places])
        parts = [Part(*pickle.loads(head, buffers=list(islice(buffers, count)))) for head, count in heads]
        return parts, observed, drawn

    def _buffer(self, view: Any, size_bytes: int, place: int | None) -> Any:
        if place is not None:
            return view[place : place + size_bytes]
        buffer = bytearray(size_bytes)
        self.pipe.recv_bytes_into(buffer)
        return buffer


class _Pickler(pickle.Pickler):
    """Pickles dense CPU tensors as arrays: out of band, without torch's shared memory."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        try:
            raw = value.numpy()
        except (RuntimeError, TypeError):  # one that numpy does not know, or of another device or layout
            raw = None
        if raw is None or not raw.flags.c_contiguous or not raw.size:
            if value.layout is not torch.strided or value.device.type != "cpu" or value.requires_grad:
                return NotImplemented
            if value.is_conj() or value.is_neg() or value.numel() == 0:
                return NotImplemented
            dense = value.contiguous()
            # Not reshape(-1): that leaves one element its stride, and another than 1 makes no run of bytes.
            raw = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(raw), str(value.dtype), tuple(value.shape))


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(raw, dtype=getattr(torch, dtype.removeprefix("torch."))).reshape(shape)


def _dump(part: Part, buffers: list[Any]) -> bytes:
    """A part as a pickle of its fields (its own takes Python code at both ends), and the bytes beside it."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer goes in the message itself."""
        raw = buffer.raw()
        if raw.nbytes < IN_BAND_BYTES:
            return True
        buffers.append(np.frombuffer(raw, np.uint8))
        return False

    stream = io.BytesIO()
    fields = (
        part.index, part.samples, part.is_last, part.cost_s, part.error, part.refusal, part.unobserved,
        part.notices,
    )  # fmt: skip
    _Pickler(stream, protocol=5, buffer_callback=keep).dump(fields)
    return stream.getvalue()


def unpacked(part: Part, error: Exception) -> Part:
    """The end of an item of which a part does not pickle: what its writer says of it, if anything."""
    end = part.looked_at()
    return end if end.refusal is not None else Part(part.index, [], True, part.cost_s, error)


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
