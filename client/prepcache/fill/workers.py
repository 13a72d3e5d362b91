"""Calling the preprocessing function: here, in forked workers, or in somebody's executor.

Invariants:
    1. The parts (call.py) of one item come in order and from one worker.
    2. A function that raises gives a part with the error in it; the others go on.
    3. Forked workers inherit the function and the items: neither need be picklable. They use no session
       and no descriptor of the parent's but their own pipe, and end when they are told so, or that closes.
    4. No other process has an end of a pipe, whatever forks it: the death of one side would not be seen, and
       closing would wait for what another thread of the job's has forked.
"""

from __future__ import annotations

import gc
import io
import mmap
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import Connection, Pipe
from multiprocessing.connection import wait as wait_connections
from typing import Any

from prepcache import forks
from prepcache.errors import PreprocessError
from prepcache.fill.call import Job, Part
from prepcache.keys.observation.inputs import Input
from prepcache.keys.randomness import Guard
from prepcache.protocol.wire import with_draws

WAITING_BYTES = 8 << 20
"""A worker sends what it has made of a chunk, or so much of it at once: a message costs both some 1.4 ms."""
WAITING_S = 1.0
"""It sends after so long, too: a chunk may take far longer than was expected."""
CHUNKS_AHEAD = 2
"""Chunks that one worker has in hand, so that it never waits for its parent."""


class _Pipes(forks.Living[Connection]):
    """The ends that this process has, for what it forks to close."""

    def after_fork(self) -> None:
        for pipe in self:
            with suppress(OSError):
                pipe.close()


_PIPES = _Pipes()
forks.note(_PIPES)
_AT_BYTES = 8

Made = tuple[list[Part], list[dict[str, Any]], list[str], set[str]]
"""What an executor gives back: parts, what the function was seen to read in that process so far, what counts
in the recipe and is another there, and the generators that it drew from."""


class Workers:
    """Calls the function for chunks of items.

    Attributes:
        slots: items that are preprocessed at the same time.
        pending: items handed in whose last part has not been taken.
        drawn: the random generators that it was seen to draw from; complete once closed.
    """

    slots = 1

    def __init__(self, job: Job, item_of: Callable[[int], Any]) -> None:
        self.pending = 0
        self.drawn = job.guard.drawn
        self._job = job
        self._item_of = item_of
        self._ready: list[Part] = []

    @property
    def has_room(self) -> bool:
        raise NotImplementedError

    def submit(self, chunk: Sequence[int]) -> None:
        self.pending += len(chunk)

    def take(self) -> list[Part]:
        """The next parts; waits for some. Only while something is pending."""
        while not self._ready:
            self._receive()
        parts, self._ready = self._ready, []
        self.pending -= sum(part.is_last for part in parts)
        return parts

    def _receive(self) -> None:
        raise NotImplementedError

    def observed(self) -> list[dict[str, Any]]:
        return with_draws(self._job.observed(), self.drawn)

    def close(self) -> None:
        """Ends it, dropping what is pending, and puts the global random generators back."""
        self._ready.clear()
        self.pending = 0


def workers_of(executor: Executor | None, workers: int, job: Job, item_of: Callable[[int], Any]) -> Workers:
    if executor is not None:
        return InExecutor(executor, job, item_of)
    return Forked(workers, job, item_of) if workers > 0 else InProcess(job, item_of)


class InProcess(Workers):
    def __init__(self, job: Job, item_of: Callable[[int], Any]) -> None:
        super().__init__(job, item_of)
        self._parts: Iterator[list[Part]] = iter(())
        self._around = ExitStack()
        self._guard: Guard | None = None

    @property
    def has_room(self) -> bool:
        return not self.pending

    def submit(self, chunk: Sequence[int]) -> None:
        super().submit(chunk)
        made = self._job.made((index, self._item_of(index)) for index in chunk)
        self._parts = chain(self._parts, made)

    def _receive(self) -> None:
        if self._guard is None:
            self._around.enter_context(self._job.filling())
            self._guard = self._around.enter_context(Guard(self.drawn))
        self._ready += next(self._parts)

    def observed(self) -> list[dict[str, Any]]:
        if self._guard is not None:
            self._guard.check()
        return super().observed()

    def close(self) -> None:
        super().close()
        self._parts = iter(())
        self._around.close()


