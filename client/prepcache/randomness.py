"""Draws from the global random generators, told by comparing their states, and put back.

A draw moves a Mersenne Twister along its own sequence; seeding puts it elsewhere. So a function that
seeds before it draws is told from one that does not: its end state is not on the start's sequence.

Invariants:
    1. Neither numpy nor torch is imported here; a generator of a library that is not loaded was not drawn
       from.
    2. On leaving, every generator that moved is put back to where it was on entering: training draws the
       same numbers whether preprocessing ran or was found done.

Not here: generators that the function makes for itself (they are deterministic or seeded by it), and draws
in other processes (each worker has a guard of its own).
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from prepcache.code.names import global_chains

WORDS = 624
"""32-bit words in the state of a Mersenne Twister, and between two changes of it."""

MAX_ROUNDS = 16_384
"""How far the sequence is followed, in rounds of `WORDS`: ten million numbers, about 0.2 s, once."""

_TORCH_DRAWS = re.compile(r"torch\.(rand|bernoulli|multinomial|normal|poisson|nn\.functional\.dropout)")

REMEDY = (
    "what it returns is kept, so every epoch sees the same draw; move the random part to transform=, which "
    "runs on every access, or seed it from the item"
)


@dataclass(frozen=True, slots=True)
class _Source:
    """One global generator: how its state is read, written, compared and followed."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    array_of: Callable[[Any], Any]
    """The 624 words of a state, in a form that compares by `==`."""
    follow: Callable[[Any], Callable[[], Any]]
    """From a state: a function that moves one round on and returns the words then."""


@dataclass(slots=True)
class Guard:
    """Watches the global generators of this process between entering and leaving.

    `drawn` holds the names of those that were drawn from unseeded, after `check()` or on leaving.
    """

    drawn: set[str] = field(default_factory=set)
    _start: dict[str, tuple[_Source, Any]] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    def __enter__(self) -> Guard:
        self._start = {source.name: (source, source.read()) for source in _sources()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.check()
        for source, state in self._start.values():
            if not _equal(source.read(), state):
                source.write(state)

    def check(self) -> set[str]:
        """Looks for draws up to now; worth calling after the first items, while following is short."""
        for name, (source, start) in self._start.items():
            if name in self._settled:
                continue
            now = source.read()
            if _equal(now, start):
                continue
            self._settled.add(name)
            if _is_further_along(source, start, now):
                self.drawn.add(name)
        return self.drawn


def guard() -> Guard:
    """A context that tells which global generators are drawn from inside it, and puts them back."""
    return Guard()


def describe(name: str, drawn: set[str], preprocess: Any = None) -> str:
    """The sentence to tell the user once: what was drawn from, and where to split a `Compose`."""
    place = place_of_draws(preprocess)
    where = "" if place is None else f"; split it before {place}"
    return f"{name} draws from the global generator of {' and '.join(sorted(drawn))}: {REMEDY}{where}"


def place_of_draws(value: Any, name: str = "preprocess") -> str | None:
    """Where, in a preprocessing function made of parts, the first part that can draw stands.

    A `Compose` is to be split there: what is before it may be cached, it and the rest go to `transform=`.

    Args:
        value: the function; lists and tuples in its attributes are looked into, in order.
        name: what to call it.

    Returns:
        For example `preprocess.transforms[2] (RandomCrop)`; None if nothing tells.
    """
    for step, part in _parts(value):
        place = f"{name}{step}"
        inner = place_of_draws(part, place)
        if inner is not None:
            return inner
        if _can_draw(type(part)):
            return f"{place} ({type(part).__name__})"
    return None


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The transforms that an object holds in lists: only a sequence has a place to split it at."""
    state = getattr(value, "__dict__", {})
    modules = state.get("_modules", {})
    held = [*state.items(), *modules.items()]
    found = []
    for attribute, content in held:
        children = getattr(content, "_modules", None)
        elements = list(children.values()) if isinstance(children, dict) else content
        if isinstance(elements, list | tuple):
            found += [(f".{attribute}[{i}]", e) for i, e in enumerate(elements) if callable(e)]
    return found


def _can_draw(cls: type) -> bool:
    """Whether a method of the class, or of a base that is not a framework's root, names a generator."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("builtins", "abc", "typing"):
            continue
        if base.__module__ == "torch.nn.modules.module":
            continue
        for member in vars(base).values():
            inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(inner, FunctionType) and _names_generator(inner):
                return True
    return False


def _names_generator(function: FunctionType) -> bool:
    for name, chains in global_chains(function.__code__).items():
        module = function.__globals__.get(name)
        if not isinstance(module, ModuleType):
            if getattr(module, "__self__", None) is getattr(random, "_inst", None) is not None:
                return True  # `from random import random`
            continue
        for chain in chains:
            dotted = ".".join((module.__name__, *chain))
            if dotted.startswith(("random.", "numpy.random.")) or _TORCH_DRAWS.match(dotted):
                return True
    return False


def _is_further_along(source: _Source, start: Any, now: Any) -> bool:
    wanted = source.array_of(now)
    if source.array_of(start) == wanted:
        return True
    step = source.follow(start)
    return any(step() == wanted for _ in range(MAX_ROUNDS))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | dict | int | float | str | bytes | type(None)):
        return bool(a == b)
    return bool((a == b).all())


def _sources() -> list[_Source]:
    found = [
        _Source("random", random.getstate, random.setstate, lambda state: state[1][:WORDS], _follow_python)
    ]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state") and numpy.get_state()[0] == "MT19937":
        found.append(
            _Source(
                "numpy.random",
                numpy.get_state,
                numpy.set_state,
                lambda state: state[1].tobytes(),
                lambda state: _follow_numpy(numpy, state),
            )
        )
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        found.append(
            _Source(
                "torch",
                torch.get_rng_state,
                torch.set_rng_state,
                _torch_words,
                lambda state: _follow_torch(torch, state),
            )
        )
    return found


def _follow_python(state: Any) -> Callable[[], Any]:
    generator = random.Random()
    generator.setstate(state)

    def step() -> Any:
        generator.getrandbits(32 * WORDS)
        return generator.getstate()[1][:WORDS]

    return step


def _follow_numpy(numpy: Any, state: Any) -> Callable[[], Any]:
    generator = numpy.RandomState()
    generator.set_state(state)

    def step() -> Any:
        generator.bytes(4 * WORDS)
        return generator.get_state()[1].tobytes()

    return step


def _follow_torch(torch: Any, state: Any) -> Callable[[], Any]:
    generator = torch.Generator()
    generator.set_state(state)
    words = torch.empty(WORDS, dtype=torch.int32)

    def step() -> Any:
        words.random_(generator=generator)
        return _torch_words(generator.get_state())

    return step


def _torch_words(state: Any) -> bytes:
    """The words of a CPU generator's state: after seed (8), left (4), seeded (4) and next (8 bytes)."""
    return bytes(state.numpy()[24 : 24 + 8 * WORDS].tobytes())
