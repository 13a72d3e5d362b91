"""The loader: batches gathered ahead, by a thread, into recycled buffers, and copied to a device.

Invariants:
    1. The order is that of a `DataLoader` with the same generator, epoch after epoch.
    2. A batch belongs to the consumer for as long as anything refers to it; only then is its memory used
       again.
    3. `state_dict` counts what the consumer was given, not what lies ready; in samples, so that the epoch is
       resumed with any batch size.
    4. The thread ends with its iterator; its exceptions are the consumer's. An epoch does not go on in a
       forked process, where the thread is not, nor is anything of a GPU freed there, which would abort it.
    5. The garbage collector may end an epoch in whatever thread it runs, which may hold a lock that the
       epoch's thread waits for: nobody waits for that longer than `LEAVE_S`, and no such thread for another.

Devices of other types than CUDA's get plain copies, made when the consumer asks for a batch. CUDA's get
copies on a stream beside the consumer's, from pinned buffers:
    6. A pinned buffer is held until its copy has ended: `_in_flight` refers to it up to then.
    7. The consumer's stream waits for the copy, on the device, before it may use the batch; and the
       batch's device memory is not given to others before the consumer's stream is done with it.
    8. What is no dense tensor, and so cannot be kept for a stream, is copied when the consumer asks for it.
    9. All copies of a loader go to one device: the one that was current when it was made, where `device`
       has no number.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from prepcache.artifact.sample_tree import rebuilt
from prepcache.batching.batch import Batch
from prepcache.batching.buffers import KEPT_BLOCKS, Block, Pool
from prepcache.batching.collation import collate_plain
from prepcache.dataset import CachedDataset
from prepcache.keys.randomness import LOADER_THREAD

Positions = npt.NDArray[np.int64]

LEAVE_S = 5.0
"""A consumer that leaves in the middle of an epoch waits for the batch that is being made, but no longer."""
AHEAD = 3
"""Batches that lie ready or are being made: two would do if gathers and steps took the same time, always."""
_INSTEAD = {
    "num_workers": "a thread gathers batches ahead. Use CachedDataset(num_workers=N) to preprocess in N "
    "processes, or torch's DataLoader(num_workers=N) to run a slow transform= in N",
    "pin_memory": "with device=, batches are gathered in pinned memory and copied ahead",
    "prefetch_factor": "a thread gathers up to 3 batches ahead",
    "persistent_workers": "there are no worker processes",
    "sampler": "pass a torch.utils.data.Subset(dataset, indices), or use torch's DataLoader",
    "batch_sampler": "use torch's DataLoader, which also gathers whole batches of a CachedDataset",
    "num_replicas": "give each rank a torch.utils.data.Subset(dataset, range(rank, len(dataset), ranks)), or "
    "use torch's DataLoader with a DistributedSampler",
}
"""Options of torch's DataLoader and DistributedSampler, and what there is for them."""
_STATE = {"samples", "of", "shuffle", "generator"}
_left_at_fork: list[Any] = []
"""What a forked child has of its parent's GPU: to free it there would abort the child."""
_ENDING: weakref.WeakValueDictionary[int, _Gatherer] = weakref.WeakValueDictionary()
"""Those whose threads may run, by identity: a `WeakSet` cannot be read while a thread adds."""


class _Gatherer:
    """A thread that makes one batch after the other. At exit an executor's is waited for, however long."""

    def __init__(self, make: Callable[[Positions], Any]) -> None:
        self._make = make
        self._asked: SimpleQueue[tuple[Future[Any], Positions] | None] = SimpleQueue()
        # What is made or transformed there sees the context variables that it would see here.
        work = (self._work,)
        self.thread = threading.Thread(target=copy_context().run, args=work, name=LOADER_THREAD, daemon=True)
        _ENDING[id(self)] = self
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
        """What is not begun is not made."""
        with contextlib.suppress(Empty):
            while True:
                self._asked.get_nowait()  # the thread takes from it too: a wait here might never end
        self._asked.put(None)


