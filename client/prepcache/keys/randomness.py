"""Draws from random generators that outlive a call, told by comparing their states, and put back.

These are the global ones of `random`, `numpy.random` and `torch`, and those that the preprocessing function
holds in its attributes, as every albumentations transform does.

NOTE [ Draws that matter ]
    That a generator moved does not say that samples are random: a function may seed it, a pipeline may draw
    and not use it, a library may draw at its first call. So the first items for which one moved are made
    again, with the generator going on. Where it ends where it ended before, the function seeds it; where all
    samples come out the same, its draws decide of nothing. Otherwise they do.

Invariants:
    1. Neither numpy nor torch is imported here; a generator of a library that is not loaded was not drawn
       from.
    2. On leaving, every generator that moved is put back to where it was on entering: training draws the
       same numbers whether preprocessing ran or was found done.
    3. Where another thread may draw meanwhile, nothing is put back or reported: its numbers would come
       again. One that is born meanwhile is the function's.

Not here: generators that a call makes for itself (they are deterministic or seeded by it), and draws
in other processes (each worker has a guard of its own).
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, TracebackType
from typing import Any

from prepcache.keys.code.names import global_chains
from prepcache.keys.encoding.object_adapters import is_generator

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

LOOKS = 32
"""First items for which it is looked whether a generator moved; one that moves later counts."""
PROBED_ITEMS = 8
PROBES = 4
"""Times that an item is made again: one draw in ten that is used shows in 32 of 33 runs."""
PROBED_S = 1.0
"""Seconds for that, of one function."""

_HELD = "preprocess"
"""Where the places of what a function holds begin."""
_DEEPEST = 8
"""How deep lists of transforms are looked into."""
_LONGEST = 1000
"""Longer lists hold data, not transforms."""

REMEDY = (
    "its samples are cached, so every epoch sees the same draw. Move the random part to transform=, which "
    "runs on every access, or seed it from the item"
)


@dataclass(frozen=True, slots=True)
class _Source:
    """One generator: how its state is read and written."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


@dataclass(slots=True)
class Probe:
    """Finds out whether samples depend on draws; see NOTE [ Draws that matter ]. One of each function."""

    harmless: set[str] = field(default_factory=set)
    random: set[str] = field(default_factory=set)
    _left: int = PROBED_ITEMS
    _looks: int = 0
    _spent_s: float = 0.0

    def begin(self, function: Any) -> list[tuple[_Source, Any]]:
        """The states of all generators before an item is made; none where that is not looked at."""
        is_over = self._left <= 0 or self._spent_s > PROBED_S or bool(self.random)
        self._looks += 1
        if is_over or self._looks > LOOKS or not is_alone():
            return []
        return [(source, source.read()) for source in (*_sources(), *_held_sources(function))]

    def moved(self, before: list[tuple[_Source, Any]]) -> list[_Source]:
        """Those that are elsewhere now; while more items are looked at, also where they are known to be
        harmless so far."""
        return [source for source, state in before if not _equal(source.read(), state)]

    def look(self, moved: list[_Source], digest: Any, again: Callable[[], Any]) -> None:
        """Makes an item again and again, with the generators going on from where they are.

        Args:
            digest: of what was made of it.
            again: makes it again, and digests that.
        """
        began = time.monotonic()
        after = [(source, source.read()) for source in moved]
        try:
            self._left -= 1
            for _ in range(PROBES):
                same = digest is not None and again() == digest
                seeded = {source.name for source, state in after if _equal(source.read(), state)}
                names = {source.name for source in moved} - seeded
                self.harmless |= seeded
                if not same:
                    self.random |= names
                    self.harmless -= names
                else:
                    self.harmless |= names - self.random
                if not names or self.random or time.monotonic() - began > PROBED_S / PROBED_ITEMS:
                    return
        except Exception:  # noqa: BLE001 - an item that can't be made again tells nothing
            self.random |= {source.name for source in moved} - self.harmless
        finally:
            for source, state in after:
                source.write(state)
            self._spent_s += time.monotonic() - began


@dataclass(slots=True)
class Guard:
    """Watches generators of this process between entering and leaving.

    `drawn` holds the names of those whose draws samples may depend on, after `check()` or on leaving.

    Args:
        function: those that it holds are watched beside the global ones.
        probe: what is known of them; by default each one that moved counts.
    """

    function: Any = None
    probe: Probe = field(default_factory=Probe)
    drawn: set[str] = field(default_factory=set)
    _start: list[tuple[_Source, Any]] = field(default_factory=list)

    def __enter__(self) -> Guard:
        sources = [*_sources(), *_held_sources(self.function)] if is_alone() else []
        self._start = [(source, source.read()) for source in sources]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.check()
        for source, state in self._start:
            if not _equal(source.read(), state):
                source.write(state)

    def check(self) -> set[str]:
        """Looks which have moved up to now."""
        moved = {source.name for source, state in self._start if not _equal(source.read(), state)}
        self.drawn |= moved
        self.drawn -= self.probe.harmless
        return self.drawn


