"""What calls of a function change in what it holds: a counter, the last file name, a window.

NOTE [ Own state ]
        prep = Prep()                      # prep.n == 0
        train = CachedDataset(some, prep)  # prep.n == 200 where it was filled, 0 where everything was cached
        val = CachedDataset(others, prep)

    Attributes and globals that calls were seen to change count as they were before the first call, in this
    process as in every other, provided that a few items that are made again with the changed state give the
    same bytes. Where they differ, the state counts as it is, and the user is told.

Invariants:
    1. Only what changed while nothing but the function ran is its own state; what the job sets counts as set.
    2. A changed state passes for the first one only in a recipe by which items were made again with it: a
       window that was built for another size is no counter.
    3. A function's items, and its config, are held no longer than the function itself.
    4. What was read for the calls that changed the state is an input of every data set for which that state
       counts as before: its own calls may find loaded what they would have read.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.encoding.encoder import Encoder

MOST_ITEMS = 3
"""Items of a function that are made again."""
MOST_DATA_SETS = 4
"""Data sets of one function whose items are kept."""
ENOUGH_S = 1.0
"""Seconds of making items again after which no further one is."""
LARGEST_BYTES = 64 << 20
"""Larger samples are not compared: hashing them would cost the fill."""


@dataclass(eq=False, slots=True)
class Slot:
    """An attribute of an object, or a name of a namespace, that calls of some function change.

    Args:
        original: what was written of it before the first call; None where it was not there.
        names: the attributes that its owner had then, in order.
        has_code: whether what was there refers to code of the project, which counts as well.
    """

    original: Any
    names: tuple[str, ...]
    has_code: bool
    accepted: set[tuple[str, bytes]] = field(default_factory=set)
    """The recipes, and the states of this, with which items were the same."""
    material: set[str] = field(default_factory=set)
    """The recipes whose items were seen to depend on it."""
    makers: weakref.WeakSet[_Trial] = field(default_factory=weakref.WeakSet)
    """The functions whose calls change it, and data sets that they did so for."""
    observers: list[Any] = field(default_factory=list)
    """Those of these data sets: what they read, later calls find loaded."""
    is_new: bool = True
    """Whether it was found, or found changed further, after the last time that items were made again."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A slot that is seen to differ from what a recipe counted."""

    owner: Any
    name: str
    original: Any
    names: tuple[str, ...] = ()
    has_code: bool = False
    kind: type = object
    is_library: bool = False


@dataclass(slots=True)
class Attributes:
    """What a recipe wrote of the attributes of what it counts, by place (`preprocess.reader.n`)."""

    written: dict[str, bytes | None] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the attributes of the object at a place."""
    parts: dict[str, int] = field(default_factory=dict)
    """Which object stood there, by address; empty in another process."""
    coded: set[str] = field(default_factory=set)
    settled: dict[str, Any] = field(default_factory=dict)
    """Places, and labels of values, that count as before the first call."""
    texts: dict[str, str] = field(default_factory=dict)
    """Readable forms, for explanations; of the first places only."""

    def __reduce__(self) -> Any:
        return Attributes, (self.written, self.names, {}, self.coded, self.settled, self.texts)


class _Owner:
    """Slots of one object, which go with it."""

    def __init__(self, owner: Any) -> None:
        self.slots: dict[str, Slot] = {}
        at, pop = id(owner), _owners.pop  # the module's names may be gone before its objects
        self._owner: Any = _reference(owner, lambda _: pop(at, None))


class _Trial:
    """The first items that a function made for a data set, to be made again."""

    def __init__(
        self, function: Callable[..., Any], config: Mapping[str, Any], key: tuple[int, ...], observer: Any
    ) -> None:
        self.observer = observer
        self.recipes: frozenset[str] = frozenset()
        """The digest of the data set's recipe, once it is known."""
        self.items: list[tuple[Callable[[], Any], bytes, bool]] = []
        self.config = config
        self.slots: set[Slot] = set()
        """What its calls were seen to change."""
        pop = _trials.pop  # at the interpreter's end the module's names are gone before its objects

        def forget(_: Any) -> None:
            pop(key, None)

        if isinstance(function, MethodType):
            owner = _reference(function.__self__, forget)
            method = function.__func__
            self.function: Callable[[], Any] = lambda: (
                None if (it := owner()) is None else MethodType(method, it)
            )
        else:
            self.function = _reference(function, forget)

    def gives_the_same(self) -> bool:
        """Whether the items come out as they did first, or as many of them as may be made."""
        from prepcache.keys.randomness import Guard

        function = self.function()
        if function is None or not self.items:
            return False
        began = time.monotonic()
        for item, before, is_expanded in self.items:
            try:
                with Guard(function):
                    sample = function(item(), **self.config)
                    sample = list(sample) if is_expanded else sample
                if digest_of(sample) != before:
                    return False
            except Exception:  # noqa: BLE001 - whatever it raises, it is not what it was
                return False
            if time.monotonic() - began > ENOUGH_S:
                break
        return True


