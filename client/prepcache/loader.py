"""The loader: batches gathered ahead, by a thread, into recycled buffers, and copied to a device.

Invariants:
    1. Whole epochs have the order of a `DataLoader` with the same generator, one after the other.
    2. A batch belongs to the consumer for as long as anything refers to it; only then is its memory used
       again.
    3. The thread ends with its iterator; its exceptions are the consumer's. An epoch does not go on in a
       forked process, where the thread is not, nor is anything of a GPU freed there, which would abort it.
    4. The garbage collector may end an epoch in whatever thread it runs, which may hold a lock that the
       epoch's thread waits for: nobody waits for that longer than `LEAVE_S`, and no such thread for another.
    5. A CUDA device gets copies from pinned buffers, on a stream beside the consumer's. A buffer is held
       until its copy has ended (`_in_flight`). The consumer's stream waits for the copy, and the batch's
       memory is not given to others before that stream is done with it.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from prepcache.artifact.sample_tree import rebuilt
from prepcache.batching.collation import FETCHERS
from prepcache.batching.gather import Batch
from prepcache.batching.table import KEPT_BLOCKS, Block, Pool
from prepcache.dataset import CachedDataset
from prepcache.forks import Living
from prepcache.keys.randomness import LOADER_THREAD

Positions = npt.NDArray[np.int64]

LEAVE_S = 5.0
"""A consumer that leaves in the middle of an epoch waits for the batch that is being made, but no longer."""
AHEAD = 3
"""Batches that lie ready or are being made: two would do if gathers and steps took the same time, always."""
_INSTEAD = (
    "a thread gathers batches ahead, and with device= copies them. Use CachedDataset(num_workers=N) to "
    "preprocess in N processes, a torch.utils.data.Subset for a part of the data, or torch's DataLoader"
)
"""For who passes options of torch's DataLoader."""
_left_at_fork: list[Any] = []
"""What a forked child has of its parent's GPU: to free it there would abort the child."""
_ENDING: Living[_Gatherer] = Living()
"""Those whose threads may run."""


class _Gatherer:
    """A thread that makes one batch after the other. At exit an executor's is waited for, however long."""

    def __init__(self, make: Callable[[Positions], Any]) -> None:
        self._make = make
        self._asked: SimpleQueue[tuple[Future[Any], Positions] | None] = SimpleQueue()
        # What is made or transformed there sees the context variables that it would see here.
        work = (self._work,)
        self.thread = threading.Thread(target=copy_context().run, args=work, name=LOADER_THREAD, daemon=True)
        _ENDING.add(self)
        self.thread.start()

    def submit(self, positions: Positions) -> Future[Any]:
        future: Future[Any] = Future()
        self._asked.put((future, positions))
        return future

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, positions = asked
            try:
                future.set_result(self._make(positions))
            except BaseException as error:  # noqa: BLE001 - raised again where the batch is taken
                future.set_exception(error)
            del asked, future  # the batch is the consumer's

    def end(self) -> None:
        """Cancels batches whose gathering has not begun, and ends the thread."""
        with contextlib.suppress(Empty):
            while True:
                self._asked.get_nowait()  # the thread takes from it too: a wait here might never end
        self._asked.put(None)


@atexit.register
def _end_all() -> None:
    """The interpreter would end threads in the middle of torch's code, which aborts the process."""
    left = list(_ENDING)
    for one in left:
        one.end()
    until = time.monotonic() + LEAVE_S
    for one in left:
        one.thread.join(max(0.0, until - time.monotonic()))


