"""Draws of random numbers: a generator that moved while the function ran was drawn from.

Watched are the global generators of `random`, `numpy.random` and `torch`, and those that the function holds.

Invariants:
    1. A generator of a library that is not loaded was not drawn from: torch is not imported here.
    2. On leaving, every global generator that moved is put back to where it was on entering: training draws
       the same numbers whether preprocessing ran or was found done.
    3. Where another thread may draw meanwhile, no global one is put back or reported: its numbers would come
       again. A thread that is born meanwhile is the function's.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterable
from typing import Any

from prepcache.keys.encoding.objects import global_generator, global_generators

LOADER_THREAD = "prepcache-loader"  # runs code of the job's

_QUIET_MODULES = (
    "multiprocessing.queues", "torch.utils.data._utils.pin_memory", "tqdm._monitor", "ipykernel.iostream",
    "ipykernel.heartbeat", "ipykernel.control", "ipykernel.parentpoller", "ipykernel.shellchannel",
    "IPython.core.history", "tensorboard.summary.writer.event_file_writer",
)  # fmt: skip
"""Threads whose class or target is of these draw nothing."""


class Guard:
    """Names in `drawn` the generators that are drawn from inside it, and puts global ones back on leaving.
    `held`: those of the function, and their names."""

    def __init__(self, drawn: set[str] | None = None, held: Iterable[tuple[str, Any]] = ()) -> None:
        self.drawn = set() if drawn is None else drawn
        self._held = held

    def __enter__(self) -> Guard:
        if "numpy" in sys.modules:
            with contextlib.suppress(ImportError):  # numpy loads it when somebody asks: the function may
                importlib.import_module("numpy.random")
        self._start: list[tuple[str, Any, Any]] = []
        for name, generator in (*(global_generators() if is_alone() else ()), *self._held):
            with contextlib.suppress(NotImplementedError, AttributeError):  # as one of the system's
                self._start.append((name, generator, _state_of(generator)))
        return self

    def __exit__(self, *error: object) -> None:
        for _, generator, state in self._moved():
            if global_generator(generator) is not None:
                write = getattr(generator, "setstate", None) or generator.set_state
                write(state)

    def check(self) -> set[str]:
        self._moved()
        return self.drawn

    def _moved(self) -> list[tuple[str, Any, Any]]:
        moved = [one for one in self._start if not _equal(_state_of(one[1]), one[2])]
        self.drawn.update(name for name, *_ in moved)
        return moved


def is_alone() -> bool:
    """Whether no other thread of this process may draw, known to Python's `threading` or not."""
    quiet = {thread.ident for thread in threading.enumerate() if _is_quiet(thread)}
    return not sys._current_frames().keys() - quiet - {threading.get_ident()}


def _is_quiet(thread: threading.Thread) -> bool:
    if thread.name.startswith("prepcache"):
        return not thread.name.startswith(LOADER_THREAD)
    target = getattr(thread, "_target", None)
    return (getattr(target, "__module__", None) or type(thread).__module__) in _QUIET_MODULES


def describe(name: str, drawn: set[str]) -> str:
    return (
        f"{name} draws random numbers ({', '.join(sorted(drawn))}), and its samples are cached: every epoch "
        "sees the same draws. Move the random part to transform=, which runs on every access, or draw from a "
        "generator that the function makes from a seed in the item"
    )


def _state_of(generator: Any) -> Any:
    read = getattr(generator, "getstate", None) or getattr(generator, "get_state", None)
    return read() if read else generator.state


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        a, b = tuple(a.values()), tuple(b.values())
    if isinstance(a, tuple):
        with contextlib.suppress(ValueError, RuntimeError):  # there are arrays, or tensors, in it
            return bool(a == b)
        return all(map(_equal, a, b))
    is_equal = a == b
    return bool(is_equal.all() if hasattr(is_equal, "all") else is_equal)
