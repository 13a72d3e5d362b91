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
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

WORDS = 624
"""32-bit words in the state of a Mersenne Twister, and between two changes of it."""

MAX_ROUNDS = 16_384
"""How far the sequence is followed, in rounds of `WORDS`: ten million numbers, about 0.2 s, once."""

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


def describe(name: str, drawn: set[str]) -> str:
    """The sentence to tell the user once, for a function of this name."""
    return f"{name} draws from the global generator of {' and '.join(sorted(drawn))}: {REMEDY}"


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
