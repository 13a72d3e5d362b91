"""The loader: batches gathered ahead, by a thread, into recycled buffers.

    loader = prepcache.Loader(ds, 256, shuffle=True, generator=torch.Generator().manual_seed(0))
    for epoch in range(epochs):
        for images, labels in loader: ...

It needs no worker processes: a gather releases the GIL, so one thread keeps ahead of a training step.

Invariants:
    1. The order is that of a `DataLoader` with the same generator, epoch after epoch, whatever is ahead and
       wherever the consumer left: what a `DataLoader` draws when it is asked for a batch is drawn then.
    2. A batch belongs to the consumer for as long as anything refers to it; only then is its memory used
       again.
    3. `state_dict` counts what the consumer was given, not what lies ready; in samples of all replicas, so
       that it is gone on from with another batch size, and by another number of them.
    4. The thread ends with its iterator, also if the consumer leaves in the middle of an epoch; its
       exceptions are the consumer's. An epoch does not go on in a forked process: the thread is not there.
    5. The garbage collector may end an epoch in whatever thread it runs, which may hold a lock that the
       epoch's thread waits for: nobody waits for that longer than `LEAVE_S`, and no such thread for another.

Not here: the way to a GPU (device.py).
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from prepcache.batching.batch import Batch
from prepcache.batching.buffers import KEPT_BLOCKS, Pool
from prepcache.batching.collation import collate_plain
from prepcache.dataset import CachedDataset
from prepcache.errors import ConfigError
from prepcache.keys.randomness import LOADER_THREAD
from prepcache.progress import say
from prepcache.streaming.sharding import ranks_here

Positions = npt.NDArray[np.int64]
Ready = SimpleQueue[tuple[Any, BaseException | None]]
Room = SimpleQueue[bool]
"""Holds True for each batch that may be made ahead; and False when the consumer has left."""

LEAVE_S = 5.0
"""A consumer that leaves in the middle of an epoch waits for the batch that is being made, but no longer."""
_INSTEAD = {
    "num_workers": "a thread gathers batches ahead. Use CachedDataset(num_workers=N) to preprocess in N "
    "processes, or torch's DataLoader(num_workers=N) to run a slow transform= in N",
    "pin_memory": "with device=, batches are gathered in pinned memory and copied ahead",
    "prefetch_factor": "a thread gathers up to 3 batches ahead",
    "persistent_workers": "there are no worker processes",
    "sampler": "pass a torch.utils.data.Subset(dataset, indices), or use torch's DataLoader",
    "batch_sampler": "use torch's DataLoader, which also gathers whole batches of a CachedDataset",
}
"""Options of torch's DataLoader, and what there is for them."""
AHEAD = 3
"""Batches that lie ready or are being made: two would do if gathers and steps took the same time, always."""


_epochs: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()
"""Those of the process that somebody still refers to."""
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Those that make batches."""
_left_at_fork: list[Any] = []
"""To free a GPU's memory would abort a process that was forked from the one that had it."""


