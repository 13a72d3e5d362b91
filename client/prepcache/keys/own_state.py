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
    2. A changed state never passes for the first one before items were made again with it.
    3. A function's items, and its config, are held no longer than the function itself.
    4. What was read for the calls that changed the state is an input of every data set for which that state
       counts as before: its own calls may find loaded what they would have read.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.canonical import Encoder

MOST_ITEMS = 3
"""Items of a function that are made again."""
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
    accepted: set[bytes] = field(default_factory=set)
    """Digests of the states with which items were the same."""
    makers: weakref.WeakSet[_Trial] = field(default_factory=weakref.WeakSet)
    """The functions whose calls change it."""
    observers: list[Any] = field(default_factory=list)
    """Those of the data sets whose calls changed it: what they read, later calls find loaded."""
    is_trusted: bool = False
    is_new: bool = True
    """Whether it was found after the last time that items were made again."""
    is_material: bool = False
    """Whether items were seen to depend on it."""

    def passes(self, state: bytes) -> bool:
        """Whether a state of it counts as the original."""
        if self.is_trusted:
            self.accepted.add(state)
        return not self.is_material and (_is_supposing or state in self.accepted)


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
        at = id(owner)
        self._owner: Any = _reference(owner, lambda _: _owners.pop(at, None))


class _Trial:
    """The first items that a function made for a data set, to be made again."""

    def __init__(
        self, function: Callable[..., Any], config: Mapping[str, Any], key: tuple[int, ...], of: str
    ) -> None:
        self.of = of
        self.observer: Any = None
        self.recipe = ""
        """The digest of the data set's recipe, once it is known."""
        self.items: list[tuple[Callable[[], Any], bytes, bool]] = []
        self.config = config
        self.slots: set[Slot] = set()
        """What its calls were seen to change."""
        if isinstance(function, MethodType):
            owner = _reference(function.__self__, lambda _: _trials.pop(key, None))
            method = function.__func__
            self.function: Callable[[], Any] = lambda: (
                None if (it := owner()) is None else MethodType(method, it)
            )
        else:
            self.function = _reference(function, lambda _: _trials.pop(key, None))

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
_trials: dict[tuple[int, ...], _Trial] = {}
"""By function: of the data set that it last made samples for."""
_is_supposing = False


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
    key = _key(function)
    if (digest := digest_of(sample)) is not None:
        trial = _trials.get(key)
        if trial is None or trial.of != of:
            trial = _trials[key] = _Trial(function, config, key, of)
            trial.observer = observer
        trial.items.append((item, digest, is_expanded))


def wants(function: Callable[..., Any], of: str) -> bool:
    """Whether one more sample that a function makes for a data set is to be noted."""
    trial = _trials.get(_key(function))
    return trial is None or trial.of != of or len(trial.items) < MOST_ITEMS


def belongs(function: Any, recipe: str) -> None:
    """Tells by which recipe the items were made that are noted of a function."""
    if (trial := _trials.get(_key(function))) is not None:
        trial.recipe = recipe


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
    if (trial := _trials.get(_key(function))) is not None:
        slot.makers.add(trial)
        if trial.observer is not None and trial.observer not in slot.observers:
            slot.observers.append(trial.observer)
        trial.slots.add(slot)


def slots_of(owner: Any) -> dict[str, Slot]:
    """The slots of an object, by name."""
    found = _owners.get(id(owner))
    return {} if found is None else found.slots


def new_slots(function: Any) -> list[Slot]:
    """What calls of a function have changed since its items were last made again."""
    trial = _trials.get(_key(function))
    return [slot for slot in trial.slots if slot.is_new] if trial is not None else []


def make_again(slots: Iterable[Slot], recipe: str) -> list[Slot]:
    """Makes items again with the state of now; gives the slots whose state may pass for the first one.

    Args:
        recipe: the digest that it would have then. Items of other recipes say nothing of it.
    """
    results: dict[_Trial, bool] = {}
    same = []
    for slot in slots:
        slot.is_new = False
        makers = [trial for trial in slot.makers if trial.recipe == recipe]
        for trial in makers:
            if trial not in results:
                results[trial] = trial.gives_the_same()
        if makers and all(results[trial] for trial in makers):
            same.append(slot)
        elif makers:
            slot.is_material = True
    return same


@contextmanager
def trusting(slots: Iterable[Slot]) -> Iterator[None]:
    """While a recipe is made, just after items were made again with the state that it meets."""
    slots = list(slots)
    for slot in slots:
        slot.is_trusted = True
    try:
        yield
    finally:
        for slot in slots:
            slot.is_trusted = False


@contextmanager
def supposing() -> Iterator[None]:
    """While a recipe is made as if all that calls have changed was what it was before."""
    global _is_supposing
    _is_supposing = True
    try:
        yield
    finally:
        _is_supposing = False


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