class Loader:
    """Yields batches of a data set, gathered ahead in a thread.

    Args:
        dataset: a `CachedDataset`, a `Subset` of one, or any map-style data set.
        batch_size: samples of a batch.
        shuffle: a new order in each epoch.
        device: the device of the batches; default the CPU. Copies to CUDA devices are made ahead, too.
        generator: draws the orders; default torch's global generator.
        collate_fn: samples -> batch; torch's default collation if None.
        drop_last: leave out an incomplete last batch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        device: Any = None,
        generator: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        **others: Never,
    ) -> None:
        import torch.utils.data

        if others:
            raise TypeError(f"a prepcache.Loader takes no {next(iter(others))}=: {_INSTEAD}")
        if operator.index(batch_size) < 1:
            raise ValueError(f"batch_size must be positive, not {batch_size}")
        is_map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not is_map_style or isinstance(dataset, torch.utils.data.IterableDataset):
            instead = "use torch's DataLoader for a stream"
            raise TypeError(f"a Loader takes a map-style data set, not {type(dataset).__name__}: {instead}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.generator = generator
        self.drop_last = drop_last
        self.collate_fn = collate_fn or torch.utils.data.default_collate
        self._device = torch.device("cpu" if device is None else device)
        self._copier = Copier(self._device) if self._device.type == "cuda" else None
        self._pool = Pool(2 * KEPT_BLOCKS) if self._copier is None else self._copier.pool
        if self._copier is None:
            torch.empty(0, device=self._device)  # a missing one is an error here

    def __len__(self) -> int:
        """Batches of an epoch."""
        samples = len(self.dataset)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        import torch

        if self._copier is not None and self._copier.made_in != os.getpid():
            raise RuntimeError(
                f"this loader copies to {self._device}, in the process that made it: make another one here"
            )
        # Here: a DataLoader draws a seed for its workers before it is asked for a batch.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        from torch.utils.data import RandomSampler

        order = np.arange(len(self.dataset))
        if self.shuffle and len(order):
            # Of a given generator the sampler draws once more at its end.
            count = len(order) if self.generator is None else -1
            order = np.fromiter(RandomSampler(order, generator=self.generator), np.int64, count)
        batches = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
        if self.drop_last and batches and len(batches[-1]) < self.batch_size:
            batches.pop()
        stream, begun_in, left = _stream_here(), os.getpid(), iter(batches)
        gatherer = _Gatherer(lambda positions: self._make(positions, stream))
        ahead = deque(gatherer.submit(at) for at in itertools.islice(left, AHEAD))
        batch = None
        try:
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(gatherer.submit(at) for at in itertools.islice(left, 1))
                if self._copier is not None:
                    batch = self._copier.finish(batch)
                elif self._device.type != "cpu":
                    batch = map_tensors(batch, lambda one: one.to(self._device))
                yield batch
                if os.getpid() != begun_in:
                    raise RuntimeError("this epoch began in the parent process: begin another one here")
                batch = None
        finally:
            if os.getpid() == begun_in:
                gatherer.end()
                if not threading.current_thread().name.startswith(LOADER_THREAD):
                    gatherer.thread.join(LEAVE_S)
            else:
                _left_at_fork.append((ahead, batch))

    def _make(self, positions: Positions, stream: Any) -> Any:
        """A batch; in the thread."""
        with stream:
            many = getattr(self.dataset, "__getitems__", None)
            indices = positions if isinstance(self.dataset, CachedDataset) else positions.tolist()
            samples = [self.dataset[i] for i in indices] if many is None else many(indices)
            if isinstance(samples, Batch):
                samples.pool = self._pool
            batch = self.collate_fn(samples)
            return batch if self._copier is None else self._copier.begin(batch)


def _stream_here() -> Any:
    """The stream of CUDA that this thread works on, to be entered elsewhere, where CUDA is in use at all."""
    import torch.cuda

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream())


FETCHERS.append(Loader._make.__code__)


# --- to a device; tested with a stand-in for a GPU, whose copies are made as late, or as early, as may be ---


def _pinned_block(size_bytes: int) -> Block:
    import torch

    # The array refers to the tensor that owns the memory; all views of it refer to the array.
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()


class Copier:
    """Copies batches to a CUDA device.

    Locking: `_lock` guards `_in_flight` and the order of copies: each epoch has a thread.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = torch.device(
            "cuda", self._cuda.current_device() if device.index is None else device.index
        )
        self._stream = self._cuda.Stream(self._device)
        self._lock = threading.Lock()
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self.made_in = os.getpid()
        weakref.finalize(self, _wait_for, self._in_flight, self.made_in).atexit = False
        self.pool = Pool(2 * KEPT_BLOCKS, _pinned_block, small_bytes=0)

    def __reduce__(self) -> Any:
        return Copier, (self._device,)

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Starts to copy a batch; called by the gathering thread."""
        with self._lock:
            while self._in_flight and self._in_flight[0][0].query():
                self._in_flight.popleft()
            with self._cuda.stream(self._stream):
                copied = map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
                done = self._stream.record_event()
            self._in_flight.append((done, batch))
        return copied, done

    def finish(self, begun: tuple[Any, Any]) -> Any:
        """Hands the copy to the consumer's stream; called by the consumer."""
        copied, done = begun
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(done)
        map_tensors(copied, lambda tensor: tensor.record_stream(stream))
        return copied


def _wait_for(in_flight: deque[tuple[Any, Any]], made_in: int) -> None:
    """Holds pinned buffers until their copies have ended; a forked child cannot tell."""
    if os.getpid() != made_in:
        _left_at_fork.append(in_flight)
        return
    for done, _ in in_flight:
        done.synchronize()


def map_tensors(batch: Any, function: Any) -> Any:
    """The batch with each tensor in it replaced; containers of the types that collation makes."""
    import torch

    packed = torch.nn.utils.rnn.PackedSequence

    def mapped(_: Any, leaf: Any) -> Any:
        if isinstance(leaf, packed):
            values, sizes, *orders = leaf  # the sizes stay on the CPU: torch reads them there
            return packed(function(values), sizes, *(one if one is None else function(one) for one in orders))
        return function(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return rebuilt(batch, mapped, whole=packed)