@atexit.register
def _end_epochs() -> None:
    """Ends the threads of epochs that are kept to the end of the process.

    The interpreter would end them in the middle of torch's code, which aborts the process.
    """
    for epoch in list(_epochs):
        with contextlib.suppress(ValueError):  # another thread is just at it
            epoch.close()
    until = time.monotonic() + LEAVE_S
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


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
        num_replicas: the number of loaders that share an epoch in equal parts. Samples are repeated, or with
            `drop_last` left out, to make the parts equal. By default each loader reads all samples; a job
            with several ranks is then warned.
        rank: the part of this loader, from 0.
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
        num_replicas: int | None = None,
        rank: int = 0,
        **others: Never,
    ) -> None:
        import torch.utils.data

        if others:
            name = next(iter(others))
            instead = _INSTEAD.get(name, "see its docstring for its arguments")
            raise TypeError(f"a prepcache.Loader takes no {name}=: {instead}")

        if num_replicas is None:
            num_replicas = 1
            _tell_ranks()
        for name, number in (("batch_size", batch_size), ("rank", rank), ("num_replicas", num_replicas)):
            if not hasattr(number, "__index__"):
                raise TypeError(f"{name} must be an integer, not {number!r}")
        if isinstance(dataset, torch.utils.data.IterableDataset):
            name = type(dataset).__name__
            raise TypeError(f"a Loader reads samples by position: pass this {name} to torch's DataLoader")
        for name, number in (("batch_size", batch_size), ("num_replicas", num_replicas)):
            if number < 1:
                raise ValueError(f"{name} must be positive, not {number}")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be from 0 to num_replicas - 1 = {num_replicas - 1}, not {rank}")
        if shuffle and num_replicas > 1 and generator is None:
            raise ValueError(
                "ranks that shuffle need generators with the same seed, or their parts overlap: give each "
                "generator=torch.Generator().manual_seed(0)"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.generator = generator
        self.drop_last = drop_last
        self._collate = collate_fn or _default_collate
        self._takes_arrays = isinstance(dataset, CachedDataset)
        self._replicas, self._rank = num_replicas, rank
        self._device = None if device is None else torch.device(device)
        self._take_memory()
        self._given = 0  # samples of this epoch that consumers have, each replica as many; all batches full
        self._begun_at: Any = None  # the generator's state before this epoch's order was drawn
        self._resumed: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Loader {type(self.dataset).__name__} batch_size={self.batch_size} batches={len(self)}>"

    def _take_memory(self) -> None:
        """What belongs to one process: the memory of batches, and the way to a device."""
        self._copier: Any = None
        if self._device is not None and self._device.type != "cpu":
            from prepcache import device

            self._copier = device.to_device(self._device)
        self._pool = self._copier.pool if self._copier is not None else Pool(2 * KEPT_BLOCKS)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_pool", "_copier")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._take_memory()

    def __len__(self) -> int:
        """Batches of an epoch."""
        samples = len(self.dataset)
        if self._replicas > 1:
            samples = samples // self._replicas if self.drop_last else -(-samples // self._replicas)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is: what `load_state_dict` goes on from, in another process too.

        Replicas that were given equally many batches have equal states: that of one does for all.
        """
        if self._resumed is not None:
            return self._resumed
        state = self._begun_at
        if state is None and self.generator is not None:
            state = self.generator.get_state()
        return {
            "samples": self._given,
            "of": len(self.dataset),
            "shuffle": self.shuffle,
            "generator": state,
            "has_generator": self.generator is not None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next epoch the rest of the one that `state` was taken in.

        Batch size and number of replicas may be others: what is left is divided among them.

        Raises:
            TypeError: `state` is not a mapping.
            ValueError: its order was another, of another length or not shuffled alike, with a generator of
                the loader's own or without: nothing could say which samples are left.
        """
        if not isinstance(state, Mapping):
            kind = type(state).__name__
            raise TypeError(f"load_state_dict() takes the result of a Loader's state_dict(), not {kind}")
        if missing := {"samples", "of", "shuffle", "generator", "has_generator"} - set(state):
            raise ValueError(f"not a Loader's state: it lacks {', '.join(sorted(missing))}")
        if not isinstance(state["samples"], int) or state["samples"] < 0:
            raise ValueError(f"not a Loader's state: its number of samples is {state['samples']!r}")
        was = _order_text(state["of"], state["shuffle"], state["has_generator"])
        now = _order_text(len(self.dataset), self.shuffle, self.generator is not None)
        if state["samples"] and was != now:
            raise ValueError(
                f"the state is of an epoch of {was}, but this loader reads {now}: give it the same "
                "arguments, or start a new epoch without the state"
            )
        self._resumed = dict(state)

    def __iter__(self) -> Iterator[Any]:
        generator, given = self._begin()  # here: a DataLoader draws a seed before it is asked for a batch
        drawn = None
        if given or self._replicas > 1:  # what was drawn for batches that were given; and see `_order`
            _, rest = drawn = self._order(generator, given)
            if given > len(self.dataset):
                list(rest)
        epoch = self._epoch(generator, drawn)
        _epochs.add(epoch)
        return epoch

    def _epoch(
        self, generator: Any, drawn: tuple[Positions, Iterator[Positions]] | None
    ) -> Generator[Any, None, None]:
        """An epoch, or what is left of it."""
        order, rest = drawn or self._order(generator, 0)
        batches = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
        if self.drop_last and batches and len(batches[-1]) < self.batch_size:
            batches.pop()
        ready: Ready = SimpleQueue()
        room: Room = SimpleQueue()
        for _ in range(AHEAD):
            room.put(True)
        # What is made or transformed there sees the context variables that it would see here.
        thread = threading.Thread(
            target=copy_context().run,
            args=(self._gather, batches, ready, room, _stream_here()),
            name=LOADER_THREAD,
            daemon=True,
        )
        _threads.add(thread)
        thread.start()
        begun_in = os.getpid()
        try:
            for positions in batches:
                if len(positions) < self.batch_size:
                    list(rest)  # a DataLoader that cannot fill a batch has come to its sampler's end
                if os.getpid() != begun_in:
                    raise RuntimeError("this epoch began in the parent process: begin another one here")
                batch, error = ready.get()
                room.put(True)
                if error is not None:
                    raise error
                self._given += self.batch_size * self._replicas
                yield batch if self._copier is None else self._copier.finish(batch)
                if os.getpid() != begun_in:
                    _left_at_fork.append((batch, ready))
                del batch
            list(rest)
            self._given, self._begun_at = 0, None
        finally:
            if os.getpid() == begun_in:
                with contextlib.suppress(Empty):  # what was not made yet is not wanted
                    while True:
                        room.get_nowait()  # the thread takes from it too: a wait here might never end
                room.put(False)
                if threading.current_thread() not in _threads:
                    thread.join(LEAVE_S)

    def _gather(self, batches: list[Positions], ready: Ready, room: Room, stream: Any) -> None:
        """The thread: one batch after the other, as far ahead as there is room.

        What is made on a GPU is made on the consumer's device and stream, as it were without the thread.
        """
        try:
            with stream:
                for positions in batches:
                    if not room.get():
                        return
                    ready.put((self._make(positions), None))
        except BaseException as error:  # noqa: BLE001 - raised again where the batch is taken
            ready.put((None, error))

    def _make(self, positions: Positions) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        indices = positions if self._takes_arrays else positions.tolist()
        samples = [self.dataset[i] for i in indices] if many is None else many(indices)
        if isinstance(samples, Batch):
            samples.pool = self._pool
        batch = self._collate(samples)
        if self._copier is not None:
            return self._copier.begin(batch)
        return batch

    def _begin(self) -> tuple[Any, int]:
        """Draws what `DataLoader` draws at the start of an epoch: (generator, samples that were given)."""
        import torch

        resumed, self._resumed = self._resumed, None
        generator, given = self.generator, 0
        if resumed is not None:
            given = int(resumed["samples"])
            if resumed["generator"] is not None:
                # torch's default generator is everybody's: its state is taken, not set back.
                generator = generator if generator is not None else torch.Generator()
                generator.set_state(resumed["generator"])
        self._begun_at = (torch.default_generator if generator is None else generator).get_state()
        self._given = given
        torch.empty((), dtype=torch.int64).random_(generator=generator)  # DataLoader's seed for its workers
        return generator, given

    def _order(self, generator: Any, given: int) -> tuple[Positions, Iterator[Positions]]:
        """This rank's part of an epoch's order after its first `given` samples, of all ranks.

        And what `DataLoader`'s sampler draws at its end.
        """
        import torch

        count = len(self.dataset)
        permutations: Iterator[Positions] = iter([np.arange(count)])
        if self.shuffle and count:
            if self.generator is None:  # then a sampler has one of its own
                seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
                generator = torch.Generator().manual_seed(seed)
            permutations = _permutations(count, generator)
        order = next(permutations)
        if self._replicas == 1 or not count:
            return order[given:], permutations
        list(permutations)  # now: replicas agree on the next order wherever each leaves this one
        left = max(0, count - given)
        part = left // self._replicas if self.drop_last else -(-left // self._replicas)
        whole = np.resize(order, given + part * self._replicas)  # what is repeated is its beginning
        return whole[given + self._rank :: self._replicas], permutations


def _order_text(count: int, shuffle: bool, has_generator: bool) -> str:
    """What decides an epoch's order."""
    drawn = "" if not shuffle else ", with a generator=" if has_generator else ", without generator="
    return f"{count} samples with shuffle={shuffle}{drawn}"


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


def _permutations(count: int, generator: Any) -> Iterator[Positions]:
    """The order that torch's sampler makes of a generator; what it draws at its end, if asked for more."""
    import torch

    sampler = iter(torch.utils.data.RandomSampler(range(count), generator=generator))
    yield np.fromiter(itertools.islice(sampler, count), np.int64, count)
    list(sampler)


def _tell_ranks() -> None:
    """Says that ranks share nothing, where there are several and nobody said that they should not."""
    with contextlib.suppress(ConfigError):
        if (here := ranks_here()).ranks > 1 and here.rank == 0:
            say(
                f"Loader: each of the {here.ranks} ranks reads all samples. To split them, pass "
                f"num_replicas={here.ranks} and rank=; to confirm, pass num_replicas=1"
            )