def guard(function: Any = None, probe: Probe | None = None) -> Guard:
    """A context that tells which generators are drawn from inside it, and puts them back; see `Guard`."""
    return Guard(function, Probe() if probe is None else probe)


def is_alone() -> bool:
    """Whether no other thread of this process may draw: then its generators may be put back.

    Threads that Python's `threading` does not know count too, as soon as they run Python.
    """
    quiet = {thread.ident for thread in threading.enumerate() if _is_quiet(thread)}
    return not sys._current_frames().keys() - quiet - {threading.get_ident()}


def _is_quiet(thread: threading.Thread) -> bool:
    if thread.name.startswith("prepcache"):
        return thread.name != LOADER_THREAD
    target = getattr(thread, "_target", None)
    return (getattr(target, "__module__", None) or type(thread).__module__) in _QUIET_MODULES


def describe(name: str, drawn: set[str]) -> str:
    """The sentence to tell the user once: what was drawn from, and what to do."""
    held = sorted(one for one in drawn if one.startswith(_HELD))
    from_global = sorted(drawn.difference(held))
    sources = [f"the global generator of {' and '.join(from_global)}"] if from_global else []
    if held:
        sources.append(f"a generator that it keeps ({held[0]})")
    return f"{name} draws from {' and '.join(sources)}: {REMEDY}"


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The transforms that an object holds in lists: only a sequence has a place to split it at."""
    state = getattr(value, "__dict__", {})
    modules = state.get("_modules", {})
    held = [*state.items(), *modules.items()]
    found = []
    for attribute, content in held:
        children = getattr(content, "_modules", None)
        elements = list(children.values()) if isinstance(children, dict) else content
        if isinstance(elements, list | tuple) and len(elements) <= _LONGEST:
            found += [(f".{attribute}[{i}]", e) for i, e in enumerate(elements) if callable(e)]
    return found


def _held_sources(function: Any) -> list[_Source]:
    """The generators that a function holds, itself or in the transforms of its lists, each once."""
    found: dict[int, tuple[str, Any]] = {}

    def look(value: Any, place: str, depth: int) -> None:
        if isinstance(value, FunctionType):
            for name, content in _globals_of(value):
                with contextlib.suppress(Exception):  # of whatever answers when its attributes are read
                    look(content, f"{place}[{name}]", depth + 1)
        for name, attribute in list(getattr(value, "__dict__", {}).items()):
            if is_generator(attribute):
                found.setdefault(id(attribute), (f"{place}.{name}", attribute))
        if depth < _DEEPEST:
            for step, part in _parts(value):
                look(part, place + step, depth + 1)

    look(function, _HELD, 0)
    return [_held_source(place, generator) for place, generator in found.values()]


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The callable objects that stand as globals in a function's code, by name: a `Compose` among them."""
    for name in sorted(global_chains(function.__code__)):
        value = function.__globals__.get(name)
        if callable(value) and not issubclass(type(value), FunctionType | type):
            yield name, value


def _held_source(place: str, generator: Any) -> _Source:
    if isinstance(generator, random.Random):
        return _Source(place, generator.getstate, generator.setstate)
    if not hasattr(generator, "bit_generator"):  # torch's, and numpy's of old
        return _Source(place, generator.get_state, generator.set_state)
    bits = generator.bit_generator
    return _Source(place, lambda: bits.state, lambda state: setattr(bits, "state", state))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        with contextlib.suppress(ValueError, RuntimeError):  # there are arrays, or tensors, in it
            return bool(a == b)
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | int | float | str | bytes | type(None)):
        return bool(a == b)
    return bool((a == b).all())


def _sources() -> list[_Source]:
    found = [_Source("random", random.getstate, random.setstate)]
    if "numpy" in sys.modules:
        with contextlib.suppress(ImportError):  # numpy itself loads it when somebody asks: the function may
            importlib.import_module("numpy.random")
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state"):
        found.append(_Source("numpy.random", numpy.get_state, numpy.set_state))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        found.append(_Source("torch", torch.get_rng_state, torch.set_rng_state))
    return found
