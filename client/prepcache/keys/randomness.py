"""Draws of random numbers: a generator that moved while the function ran was drawn from.

Watched are the global generators of `random`, `numpy.random` and `torch`, and those that the function holds.

Invariants:
    1. Neither numpy nor torch is imported here; a generator of a library that is not loaded was not drawn
       from.
    2. On leaving, every global generator that moved is put back to where it was on entering: training draws
       the same numbers whether preprocessing ran or was found done.
    3. Where another thread may draw meanwhile, no global one is put back or reported: its numbers would come
       again. A thread that is born meanwhile is the function's.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

LOADER_THREAD = "prepcache-loader"
"""The one of our threads that runs code of the job's."""

_QUIET_MODULES = (
    "multiprocessing.queues",
    "torch.utils.data._utils.pin_memory",
    "tqdm._monitor",
    "ipykernel.iostream",
    "ipykernel.heartbeat",
    "ipykernel.control",
    "ipykernel.parentpoller",
    "ipykernel.shellchannel",
    "IPython.core.history",
    "tensorboard.summary.writer.event_file_writer",
)
"""Threads whose class or target is of these draw nothing."""

_Source = tuple[str, Callable[[], Any], Callable[[Any], object]]
"""One generator: its name, and how its state is read and written."""


@dataclass(slots=True)
class Guard:
    """Names in `drawn` the generators that are drawn from inside it, and puts global ones back on leaving.

    Args:
        held: generators of the function, and their names.
    """

    drawn: set[str] = field(default_factory=set)
    held: Collection[tuple[str, Any]] = ()
    _start: list[tuple[_Source, Any]] = field(default_factory=list)

    def __enter__(self) -> Guard:
        self._start = [(source, source[1]()) for source in _sources()] if is_alone() else []
        for name, generator in self.held:
            with contextlib.suppress(NotImplementedError):  # one of the system's has no state
                source = name, partial(_state_of, generator), id
                self._start.append((source, _state_of(generator)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for (_, _, write), state in self._moved():
            write(state)

    def check(self) -> set[str]:
        self._moved()
        return self.drawn

    def _moved(self) -> list[tuple[_Source, Any]]:
        moved = [(source, state) for source, state in self._start if not _equal(source[1](), state)]
        self.drawn.update(name for (name, _, _), _ in moved)
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
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | int | float | str | bytes | type(None)):
        return bool(a == b)
    return bool((a == b).all())


def _sources() -> list[_Source]:
    found: list[_Source] = [("random", random.getstate, random.setstate)]
    if "numpy" in sys.modules:
        with contextlib.suppress(ImportError):  # numpy itself loads it when somebody asks: the function may
            importlib.import_module("numpy.random")
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state"):
        found.append(("numpy.random", numpy.get_state, numpy.set_state))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        found.append(("torch", torch.get_rng_state, torch.set_rng_state))
    return found