_owners: dict[int, _Owner] = {}
_trials: dict[tuple[int, ...], dict[str, _Trial]] = {}
"""By function, and by data set; the last one last."""


def note(
    function: Callable[..., Any],
    config: Mapping[str, Any],
    item: Callable[[], Any],
    sample: Any,
    of: str,
    observer: Any = None,
    *,
    is_expanded: bool = False,
) -> None:
    """Keeps the digest of one of the first samples that a function makes for a data set.

    Args:
        item: gives what the function was given, as often as it is asked.
        sample: what it made; where items expand, the list of all samples of this one.
        of: the data set.
        observer: its observer.
    """
    if (digest := digest_of(sample)) is None:
        return
    key = _key(function)
    trials = _trials.setdefault(key, {})
    trial = trials.get(of)
    if trial is None:
        trial = trials[of] = _Trial(function, config, key, observer)
        for former in list(trials)[:-MOST_DATA_SETS]:
            del trials[former]
    trial.items.append((item, digest, is_expanded))


def wants(function: Callable[..., Any], of: str) -> bool:
    """Whether one more sample that a function makes for a data set is to be noted."""
    trial = _trials.get(_key(function), {}).get(of)
    return trial is None or len(trial.items) < MOST_ITEMS


def belongs(function: Any, recipes: Iterable[str]) -> None:
    """Tells by which recipe the items were made that were noted last of a function.

    Args:
        recipes: its digest, and that of the same recipe without the classes of the items.
    """
    if (trial := _last_trial(function)) is not None:
        trial.recipes = frozenset(recipes)


def confirm(moved: Moved, function: Any) -> None:
    """Notes that calls of a function have changed a slot."""
    owner = _owners.get(id(moved.owner))
    if owner is None:
        owner = _owners[id(moved.owner)] = _Owner(moved.owner)
    slot = owner.slots.setdefault(moved.name, Slot(moved.original, moved.names, moved.has_code))
    _open(slot, function)


def reopen(slots: Iterable[Slot], function: Any) -> None:
    """Notes that calls of a function have changed slots further, which were known."""
    for slot in slots:
        _open(slot, function)


def _open(slot: Slot, function: Any) -> None:
    slot.is_new = True
    if (trial := _last_trial(function)) is not None:
        slot.makers.add(trial)
        trial.slots.add(slot)
        if trial.observer is not None and trial.observer not in slot.observers:
            slot.observers.append(trial.observer)


def _last_trial(function: Any) -> _Trial | None:
    trials = _trials.get(_key(function))
    return next(reversed(trials.values())) if trials else None


def slots_of(owner: Any) -> dict[str, Slot]:
    """The slots of an object, by name."""
    found = _owners.get(id(owner))
    return {} if found is None else found.slots


def has_new_slots(function: Any) -> bool:
    """Whether calls of a function have changed anything since its items were last made again."""
    trial = _last_trial(function)
    return trial is not None and any(slot.is_new for slot in trial.slots)


@dataclass(slots=True)
class Verdict:
    """Which slots may count as before the first call, in a recipe.

    Args:
        recipe: the digest that it has if all of them do.
        slots: those that may.
        tried: those of them with which items were made again just now: whatever they are now is accepted.
        recipes: the digests for which it is.
    """

    recipe: str
    slots: set[Slot] = field(default_factory=set)
    tried: set[Slot] = field(default_factory=set)
    recipes: frozenset[str] = frozenset()

    def passes(self, slot: Slot, state: bytes) -> bool:
        """Whether a slot counts as before, being what it is now."""
        if slot in self.tried:
            slot.accepted.update((recipe, state) for recipe in self.recipes)
        return slot in self.slots


def judge(met: Mapping[Slot, bytes], recipe: str) -> Verdict:
    """Makes items again where it is not known yet whether they depend on what calls have changed.

    Args:
        met: the slots that a recipe met, and their states.
        recipe: its digest, if all of them counted as before. Items of other recipes say nothing of it.
    """
    known = {slot for slot, state in met.items() if (recipe, state) in slot.accepted}
    verdict = Verdict(recipe, known, recipes=frozenset({recipe}))
    results: dict[_Trial, bool] = {}
    for slot in met.keys() - known:
        slot.is_new = False
        if recipe in slot.material:
            continue
        trials = [trial for trial in slot.makers if recipe in trial.recipes]
        for trial in trials:
            if trial not in results:
                results[trial] = trial.gives_the_same()
                verdict.recipes |= trial.recipes
        if trials and all(results[trial] for trial in trials):
            verdict.tried.add(slot)
        elif trials:
            slot.material.add(recipe)
    if results:  # they have changed it further, also what was accepted as it was
        verdict.tried |= known if all(results.values()) else set()
        verdict.slots = known | verdict.tried
    return verdict


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


def _reference(value: Any, at_end: Callable[[Any], object]) -> Callable[[], Any]:
    """A weak reference where there can be one; else a strong one."""
    try:
        return weakref.ref(value, at_end)
    except TypeError:
        return lambda: value
