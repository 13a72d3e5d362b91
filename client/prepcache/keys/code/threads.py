"""Objects that order what threads and processes do: locks, events, queues, pools, threads.

    a lock, condition, semaphore             its type stands for it: who holds it is the moment's
    an event                                 whether it is set
    a barrier                                what it calls
    a pool                                   what its workers call first; not how many they are
    a queue                                  what is in it, and how much may be
    a thread                                 what it is to run while that is not over, what a subclass adds
    data of each thread (`threading.local`)  that of this one

Invariants:
    1. What they keep for their own work (waiting threads, tickets, counters) does not count: no result is
       made of it, and it is another at each look.
"""

from __future__ import annotations

import threading
from typing import Any

from prepcache.keys.code.fleeting import Parts
from prepcache.keys.instance_types import instance_state

_LOCKS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")
_INITIALIZERS = ("_initializer", "_initargs", "_create_worker_context")
"""The last has the others in its closure, with Python 3.14."""
_POOLS = (
    "concurrent.futures.process.ProcessPoolExecutor",
    "concurrent.futures.thread.ThreadPoolExecutor",
    "multiprocessing.pool.Pool",
    "multiprocessing.pool.ThreadPool",
)
_QUEUES = ("queue.Queue", "queue.LifoQueue", "queue.PriorityQueue")
_KEPT: dict[str, tuple[str, ...]] = {
    "_thread.lock": (),
    "_thread.RLock": (),
    "threading._RLock": (),
    "threading.Barrier": ("_action",),
    **{
        f"{module}.{name}": ()
        for module in ("threading", "multiprocessing.synchronize", "asyncio.locks")
        for name in _LOCKS
    },
    **dict.fromkeys(_POOLS, _INITIALIZERS),
    **dict.fromkeys(_QUEUES, ("queue", "maxsize")),
}
"""What counts of exact types, by attribute: a subclass may keep more."""
_EVENTS = ("threading.Event", "multiprocessing.synchronize.Event", "asyncio.locks.Event")
_TO_RUN = ("_target", "_args", "_kwargs")
"""Of a thread; taken away when it ends. What it has left then counts where it lies."""
_WORKERS = "_children"
"""What multiprocessing's `ThreadPool` leaves in the thread that makes one."""


def is_lock(value: Any) -> bool:
    """Whether a value only orders what threads or processes do."""
    return _KEPT.get(f"{type(value).__module__}.{type(value).__qualname__}") == ()


def parts_of_threads(value: Any) -> Parts | None:
    """What an object of these kinds is made of, besides its class; None for all else.

    Raises:
        ValueError: it does not show what it holds.
    """
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if (kept := _KEPT.get(name)) is not None:
        return [(part, getattr(value, part)) for part in kept if hasattr(value, part)]
    if name in _EVENTS:
        return [("is_set", value.is_set())]
    if name == "_queue.SimpleQueue":
        if not value.empty():
            raise ValueError("what is in it is only seen by who takes it out")
        return [("queue", [])]
    if isinstance(value, threading.Thread):
        own = vars(threading.Thread(name="none"))  # without a name it would be counted, and number the next
        added = [part for part in instance_state(value) if part not in own and part != _WORKERS]
        return [(part, getattr(value, part)) for part in (*_TO_RUN, *added) if hasattr(value, part)]
    if isinstance(value, threading.local):
        return [("here", [(part, getattr(value, part)) for part in instance_state(value)])]
    return None
