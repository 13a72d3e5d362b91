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
    3. The state that the fill left is then remembered, with the recipe of the state before the first call. An
       opening that finds exactly this state gets that recipe.
    In all other cases the state counts as it is found. If calls fill a table, and the job sets an entry of it
    before the next opening, the table counts as it is, too.

Invariants:
    1. What the job sets between two openings counts. What changed is put down to calls only where nothing but
       the function ran meanwhile.
    2. A state counts as the one before the first call only if it is exactly what a fill left, and nothing but
       what calls changed differs from that one. If calls build a window for size 3, and the job then sets
       size to 5, the window that is there counts.
    3. A function's items, and its config, are held no longer than the function itself.
    4. Files that calls read when they changed the state are inputs of every data set for which that state
       counts as before: its own calls may find in memory what they would have read.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
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
MOST_DATA_SETS = 4
"""Data sets of one function whose items are kept."""
MOST_STATES = 256
"""Changed states that are known to make the same samples as the first one."""
ENOUGH_S = 1.0
"""Seconds of making items again after which no further one is."""
LARGEST_BYTES = 64 << 20
"""Larger samples are not compared: hashing them would cost the fill."""


class Attribute(NamedTuple):
    """What a recipe wrote of an attribute, and which object that was.

    Args:
        outline: what was written, without the attributes of objects in it that have places of their own.
        address: of the object; 0 in another process.
        is_library: whether what has the attribute is of a library's class.
        text: a readable form, of the first attributes only.
    """

    written: bytes
    outline: bytes = b""
    address: int = 0
    kind: type = object
    is_library: bool = False
    text: str = ""


Attributes = dict[str, dict[str, Attribute]]
"""The place of an object (`preprocess.reader`) to its attributes by name."""


class State(NamedTuple):
    """What a function, and what it reaches, was when a recipe was made.

    Args:
        digest: of the recipe that is made of this state, whatever it counts as.
        values: digests of run-time values by label, and environment variables by `$NAME`.
        leaves: of the config.
        outlines: of values, and of leaves by `config.<path>`, that hold objects with places; see `Attribute`.
    """

    digest: RecipeDigest
    values: dict[str, str | None]
    leaves: dict[str, Any]
    places: Attributes
    outlines: dict[str, bytes]

    @classmethod
    def empty(cls) -> State:
        return cls(RecipeDigest(""), {}, {}, {}, {})

    def __reduce__(self) -> Any:
        """Addresses mean nothing elsewhere, and types may not be pickled."""
        places = {
            at: {name: Attribute(one.written, one.outline) for name, one in rows.items()}
            for at, rows in self.places.items()
        }
        return State, (self.digest, self.values, self.leaves, places, self.outlines)


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


def changed_places(before: Attributes, now: Attributes) -> dict[str, Attribute | None]:
    """The attributes that differ, with what they are now; not those in which only attributes of theirs do."""
    found: dict[str, Attribute | None] = {}
    themselves: set[str] = set()
    for at in before.keys() & now.keys():
        for name in before[at].keys() | now[at].keys():
            then, there = before[at].get(name), now[at].get(name)
            if then is None or there is None or then.written != there.written:
                found[place_of(at, name)] = there
                is_replaced = then and there and then.address and then.address != there.address
                if then is None or there is None or is_replaced or then.outline != there.outline:
                    themselves.add(place_of(at, name))
    holders = {above for place in found for above in _above(place)}
    return {place: found[place] for place in sorted(found) if place in themselves or place not in holders}


def _above(place: str) -> Iterator[str]:
    """The places that something at a place is in."""
    return (place[:at] for at, mark in enumerate(place) if mark in ".[" and at)


def differing(before: State, now: State, *, own: Iterable[str] = ()) -> list[str]:
    """What differs of values, attributes and the config: labels, places, and `config.<path>`.

    Args:
        own: what may differ, with all that is in it.
    """
    places = changed_places(before.places, now.places)
    above = {holder for place in places for holder in _above(place)}
    holders = {row for row in above if before.outlines.get(row) == now.outlines.get(row)}
    rows = [
        *_rows(before.values, now.values),
        *(f"config.{path}" for path in _rows(before.leaves, now.leaves, is_whole=True)),
    ]
    found = dict.fromkeys([*(row for row in rows if row not in holders), *places])
    return [place for place in found if not is_below(place, own)]


def _rows(before: Mapping[str, Any], now: Mapping[str, Any], *, is_whole: bool = False) -> list[str]:
    names = before.keys() | now.keys() if is_whole else before.keys() & now.keys()
    return sorted(name for name in names if decides(before.get(name)) != decides(now.get(name)))


