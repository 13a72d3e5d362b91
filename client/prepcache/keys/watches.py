"""Watches: for which function, working on which item, a thread opens files.

Invariants:
    1. What a thread opens counts for the watches that it began itself, else for those that handed it the
       work, else, if it was born since a watching observer was made, for all in progress (a function may
       start threads; nothing tells whose a thread is, so one too many is counted rather than one too few),
       but for what prepcache opens there for itself: a job may open its data sets side by side.
    2. A watch that has ended counts nothing, whoever still carries it.

NOTE [ Work that is handed over ]
    A library may keep a thread that reads for whoever asks: an event loop (zarr's, fsspec's), a pool. Such
    a thread may be older than the observer. asyncio runs what is handed to a loop in a copy of the context
    of who handed it over, and so do `asyncio.to_thread` and tasks: so the watches are in a context
    variable. A `ThreadPoolExecutor` copies no context; its `submit` is wrapped.

Not here: work that reaches an older thread of the job's by a queue of its own.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from prepcache import opens
from prepcache.keys.seen import bytes_written

if TYPE_CHECKING:
    from prepcache.keys.observe import Observer

_OWN_THREADS = "prepcache"
_of_functions: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that were started while a function ran: they may be its own, and work for it again."""
in_progress: dict[int, Watch] = {}
"""Watches, in whatever thread."""
running: tuple[Watch, ...] = ()
"""The same, for an error's handler: near the recursion limit it can look at a tuple, and call nothing."""
_carried: contextvars.ContextVar[tuple[Watch, ...]] = contextvars.ContextVar("prepcache_watches", default=())


@dataclass(slots=True)
class Watch:
    """One function at work on one item, for an observer."""

    observer: Observer
    items: frozenset[str] = field(default_factory=frozenset)
    built: list[str] = field(default_factory=list)
    """Files under paths that were built."""
    made: list[str] = field(default_factory=list)
    """Files that it had asked for, that were not there, and that it made."""
    absent: set[str] = field(default_factory=set)
    """Paths that were built, asked for, or named in starting a process, and under which no file was."""
    missed: dict[tuple[str, bool], Collection[opens.Table]] = field(default_factory=dict)
    """Paths under which nothing was when they were asked for, and whether by a relative name: with the tables
    of the functions that asked."""
    placed: set[str] = field(default_factory=set)
    """Paths under which it put a folder, a link, or what had another name."""
    failure: str = ""
    """The error because of which it missed something: what was made meanwhile cannot be keyed."""
    written_before: int = 0
    """How many bytes this process had written when the first of those was built."""
    _real_items: frozenset[str] | None = None

    def owns(self, path: str, *, is_new: bool = True) -> bool:
        """Whether a path names the item, or what is in it; if it is new, also by where the item links to."""
        if not self.items or _is_within(path, self.items):
            return bool(self.items)
        if not is_new:
            return False
        if self._real_items is None:
            self._real_items = frozenset(map(os.path.realpath, self.items))
        return _is_within(path, self._real_items)

    def note_absent(self, path: str) -> None:
        """Notes that no file is under a path."""
        if not self.absent:
            self.written_before = bytes_written()
        self.absent.add(path)

    def note_missed(self, path: str, frame: FrameType | None = None) -> None:
        """Notes a path under which nothing was when it was asked for, in a frame; see asked.py."""
        full = os.path.abspath(path)
        by = full, not os.path.isabs(path)
        if by not in self.missed:
            self.note_absent(full)
            self.missed[by] = opens.tables_for(frame).values() if frame is not None else ()

    def has_made(self, path: str) -> bool:
        """Whether a file was not there before, and this process, or one that it started, may have written it
        since."""
        info = opens.stat_of(path) if path in self.absent else None
        return info is not None and bytes_written() - self.written_before >= max(info.st_size, 1)


def absolute(paths: Iterable[str | os.PathLike[str]]) -> frozenset[str]:
    """The paths from the root; none for what leads nowhere, as the working directory was removed."""
    found = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found.add(os.path.abspath(os.fspath(path)))
    return frozenset(found)


def _is_within(path: str, items: frozenset[str]) -> bool:
    return path in items or any(path.startswith(item + os.sep) for item in items)


@contextlib.contextmanager
def begun(watch: Watch) -> Iterator[None]:
    """Lets a watch count what this thread opens, what it starts, and what it hands work to."""
    state = opens.state
    before = getattr(state, "watches", ())
    state.watches = (*before, watch)  # a function may open a data set of its own
    token = _carried.set(state.watches)
    in_progress[id(watch)] = watch
    _note_running()
    opens.owners[id(watch)] = watch.owns
    threads = _threads()
    try:
        yield
    finally:
        if (now := _threads()) != threads:
            _of_functions.update(thread for ident, thread in now.items() if threads.get(ident) is not thread)
        del in_progress[id(watch)], opens.owners[id(watch)]
        _note_running()
        state.watches = before
        _carried.reset(token)


def _note_running() -> None:
    global running
    running = tuple(in_progress.copy().values())


def fail(error: BaseException) -> None:
    """Marks all watches that are in progress: something that one of them should have counted was missed."""
    for watch in running:
        watch.failure = watch.failure or error.__class__.__name__


def _threads() -> dict[int, threading.Thread]:
    """Those that run, by number: `threading.enumerate()`, in a tenth of its time."""
    return threading._active.copy()  # type: ignore[attr-defined,no-any-return]


def older_threads() -> weakref.WeakSet[threading.Thread]:
    """The threads of now that no function may have started."""
    return weakref.WeakSet(thread for thread in threading.enumerate() if thread not in _of_functions)


def present(frame: FrameType | None) -> Sequence[Watch]:
    """The watches that the present thread, which runs in a frame, works for."""
    return _own() or ([] if opens.is_for_prepcache(frame) else _of_young_thread())


def _own() -> Sequence[Watch]:
    """Those that this thread began, or was handed work by."""
    begun_here: tuple[Watch, ...] = getattr(opens.state, "watches", ())
    return begun_here or [watch for watch in _carried.get() if in_progress.get(id(watch)) is watch]


def _of_young_thread() -> list[Watch]:
    """The watches that a thread without one may work for."""
    # `current_thread()` would make an object for a foreign thread; the table is only looked at.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    if thread is not None and thread.name.startswith(_OWN_THREADS):
        return []
    found = list(in_progress.values())
    return [watch for watch in found if thread is None or thread not in watch.observer.older_threads]


def watch_pools() -> None:
    """Lets pools carry watches along; see NOTE [ Work that is handed over ]. Called once in a process."""
    pools: Any = ThreadPoolExecutor
    original = pools.submit

    @functools.wraps(original)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        watches = tuple(_own()) if in_progress else ()
        if watches and not _is_of_interpreters(self):
            fn = functools.partial(_carry, watches, fn)
        return original(self, fn, *args, **kwargs)

    pools.submit = submit


def _is_of_interpreters(pool: ThreadPoolExecutor) -> bool:
    """Whether a pool pickles what it is handed, for other interpreters of this process (Python 3.14)."""
    kind = getattr(sys.modules.get("concurrent.futures.interpreter"), "InterpreterPoolExecutor", ())
    return isinstance(pool, kind)


def _carry(watches: tuple[Watch, ...], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = _carried.set(watches)
    try:
        return function(*args, **kwargs)
    finally:
        _carried.reset(token)