@atexit.register
def _end_all() -> None:
    """The interpreter would end threads in the middle of torch's code, which aborts the process."""
    left = [one for ref in _ENDING.valuerefs() if (one := ref()) is not None]
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
            name = next(iter(others))
            instead = _INSTEAD.get(name, "see its docstring for its arguments")
            raise TypeError(f"a prepcache.Loader takes no {name}=: {instead}")
        if not hasattr(batch_size, "__index__"):
            raise TypeError(f"batch_size must be an integer, not {batch_size!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, not {batch_size}")
        if isinstance(dataset, torch.utils.data.IterableDataset):
            name = type(dataset).__name__
            raise TypeError(f"a Loader reads samples by position: pass this {name} to torch's DataLoader")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.generator = generator
        self.drop_last = drop_last
        self._collate = collate_fn or _default_collate
        self._device = None if device is None else torch.device(device)
        self._take_memory()
        self._given = 0  # samples of this epoch that the consumer has; all batches full
        self._begun_at: Any = None  # the generator's state before this epoch's order was drawn
        self._resumed: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Loader {type(self.dataset).__name__} batch_size={self.batch_size} batches={len(self)}>"

    def _take_memory(self) -> None:
        """What belongs to one process: the memory of batches, and the way to a device."""
        self._copier: Any = None
        if self._device is not None and self._device.type != "cpu":
            self._copier = to_device(self._device)
        self._pool = self._copier.pool if self._copier is not None else Pool(2 * KEPT_BLOCKS)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_pool", "_copier")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._take_memory()

    def __len__(self) -> int:
        """Batches of an epoch."""
        samples = len(self.dataset)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is: what `load_state_dict` goes on from, in another process too."""
        if self._resumed is not None:
            return self._resumed
        state = self._begun_at
        if state is None and self.generator is not None:
            state = self.generator.get_state()
        given, of = self._given, len(self.dataset)
        return {"samples": given, "of": of, "shuffle": self.shuffle, "generator": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next epoch the rest of the one that `state` was taken in; the batch size may be another.

        Raises:
            TypeError: `state` is not a mapping.
            ValueError: its order was another, of another length or not shuffled alike, or was drawn without a
                generator of the loader's own: nothing could say which samples are left.
        """
        if not isinstance(state, Mapping):
            kind = type(state).__name__
            raise TypeError(f"load_state_dict() takes the result of a Loader's state_dict(), not {kind}")
        if missing := _STATE - set(state):
            raise ValueError(f"not a Loader's state: it lacks {', '.join(sorted(missing))}")
        given = state["samples"]
        if not isinstance(given, int) or given < 0:
            raise ValueError(f"not a Loader's state: its number of samples is {given!r}")
        if given and (state["of"], state["shuffle"]) != (len(self.dataset), self.shuffle):
            raise ValueError(
                f"the state is of an epoch of {state['of']} samples with shuffle={state['shuffle']}, but "
                f"this loader reads {len(self.dataset)} samples with shuffle={self.shuffle}: give it the "
                "same arguments, or start a new epoch without the state"
            )
        if given and self.shuffle and (self.generator is None or state["generator"] is None):
            raise ValueError(
                "a shuffled epoch is resumed only with a generator of the loader's own: give both loaders "
                "generator=torch.Generator(), or start a new epoch without the state"
            )
        self._resumed = dict(state)

    def __iter__(self) -> Iterator[Any]:
        import torch

        if self._copier is not None and self._copier.made_in != os.getpid():
            raise RuntimeError(
                f"this loader copies to {self._device}, in the process that made it: make another one here"
            )
        resumed, self._resumed = self._resumed, None
        self._given = 0
        if resumed is not None:
            self._given = int(resumed["samples"])
            if self.generator is not None and resumed["generator"] is not None:
                self.generator.set_state(resumed["generator"])
        self._begun_at = None if self.generator is None else self.generator.get_state()
        # Here: a DataLoader draws a seed for its workers before it is asked for a batch.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        """An epoch, or what is left of it."""
        order, rest = self._order()
        batches = [order[at : at + self.batch_size] for at in range(self._given, len(order), self.batch_size)]
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
                self._given += self.batch_size
                yield batch if self._copier is None else self._copier.finish(batch)
                if os.getpid() != begun_in:
                    raise RuntimeError("this epoch began in the parent process: begin another one here")
                batch = None
            list(rest)
            self._given, self._begun_at = 0, None
        finally:
            if os.getpid() == begun_in:
                gatherer.end()
                if not threading.current_thread().name.startswith(LOADER_THREAD):
                    gatherer.thread.join(LEAVE_S)
            else:
                _left_at_fork.append((ahead, batch))

    def _order(self) -> tuple[Positions, Iterator[int]]:
        """The order of an epoch, and what torch's sampler draws at its end."""
        import torch.utils.data

        count = len(self.dataset)
        if not (self.shuffle and count):
            return np.arange(count), iter(())
        sampler = iter(torch.utils.data.RandomSampler(range(count), generator=self.generator))
        return np.fromiter(itertools.islice(sampler, count), np.int64, count), sampler

    def _make(self, positions: Positions, stream: Any) -> Any:
        """A batch; in the thread."""
        with stream:
            many = getattr(self.dataset, "__getitems__", None)
            indices = positions if isinstance(self.dataset, CachedDataset) else positions.tolist()
            samples = [self.dataset[i] for i in indices] if many is None else many(indices)
            if isinstance(samples, Batch):
                samples.pool = self._pool
            batch = self._collate(samples)
            return batch if self._copier is None else self._copier.begin(batch)