class InExecutor(Workers):
    """Any `concurrent.futures.Executor`; function, config and items must suit it. It is not shut down."""

    def __init__(self, executor: Executor, job: Job, item_of: Callable[[int], Any]) -> None:
        super().__init__(job, item_of)
        self._executor = executor
        self._chunks: dict[Future[Made], Sequence[tuple[int, Any]]] = {}
        self.slots = int(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)

    @property
    def has_room(self) -> bool:
        return len(self._chunks) < CHUNKS_AHEAD * self.slots

    def submit(self, chunk: Sequence[int]) -> None:
        items = [(index, self._item_of(index)) for index in chunk]
        waiting = [item for some in (*self._chunks.values(), items) for _, item in some]
        if len({id(item) for item in waiting}) < len(waiting):
            raise PreprocessError(
                f"the items are one and the same {type(items[0][1]).__name__} object, which an executor sees "
                "as the last of them: give each item an object of its own, or leave executor= out"
            )
        call: list[Any] = [run_chunk, self._job, items]
        if isinstance(self._executor, ThreadPoolExecutor):
            # Its threads have context variables of their own; the recipe counts those of this one.
            call.insert(0, copy_context().run)
        self._chunks[self._executor.submit(*call)] = items
        super().submit(chunk)

    def _receive(self) -> None:
        done, _ = wait(self._chunks, return_when=FIRST_COMPLETED)
        for future in done:
            items = self._chunks.pop(future)
            if (error := future.exception()) is not None:
                self._ready += (Part(index, [], True, 0.0, error=error) for index, _ in items)
                continue
            parts, observed, changed, drawn = future.result()
            self.drawn |= drawn
            self._job.add(Input(**row) for row in observed)
            self._job.guard.note(changed)
            self._ready += parts

    def close(self) -> None:
        for future in self._chunks:
            future.cancel()
        self._chunks = {}
        super().close()


def run_chunk(job: Job, chunk: Sequence[tuple[int, Any]]) -> Made:
    """The parts of some items, and what was observed; runs wherever an executor puts it.

    Generators are not put back: the next chunk in this process would draw the same numbers.
    """
    changed = job.guard.check_first()
    watched = Guard(job.guard.drawn).__enter__()
    parts: list[Part] = []
    with job.filling():
        parts += [part.copied().looked_at() for some in job.made(chunk) for part in some]
    return parts, job.observed(), changed, watched.check()


@dataclass(slots=True)
class _Worker:
    """A process; `at` is memory that it shares, with the item that it is at."""

    pid: int
    pipe: Connection
    at: mmap.mmap
    chunks: deque[deque[int]] = field(default_factory=deque)

    def tell(self, chunk: list[int] | None) -> None:
        """Its next items, or that it is to end."""
        with suppress(OSError):  # it has died, which is found when it is heard
            self.pipe.send(chunk)


