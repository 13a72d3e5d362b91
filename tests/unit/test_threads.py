"""What orders the work of threads counts by its type and by what it holds of the job's, never the moment."""

import multiprocessing
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe


def digest_of(held: Any) -> str:
    def f(x: Any) -> Any:
        return held, x

    made = recipe(f, code="function")
    assert not made.notes
    return made.digest


def held_by(kind: type, *held: int) -> Any:
    made = kind()
    for one in held:
        made.put(one)
    return made


def is_set(event: Any) -> Any:
    event.set()
    return event


def first(n: int) -> int:
    return n


SPAWNED = multiprocessing.get_context("spawn")
ALIKE: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "lock that may be taken again": threading.RLock,
    "condition": threading.Condition,
    "semaphore": threading.Semaphore,
    "event": threading.Event,
    "barrier": lambda: threading.Barrier(2),
    "lock of processes": SPAWNED.Lock,
    "event of processes": SPAWNED.Event,
    "queue": queue.Queue,
    "list of locks": lambda: [threading.Lock(), {"one": threading.RLock()}],
}
DIFFERENT = {
    "event": (threading.Event(), is_set(threading.Event())),
    "event of processes": (SPAWNED.Event(), is_set(SPAWNED.Event())),
    "barrier": (threading.Barrier(2, first), threading.Barrier(2, print)),
    "queue": (held_by(queue.Queue, 1), held_by(queue.Queue, 2)),
    "heap": (held_by(queue.PriorityQueue, 1), held_by(queue.PriorityQueue, 2)),
    "room in a queue": (queue.Queue(1), queue.Queue(2)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_the_type_stands_for_what_holds_nothing_else(name):
    one, other_one = ALIKE[name](), ALIKE[name]()
    assert digest_of(one) == digest_of(other_one)


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_held_beside_counts(name):
    one, other_one = DIFFERENT[name]
    assert digest_of(one) != digest_of(other_one)


def test_of_two_kinds_none_stands_for_the_other():
    assert len({digest_of(make()) for make in ALIKE.values()}) == len(ALIKE)


def test_what_is_of_the_moment_does_not_count():
    lock, condition = threading.Lock(), threading.Condition()
    before = digest_of((lock, condition))
    with lock, condition:
        assert digest_of((lock, condition)) == before


@pytest.mark.parametrize("kind", [queue.SimpleQueue, threading.local, lambda: ThreadPoolExecutor(1)])
def test_what_runs_or_hides_things_is_refused(kind):
    with pytest.raises(UnkeyableError, match="has no stable bytes"):
        digest_of(kind())