def _stream_here() -> Any:
    """The stream of CUDA that this thread works on, to be entered elsewhere, where CUDA is in use at all."""
    import torch.cuda

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream())


def _default_collate(samples: Any) -> Any:
    import torch.utils.data

    if isinstance(samples, Batch) and samples.is_untouched:
        return collate_plain(samples)
    return torch.utils.data.default_collate(samples)


# --- to a device; tested with a stand-in for a GPU, whose copies are made as late, or as early, as may be ---


def _pinned_block(size_bytes: int) -> Block:
    import torch

    # The array refers to the tensor that owns the memory; all views of it refer to the array.
    block: Block = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return block


def to_device(device: Any) -> Copier | Sender:
    """What takes batches to a device that is not the CPU. Raises RuntimeError where there is none."""
    import torch

    try:
        return Copier(device) if device.type == "cuda" else Sender(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0][:200]
        mend = f"torch {torch.__version__} must be built for it, and the machine must have one"
        raise RuntimeError(
            f"device={str(device)!r} cannot be used: {why}; {mend}. Without device=, batches stay on the CPU"
        ) from error


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

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Starts to copy a batch; called by the gathering thread."""
        with self._lock:
            while self._in_flight and self._in_flight[0][0].query():
                self._in_flight.popleft()
            with self._cuda.stream(self._stream):
                copied = map_tensors(batch, self._copied)
                done = self._stream.record_event()
            self._in_flight.append((done, batch))
        return copied, done

    def finish(self, begun: tuple[Any, Any]) -> Any:
        """Hands the copy to the consumer's stream; called by the consumer."""
        copied, done = begun
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(done)
        return map_tensors(copied, lambda tensor: self._received(tensor, stream))

    def _copied(self, tensor: Any) -> Any:
        return tensor.to(self._device, non_blocking=True) if _is_dense(tensor) else tensor

    def _received(self, tensor: Any, stream: Any) -> Any:
        if not _is_dense(tensor):
            return tensor.to(self._device)
        tensor.record_stream(stream)
        return tensor


def _is_dense(tensor: Any) -> bool:
    import torch

    return tensor.layout is torch.strided and not tensor.is_nested


def _wait_for(in_flight: deque[tuple[Any, Any]], made_in: int) -> None:
    """Holds pinned buffers until their copies have ended; a forked child cannot tell."""
    if os.getpid() != made_in:
        _left_at_fork.append(in_flight)
        return
    for done, _ in in_flight:
        done.synchronize()


class Sender:
    """Copies batches to any device in the consumer's thread: there its device and stream are set."""

    def __init__(self, device: Any) -> None:
        import torch

        torch.empty(0, device=device)
        self._device = device
        self.made_in = os.getpid()
        self.pool = Pool(2 * KEPT_BLOCKS)

    def begin(self, batch: Any) -> Any:
        return batch

    def finish(self, batch: Any) -> Any:
        """The batch on the device; its own memory may be used again."""
        return map_tensors(batch, lambda tensor: tensor.to(self._device))


def map_tensors(batch: Any, function: Any) -> Any:
    """The batch with each tensor in it replaced; containers of the types that collation makes."""
    import torch

    packed = torch.nn.utils.rnn.PackedSequence

    def mapped(_: Any, leaf: Any) -> Any:
        if isinstance(leaf, packed):
            values, sizes, *orders = leaf  # the sizes stay on the CPU: torch reads them there
            orders = [None if order is None else function(order) for order in orders]
            return packed(function(values), sizes, *orders)
        return function(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return rebuilt(batch, mapped, whole=packed)
