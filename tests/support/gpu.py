"""A stand-in for torch.cuda whose copies are made as late, or as early, as they may be.

A stream is a list of work. A copy to the device is made when its stream is waited for, and reads the bytes
that lie at the source's address *then*, as a copy engine would: it keeps nothing alive. With `is_early` it
is made at once, while the consumer's work is still to be done. Memory of the device that nobody refers to
any more goes to the next copy on the stream that it was made on, unless another stream recorded its use and
still has work. Pinned memory that nobody refers to is overwritten at once, as by whom the allocator would
give it to.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import loader
from prepcache.batching.table import Block

POISON = 0xEE
"""What pinned memory holds when it belongs to somebody else."""


class Event:
    """A place in a stream's work."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._place = stream, stream.queued

    def query(self) -> bool:
        return self._stream.done >= self._place

    def synchronize(self) -> None:
        self._stream.run(self._place)


class Stream:
    """Work in order, done when it is waited for; with `is_early`, at once."""

    def __init__(self, is_early: bool = False) -> None:
        self.is_early = is_early
        self.queued = self.done = 0
        self._work: list[Callable[[], object]] = []
        self._lock = threading.RLock()

    def enqueue(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._work.append(work)
            self.queued += 1
            if self.is_early:
                self.synchronize()

    def run(self, upto: int) -> None:
        with self._lock:
            while self.done < upto:
                self._work[self.done]()
                self.done += 1

    def synchronize(self) -> None:
        self.run(self.queued)

    def record_event(self) -> Event:
        with self._lock:
            return Event(self)

    def wait_event(self, event: Event) -> None:
        self.enqueue(event.synchronize)


class OnDevice(torch.Tensor):
    """A tensor in the device's memory: read it by work on a stream."""

    users: list[Stream]

    def record_stream(self, stream: Any) -> None:
        self.users.append(stream)


class Gpu:
    """The device, or several.

    Attributes:
        consumer: the stream of the thread that trains.
        is_early: copies are made at once.
        current, devices: numbers of the current one, and of those that anything was asked of.
        freed: memory that nobody refers to any more.
    """

    def __init__(self) -> None:
        self.consumer = Stream()
        self.is_early = False
        self.current = 0
        self.devices: set[int] = set()
        self.freed: list[tuple[Stream, list[tuple[Stream, int]], torch.Tensor]] = []
        self._threads = threading.local()
        self._pinned: list[torch.Tensor] = []

    def new_stream(self, device: torch.device) -> Stream:
        self.devices.add(self.current if device.index is None else device.index)
        return Stream(self.is_early)

    def current_stream(self, device: torch.device) -> Stream:
        self.devices.add(self.current if device.index is None else device.index)
        chosen: Stream = getattr(self._threads, "stream", self.consumer)
        return chosen

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self._threads.stream = stream
        try:
            yield
        finally:
            del self._threads.stream

    def pinned_block(self, size_bytes: int) -> Block:
        """Memory that is overwritten once nobody refers to the block."""
        memory = torch.empty(size_bytes, dtype=torch.uint8)
        self._pinned.append(memory)  # for ever: a late copy may read it
        block: Block = np.frombuffer((ctypes.c_char * size_bytes).from_address(memory.data_ptr()), np.uint8)
        weakref.finalize(block, memory.fill_, POISON)
        return block

    def copy(self, source: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Asks the current stream for a copy of bytes that lie in the host's memory."""
        stream, size_bytes = self.current_stream(device), source.numel() * source.element_size()
        memory = self._memory(stream, size_bytes)
        shared = memory[:size_bytes].view(source.dtype).view(source.shape)
        copied = shared.as_subclass(OnDevice)
        copied.users = []
        users, address = copied.users, source.data_ptr()
        stream.enqueue(functools.partial(ctypes.memmove, memory.data_ptr(), address, size_bytes))
        weakref.finalize(copied, self._free, stream, users, memory)
        return copied

    def _memory(self, stream: Stream, size_bytes: int) -> torch.Tensor:
        for place, (made_on, waits, memory) in enumerate(self.freed):
            is_free = all(user.done >= queued for user, queued in waits)
            if made_on is stream and is_free and memory.numel() >= size_bytes:
                del self.freed[place]
                return memory
        return torch.empty(size_bytes + 8, dtype=torch.uint8)

    def _free(self, stream: Stream, users: list[Stream], memory: torch.Tensor) -> None:
        self.freed.append((stream, [(user, user.queued) for user in users], memory))

    def read(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Work of the consumer's stream that copies a tensor: the result is in the list once it is done."""
        seen: list[torch.Tensor] = []
        memory = tensor.as_subclass(torch.Tensor).detach()
        size_bytes = memory.numel() * memory.element_size()
        address, dtype, shape = memory.data_ptr(), memory.dtype, memory.shape

        def work() -> None:
            read = torch.frombuffer(bytearray(ctypes.string_at(address, size_bytes)), dtype=torch.uint8)
            seen.append(read.view(dtype).view(shape))

        del memory
        self.consumer.enqueue(work)
        return seen


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The stand-in, in the place of torch.cuda."""
    stand_in, to = Gpu(), torch.Tensor.to

    def to_device(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if arguments and getattr(arguments[0], "type", None) == "cuda":
            return stand_in.copy(tensor, arguments[0])
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", to_device)
    for name, value in {
        "Stream": stand_in.new_stream,
        "stream": stand_in.stream,
        "current_stream": stand_in.current_stream,
        "current_device": lambda: stand_in.current,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(loader, "_pinned_block", stand_in.pinned_block)
    return stand_in
