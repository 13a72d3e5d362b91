"""Draws from the global generators of `random`, `numpy.random` and `torch`: one that moved was drawn from.

Invariants:
    1. Neither numpy nor torch is imported here; a generator of a library that is not loaded was not drawn
       from.
    2. On leaving, every generator that moved is put back to where it was on entering: training draws the
       same numbers whether preprocessing ran or was found done.
    3. Where another thread may draw meanwhile, nothing is put back or reported: its numbers would come
       again. One that is born meanwhile is the function's.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
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

REMEDY = (
    "its samples are cached, so every epoch sees the same draws. Move the random part to transform=, which "
    "runs on every access, or draw from a generator of your own that is seeded from the item"
)


_Source = tuple[str, Callable[[], Any], Callable[[Any], object]]
"""One generator: its name, and how its state is read and written."""


@dataclass(slots=True)
class Guard:
    """Names in `drawn` the global generators that are drawn from inside it, and puts them back on leaving."""

    drawn: set[str] = field(default_factory=set)
    _start: list[tuple[_Source, Any]] = field(default_factory=list)

    def __enter__(self) -> Guard:
        self._start = [(source, source[1]()) for source in _sources()] if is_alone() else []
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
    return f"{name} draws from the global generator of {' and '.join(sorted(drawn))}: {REMEDY}"


def _equal(a: Any, b: Any) -> bool:
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
