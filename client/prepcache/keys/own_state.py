"""What calls of a function change in what it holds: a counter, the last file name, a window.

NOTE [ Own state ]
        prep = Prep()                      # prep.n == 0
        train = CachedDataset(some, prep)  # prep.n == 200 where it was filled, 0 where everything was cached
        val = CachedDataset(others, prep)

    The recipe of val is that of a Prep with n == 0 in both cases: else it would be found in one of them only.
    1. What differs after the first call, or after a fill in which only the function ran, its calls have
       changed: attributes and globals, here `prep.n`.
    2. At the end of the fill a few items are made again. If they give the same bytes as at first, the samples
       do not depend on what was changed.
    3. The state that this left is then remembered, with the recipe of the state before the first call. An
       opening that finds exactly this state gets that recipe.
    In all other cases the state counts as it is found. If calls fill a table, and the job sets an entry of it
    before the next opening, the table counts as it is, too.

Invariants:
    1. What the job sets between two openings counts. What changed is put down to calls only where nothing but
       the function ran meanwhile.
    2. A state counts as the one before the first call only if it is exactly what a fill left, and nothing but
       what calls changed differs from that one. If calls build a window for size 3, and the job then sets
       size to 5, the window that is there counts.
    3. Files that calls read when they changed the state are inputs of every data set for which that state
       counts as before: its own calls may find in memory what they would have read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from prepcache.digests import RecipeDigest
from prepcache.errors import UnkeyableError
from prepcache.keys.code.describe import decides
from prepcache.keys.encoding.encoder import Encoder

if TYPE_CHECKING:
    from prepcache.keys.recipes import Recipe

MOST_ITEMS = 3
"""Items of a function that are made again."""
MOST_STATES = 256
"""Changed states of which it is known whether they make the same samples as the first one."""
ENOUGH_S = 1.0
"""Seconds of making items again after which no further one is."""
LARGEST_BYTES = 64 << 20
"""Larger samples are not compared: hashing them would cost the fill."""


class State(NamedTuple):
    """What a function, and what it reaches, was when a recipe was made.

    Args:
        digest: of the recipe that is made of this state, whatever it counts as.
        values: digests of run-time values by label, and environment variables by `$NAME`.
        leaves: of the config.
        objects: labels of objects, whose attributes are values.
    """

    digest: RecipeDigest
    values: dict[str, str | None]
    leaves: dict[str, Any]
    objects: frozenset[str]

    @classmethod
    def empty(cls) -> State:
        return cls(RecipeDigest(""), {}, {}, frozenset())


class Before(NamedTuple):
    """What a changed state counts as."""

    digest: RecipeDigest
    parts: dict[str, Any]
    own: frozenset[str]
    observers: tuple[Any, ...]


def place_of(at: str, name: str) -> str:
    """The place of an attribute of the object at a place."""
    return f"{at}.{name}" if name.isidentifier() else f"{at}[{name!r}]"


def is_below(place: str, holders: Iterable[str]) -> bool:
    """Whether a place is one of some others, or in what is there."""
    return any(place == one or place.startswith((f"{one}.", f"{one}[")) for one in holders)


def _above(place: str) -> Iterator[str]:
    """The places that something at a place is in."""
    return (place[:at] for at, mark in enumerate(place) if mark in ".[" and at)


def differing(before: State, now: State, *, own: Iterable[str] = ()) -> list[str]:
    """What differs of values, attributes and the config: labels, and `config.<path>`.

    An attribute that an object has got or lost differs; another value that came up does not.

    Args:
        own: what may differ, with all that is in it.
    """
    objects = before.objects & now.objects
    changed = before.values.keys() ^ now.values.keys()
    found = {label for label in changed if not objects.isdisjoint(_above(label))}
    found.update(_rows(before.values, now.values))
    found.update(f"config.{path}" for path in _rows(before.leaves, now.leaves, is_whole=True))
    whole = sorted(place for place in found if place not in changed or found.isdisjoint(_above(place)))
    return [place for place in whole if not is_below(place, own)]


def _rows(before: Mapping[str, Any], now: Mapping[str, Any], *, is_whole: bool = False) -> list[str]:
    names = before.keys() | now.keys() if is_whole else before.keys() & now.keys()
    return sorted(name for name in names if decides(before.get(name)) != decides(now.get(name)))


class Trial:
    """The first items that a function made for a data set, to be made again, and what its calls changed.

    In another process it notes no items: they are made again where the fill ends.

    Args:
        own: the places that calls were seen to change.
        wanted: how many items are noted.

    Attributes:
        came: digests of what they brought up, by label: values of modules that they imported.
        observer: that of the data set.
    """

    def __init__(self, own: Iterable[str] = (), wanted: int = MOST_ITEMS) -> None:
        self.own: set[str] = set(own)
        self.came: dict[str, Any] = {}
        self.observer: Any = None
        self._wanted = wanted
        self._items: list[tuple[Callable[[Any], Any], bytes | None]] = []

    def __reduce__(self) -> Any:
        return Trial, (self.own, 0)

    @property
    def is_wanting(self) -> bool:
        """Whether one more item is to be noted."""
        return len(self._items) < self._wanted

    def note(self, again: Callable[[Any], Any], sample: Any) -> None:
        """Keeps the digest of an item's sample, or of all its samples.

        Args:
            again: makes it again, when it is given the function.
        """
        self._items.append((again, digest_of(sample)))

    def gives_the_same(self, function: Callable[..., Any]) -> bool:
        """Whether the items come out as they did first, or as many of them as may be made."""
        from prepcache.keys.randomness import Guard

        began = time.monotonic()
        for again, before in self._items:
            try:
                with Guard():
                    sample = again(function)
                if before is None or digest_of(sample) != before:
                    return False
            except Exception:  # noqa: BLE001 - whatever it raises, it is not what it was
                return False
            if time.monotonic() - began > ENOUGH_S:
                break
        return bool(self._items)


_known: dict[RecipeDigest, Before | list[str]] = {}
"""What changed states count as, by the recipe that is made of them as they are: as before the calls, or as
they are, because of what is at some places."""


def known(made: Recipe) -> Before | list[str]:
    """What the state that a recipe is made of counts as; or the places that calls changed, and matter."""
    return _known.get(made.state.digest, [])


def learn(made: Recipe, now: Recipe, trial: Trial, *, is_same: bool) -> None:
    """Notes what the state after a fill counts as, if it is only calls that have changed it.

    Args:
        made: the recipe before.
        now: that of the state as it is.
        is_same: whether items that were made again gave the same.
    """
    own = trial.own | made.own
    before = made.state._replace(values={**trial.came, **made.state.values})
    if differing(before, now.state, own=own):  # something else changed it, as another thread
        return
    if len(_known) >= MOST_STATES:
        _known.clear()
    if is_same:
        _known[now.digest] = Before(made.digest, made.parts, frozenset(own), (trial.observer,))
    else:
        _known[now.digest] = differing(made.state, now.state)


def digest_of(sample: Any) -> bytes | None:
    """The digest of a sample; None of one that is too large, or that no artifact holds."""
    hasher = blake3()
    size = 0

    def put(raw: Any) -> None:
        nonlocal size
        size += memoryview(raw).nbytes
        if size > LARGEST_BYTES:
            raise UnkeyableError("too large")
        hasher.update(raw)

    try:
        Encoder().write(sample, put, "sample")
    except Exception:  # noqa: BLE001 - a sample may be anything
        return None
    return hasher.digest()