class Forked(Workers):
    """Forked workers, started by the first chunk."""

    def __init__(self, workers: int, job: Job, item_of: Callable[[int], Any]) -> None:
        super().__init__(job, item_of)
        self.slots = workers
        self._workers: list[_Worker] = []

    @property
    def has_room(self) -> bool:
        return not self._workers or any(len(worker.chunks) < CHUNKS_AHEAD for worker in self._workers)

    def submit(self, chunk: Sequence[int]) -> None:
        if not self._workers:
            self._start()
        idlest = min(self._workers, key=lambda worker: len(worker.chunks))
        idlest.chunks.append(deque(chunk))
        idlest.tell(list(chunk))
        super().submit(chunk)

    def _receive(self) -> None:
        busy = [worker for worker in self._workers if worker.chunks]
        ready = set(wait_connections([worker.pipe for worker in busy]))
        for worker in busy:
            if worker.pipe in ready:
                self._hear(worker)

    def _hear(self, worker: _Worker) -> None:
        try:
            sent, observed, drawn = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._bury(worker)
            return
        self._job.add(observed)
        self.drawn |= drawn
        for part in (part for raw in sent for part in pickle.loads(raw)):
            if not worker.chunks or part.index != worker.chunks[0][0]:
                continue  # of an item that a part has ended which does not pickle
            self._ready.append(part)
            if part.is_last:
                worker.chunks[0].popleft()
                if not worker.chunks[0]:
                    worker.chunks.popleft()

    def _bury(self, worker: _Worker) -> None:
        """Says which item a dead worker was at, and gives its other items back as failed with it."""
        self._workers.remove(worker)
        worker.pipe.close()
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        except ChildProcessError:  # the job ignores SIGCHLD, or reaped it
            how = "cause unknown"
        error = PreprocessError(
            f"a preprocessing worker died ({how}): out of memory, or a native crash; try fewer workers"
        )
        at = int.from_bytes(worker.at[:_AT_BYTES], sys.byteorder)
        items = sorted((i for chunk in worker.chunks for i in chunk), key=lambda i: i != at)
        self._ready += (Part(i, [], True, 0.0, error=error) for i in items)

    def _start(self) -> None:
        _flush_output()  # else each child prints again what the job has printed so far
        for _ in range(self.slots):
            ours, theirs = Pipe()
            _PIPES.add(ours)
            at = mmap.mmap(-1, _AT_BYTES)
            # A handler of the job's that raised in the child before its `try` would run the job there.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                with warnings.catch_warnings():
                    # Python 3.12 warns of threads; the child takes no lock of ours.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
                if pid == 0:
                    self._be_worker(theirs, at, mask)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            self._workers.append(_Worker(pid, ours, at))

    def _be_worker(self, pipe: Connection, at: mmap.mmap, mask: set[int | signal.Signals]) -> None:
        """The child's whole life; never returns, and raises nothing: what called it is the job."""
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _PIPES.add(pipe)
            gc.freeze()  # a collection would write into all that the parent has, and copy its pages
            torch = sys.modules.get("torch")
            if torch is not None:
                torch.set_num_threads(1)  # the parent's OpenMP threads did not survive the fork
            _work(pipe, at, self._job, self._item_of)
            code = 0
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = 0
        except BaseException:  # noqa: BLE001 - the top of a process
            traceback.print_exc()
        finally:
            try:
                _flush_output()
            finally:
                os._exit(code)

    def close(self) -> None:
        for worker in self._workers:
            if worker.chunks:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
            worker.tell(None)
            worker.pipe.close()
        for worker in self._workers:
            with suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)
        self._workers = []
        super().close()


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _work(pipe: Connection, at: mmap.mmap, job: Job, item_of: Callable[[int], Any]) -> None:
    waiting: list[bytes] = []
    nbytes, sent = 0, time.monotonic()

    def send() -> None:
        nonlocal nbytes, sent
        pipe.send((waiting, job.news(), watched.check()))
        waiting.clear()
        nbytes, sent = 0, time.monotonic()

    def begins(index: int) -> None:
        at[:_AT_BYTES] = index.to_bytes(_AT_BYTES, sys.byteorder)

    with job.filling(), Guard(job.guard.drawn) as watched:
        while (chunk := pipe.recv()) is not None:
            try:
                for parts in job.made(((index, item_of(index)) for index in chunk), begins):
                    raw = _dumped(parts)
                    waiting += raw
                    nbytes += sum(map(len, raw))
                    is_due = nbytes >= WAITING_BYTES or time.monotonic() - sent >= WAITING_S
                    if is_due or not parts[-1].is_last:
                        send()
            except (SystemExit, KeyboardInterrupt) as error:  # the function's, which would end the process
                index = int.from_bytes(at[:_AT_BYTES], sys.byteorder)
                waiting.append(_dump([Part(index, [], True, 0.0, error=error)]))
            if waiting:
                send()


def _dumped(parts: list[Part]) -> list[bytes]:
    """Parts as copies in bytes; one that does not pickle has what its writer says of it."""
    try:
        return [_dump(parts)]
    except Exception as error:  # noqa: BLE001 - a foreign object's own pickling may raise anything
        if len(parts) > 1:
            return [raw for part in parts for raw in _dumped([part])]
        end = parts[0].looked_at()
        return [_dump([end if end.error else Part(end.index, [], True, end.cost_s, error=error)])]


class _Pickler(pickle.Pickler):
    """Pickles dense CPU tensors as arrays: torch would move each into a file in shared memory."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
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


def _dump(parts: list[Part]) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump([_picklable(part) for part in parts])
    return stream.getvalue()


def _picklable(part: Part) -> Part:
    if part.error is None:
        return part
    error = part.error
    note = "in a preprocessing worker:\n" + "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a foreign exception's own pickling may raise anything
        error = RuntimeError(f"{type(error).__qualname__}: {error}")
    error.add_note(note)
    return Part(part.index, [], True, part.cost_s, error=error)