class _Trial:
    """The first items that a function made for a data set, to be made again."""

    def __init__(self, function: Callable[..., Any], key: tuple[int, ...], observer: Any) -> None:
        self.observer = observer
        self.items: list[tuple[Callable[[Any], Any], bytes]] = []
        self.state: State | None = None
        """What counted when its recipe was made, once that is known."""
        self.parts: dict[str, Any] = {}
        self.digest = RecipeDigest("")
        self.own: set[str] = set()
        """What its calls were seen to change."""
        self.came: dict[str, Any] = {}
        """Digests of what they brought up: values of modules that they imported."""
        pop = _trials.pop  # at the interpreter's end the module's names are gone before its objects

        def forget(_: Any) -> None:
            pop(key, None)

        if isinstance(function, MethodType):
            owner = weakref.ref(function.__self__, forget)
            method = function.__func__
            self.function: Callable[[], Any] = lambda: (
                None if (it := owner()) is None else MethodType(method, it)
            )
        else:
            self.function = weakref.ref(function, forget)

    def gives_the_same(self) -> bool:
        """Whether the items come out as they did first, or as many of them as may be made."""
        from prepcache.keys.randomness import Guard

        function = self.function()
        if function is None or not self.items:
            return False
        began = time.monotonic()
        for again, before in self.items:
            try:
                with Guard():
                    sample = again(function)
                if digest_of(sample) != before:
                    return False
            except Exception:  # noqa: BLE001 - whatever it raises, it is not what it was
                return False
            if time.monotonic() - began > ENOUGH_S:
                break
        return True


_trials: dict[tuple[int, ...], dict[str, _Trial]] = {}
"""By function, and by data set; the latest data set last."""
_known: dict[RecipeDigest, Before] = {}
"""Changed states, by the recipe that is made of them as they are."""


def note(
    function: Callable[..., Any], again: Callable[[Any], Any], sample: Any, of: str, observer: Any = None
) -> None:
    """Keeps the digest of one of the first samples that a function makes for a data set, if that `wants` it.

    Args:
        again: makes the sample again, when it is given the function, which it does not hold.
        sample: what the function made; where items expand, the list of all samples of this one.
        of: the data set.
        observer: its observer.
    """
    if (digest := digest_of(sample)) is None:
        return
    key = _key(function)
    trials = _trials.setdefault(key, {})
    trial = trials.get(of)
    if trial is None:
        trial = trials[of] = _Trial(function, key, observer)
        for former in list(trials)[:-MOST_DATA_SETS]:
            del trials[former]
    trial.items.append((again, digest))


def wants(function: Callable[..., Any], of: str) -> bool:
    """Whether one more sample that a function makes for a data set is to be noted.

    None is of a callable without weak references: what is kept of it would never be let go.
    """
    trial = _trials.get(_key(function), {}).get(of)
    if trial is not None:
        return len(trial.items) < MOST_ITEMS
    owner = function.__self__ if isinstance(function, MethodType) else function
    return type(owner).__weakrefoffset__ != 0


def note_changed(made: Recipe, of: str, places: Iterable[str], came: Mapping[str, Any]) -> None:
    """Tells by which recipe a function made the items of a data set, and what its calls changed.

    Nothing is kept of a data set none of whose items was noted.

    Args:
        came: digests of what came up with them, by label.
    """
    trial = _trials.get(_key(made.preprocess), {}).get(of)
    if trial is not None:
        trial.state, trial.digest, trial.parts = made.state, made.digest, made.parts
        trial.own.update(made.own, places)
        trial.came.update(came)


def has_changed(function: Any) -> bool:
    """Whether calls of a function were seen to change anything."""
    return any(trial.own or trial.came for trial in _trials.get(_key(function), {}).values())


def before_calls(made: Recipe, *, is_fill_over: bool = False) -> tuple[Before | None, list[str]]:
    """What the state that a recipe is made of counts as, if only calls of its function have changed it.

    Args:
        is_fill_over: only the function ran since its data set was opened. Items are made again then, if it is
            not known yet whether they depend on what was changed.

    Returns:
        That, and no places; or None where the state counts as it is, and the places that calls changed.
    """
    if (known := _known.get(made.state.digest)) is not None:
        return known, []
    for trial in reversed(_trials.get(_key(made.preprocess), {}).values()):
        if trial.state is None or trial.state.digest == made.state.digest:
            continue
        values = {**trial.came, **trial.state.values}
        came = made.state.values.keys() - values.keys()
        if not all(is_below(label, trial.own) for label in came):
            continue
        if differing(trial.state._replace(values=values), made.state, own=trial.own):
            continue
        if not _is_alike(trial.parts, made.parts):
            continue
        if not (is_fill_over and trial.gives_the_same()):
            return None, differing(trial.state, made.state)
        before = Before(trial.digest, trial.parts, frozenset(trial.own), (trial.observer,))
        learn(made, before)
        return before, []
    return None, []


def learn(made: Recipe, before: Before) -> None:
    """Notes what the state that a recipe is made of counts as."""
    if len(_known) >= MOST_STATES:
        _known.clear()
    _known[made.state.digest] = before


def _is_alike(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether two recipes are the same in what no call changes."""
    fixed = ("environment", "version", "expand", "read")
    if any(before[name] != now[name] for name in fixed):
        return False
    code, other = before["code"], now["code"]
    is_same = all(code[name] == other[name] for name in ("mode", "files", "variables", "untracked"))
    return is_same and not _rows(code["definitions"], other["definitions"])


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


def _key(function: Any) -> tuple[int, ...]:
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    return (id(function),)
