"""Whether what counts in a recipe is still as it was when its data set was opened, and who changed it.

A job may set a global, or change an object in its config, while a data set is open. What is preprocessed
then is not stored, and what changed is named. What the function's own calls change is no such change:

NOTE [ Own state ]
        prep = Prep()                      # prep.n == 0
        train = CachedDataset(some, prep)  # prep.n == 200 where it was filled, 0 where everything was cached
        val = CachedDataset(others, prep)

    The recipe of val is that of a Prep with n == 0 in both cases. At the end of a fill a few items are made
    again. If they give the same bytes, the recipe of exactly this state is from now on that of the state
    before the first call. Otherwise the state counts as it is, and this is said.

Invariants:
    1. A change is put down to calls only after the first call, or after a fill in which only the function ran
       and whose code may change it. In another process, where a value may never have been as the recipe says,
       only if it was so there once.
    2. A state counts as the one before the first call only if nothing but what calls changed differs.
    3. Files that calls read when they changed the state are inputs of every data set for which that state
       counts as before: its own calls may find in memory what they would have read.
    4. What came up meanwhile (a module that the function imported) is no change; it counts from then on as it
       was at the first look. In another process, only if that cannot have loaded it from an older text.
    5. Nothing is committed unless it was looked at after the last sample of it was made.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys import recipes
from prepcache.keys.code.dependencies import Dependencies
from prepcache.keys.code.names import Alters
from prepcache.keys.encoding.encoder import Encoder
from prepcache.keys.environment import differing as differing_distributions
from prepcache.keys.randomness import Guard
from prepcache.keys.recipes import DEFAULT_DTYPE, DEFINITION, LOADED, Recipe, State

MOST_ITEMS = 3
"""Items of a function that are made again."""
MOST_STATES = 256
"""Changed states of which it is known whether they make the same samples as the first one."""
ENOUGH_S = 1.0
"""Seconds of making items again after which no further one is."""
LARGEST_BYTES = 64 << 20
"""Larger samples are not compared: hashing them would cost the fill."""
_OF_ANOTHER_TIME = " of another time"
"""Suffix of a distribution or file that an executor's process loaded in another version than the recipe."""
_MOVING = "a dict or set, while it was being read,"
"""Another thread grows it: who does, and whether it had changed before, cannot be told."""

_met: set[tuple[str, str | None]] = set()
"""Rows of recipes, label and digest, that were so when this process looked, which did not make them."""


class Trial:
    """The first items that a function made for a data set, to be made again, and what its calls changed.

    In another process it notes no items: they are made again where the fill ends.

    Attributes:
        own: the places that calls were seen to change.
        came: rows that calls brought up, by label: of modules that they imported.
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
        return len(self._items) < self._wanted

    def note(self, again: Callable[[Any], Any], sample: Any) -> None:
        """Keeps the digest of an item's samples; `again` makes them again, when it is given the function."""
        self._items.append((again, _digest_of(sample)))

    def gives_the_same(self, function: Callable[..., Any]) -> bool:
        began = time.monotonic()
        for again, before in self._items:
            try:
                with Guard():
                    sample = again(function)
                if before is None or _digest_of(sample) != before:
                    return False
            except Exception:  # noqa: BLE001 - whatever it raises, it is not what it was
                return False
            if time.monotonic() - began > ENOUGH_S:
                break
        return bool(self._items)


class Steady:
    """Looks whether a recipe still holds in this process: the one that made it, or one that got it."""

    def __init__(self, recipe: Recipe | None, *, trial: Trial | None = None) -> None:
        self._recipe = recipe
        self._trial = trial or Trial()
        self._changed: list[str] = []
        self._is_told = self._is_elsewhere = False
        self.is_settled = False
        """Whether the function was called: what comes up now was not loaded by its first call."""

    def __getstate__(self) -> dict[str, Any]:
        """Where modules are imported again, globals are others: they are looked at before the first call."""
        return self.__dict__ | {"is_settled": False, "_is_elsewhere": True}

    def changed(self, *, is_due: bool = False, is_filling: bool = False) -> list[str]:
        """What has been changed from outside since the opening.

        Args:
            is_due: looks also after the first call, as before a commit.
            is_filling: only the function ran since the last look, and threads of the job's.
        """
        if self._changed or (self.is_settled and not is_due):
            return self._changed
        known, own = _values(self._trial), self._trial.own
        try:
            found = self._drift(is_filling)
        except UnkeyableError as error:
            found = {getattr(error, "path", None) or "what the function depends on": False}
        except (RuntimeError, KeyError):
            return [_MOVING]
        if not (is_filling or self.is_settled or self._is_elsewhere):
            # The job has loaded it, and may have set it.
            found |= dict.fromkeys(sorted(_values(self._trial) - known), False)
        own.update(
            label
            for label, may_be_own in found.items()
            if may_be_own and (label in self._trial.came or (is_filling and self._was(label)))
        )
        self._changed = [label for label in found if label not in own]
        return self._changed

    def note(self, changed: list[str]) -> None:
        """What was found changed where an executor has put the function."""
        self._changed = self._changed or [label for label in changed if label != _MOVING]

    def settle(self) -> None:
        """The function was just called: what its first call has changed, it changed itself."""
        if not self.is_settled and not self._changed and self._recipe is not None:
            distributions = self._recipe.parts["environment"]["distributions"]
            with contextlib.suppress(UnkeyableError, RuntimeError, KeyError):  # nothing passes for its own
                self._trial.own.update(
                    label
                    for label in self._drift(True)
                    if label not in distributions and not label.endswith(_OF_ANOTHER_TIME)
                )
        self.is_settled = True

    def filled(self) -> None:
        """A fill is over, in which only the function ran: its state may count as before from now on."""
        if not self.changed(is_due=True, is_filling=True) and self._recipe is not None:
            _settle(self._recipe, self._trial)

    def is_news(self) -> bool:
        is_news, self._is_told = not self._is_told, True
        return is_news

    def _drift(self, is_of_calls: bool) -> dict[str, bool]:
        if self._recipe is None:
            return {}
        found = drift(
            self._recipe, self._trial.came, is_elsewhere=self._is_elsewhere, is_of_calls=is_of_calls
        )
        if self._is_elsewhere:
            rows = self._recipe.state.rows
            others = {_holder(label, rows) for label in found}
            _met.update(row for row in rows.items() if row[0] not in others)
        return found

    def _was(self, place: str) -> bool:
        """Whether a value was once in this process what the recipe says."""
        if not self._is_elsewhere or self._recipe is None:
            return True
        rows = self._recipe.state.rows
        holder = _holder(place, rows)
        return holder is None or (holder, rows[holder]) in _met


def drift(
    made: Recipe,
    met: dict[str, Any] | None = None,
    *,
    is_elsewhere: bool = False,
    is_of_calls: bool = False,
) -> dict[str, bool]:
    """What has changed in this process since a recipe was made, and whether the function may have changed it.

    Args:
        met: rows that came up in earlier looks; grows by what comes up in this one.
        is_elsewhere: this process did not make it, and may have loaded other texts or versions of libraries.
        is_of_calls: only the function ran since the last look.
    """
    met = {} if met is None else met
    if made.preprocess is None or made.asked.get("code") is None:
        return {}
    state, reach = recipes.again(made)
    before = made.state._replace(rows=met | made.state.rows)
    drifted = differing(before, state, own=made.own)
    gone: set[str] = (before.rows.keys() - state.rows.keys()) if is_of_calls else set()
    if is_lazy := any(label.endswith(".__getattr__") for label in gone):
        # It is asked no more for what it has put into its module: that came up as an import does.
        drifted = [label for label in drifted if label in before.rows]
    functions = [function.__code__ for function in reach.labels.functions()]
    alters = Alters([*functions, *reach.modules.codes()] if drifted else ())
    found = {label.removesuffix(DEFINITION): _may_be_own(label, reach, alters) for label in drifted}
    if is_lazy:
        found |= {label.removesuffix(DEFINITION): True for label in gone.intersection(drifted)}
    others = differing_distributions(made.parts["environment"]["distributions"])
    came = {label: row for label, row in state.rows.items() if label not in before.rows}
    if is_elsewhere:
        texts = reach.modules.older_texts(came)
        found = {label: own for label, own in found.items() if label.rpartition(".")[0] not in texts}
        others = [name + _OF_ANOTHER_TIME for name in (*texts.values(), *others)]
    met |= {label: row for label, row in came.items() if label not in found}
    return found | dict.fromkeys(others, False)


def _may_be_own(label: str, reach: Dependencies, alters: Alters) -> bool:
    value = reach.values.get(label)
    if value is not None and value.is_attribute and not reach.labels.is_project(type(reach.owners[label])):
        return True  # the object's own code may change it
    if label.endswith(DEFINITION) or label == DEFAULT_DTYPE:
        return False  # modules were imported again, or functions replaced
    if label.startswith("$"):
        return alters.may_alter("environ", dict)
    # The function was given its config.
    return label.startswith("config.") or alters.may_alter(label, object if value is None else value.kind)


def differing(before: State, now: State, *, own: Iterable[str] = ()) -> list[str]:
    """The labels of rows that differ, but for those in `own`, with all that is in them.

    A row that came or went differs where nothing else does: otherwise what differs, or a module that was
    loaded, may have brought it, unless it is of the config or an attribute of an object that was there.
    """
    objects = before.objects & now.objects
    moved = before.rows.keys() ^ now.rows.keys()
    changed = {
        label for label in before.rows.keys() & now.rows.keys() if before.rows[label] != now.rows[label]
    }
    changed |= moved & {f"${name}" for name in before.variables ^ now.variables}
    is_brought = bool(changed) or any(label.startswith(LOADED) for label in moved)
    moved = {label for label in moved if not label.startswith(("$", LOADED))}
    if is_brought:
        moved = {one for one in moved if one.startswith("config.") or not objects.isdisjoint(_above(one))}
    found = changed | moved
    whole = sorted(label for label in found if label not in moved or found.isdisjoint(_above(label)))
    own = {*own}
    return [label for label in whole if own.isdisjoint((label, *_above(label)))]


def _above(place: str) -> Iterator[str]:
    """The places that something at a place is in, the outermost first."""
    return (place[:at] for at, mark in enumerate(place) if mark in ".[" and at)


def _holder(place: str, rows: dict[str, str | None]) -> str | None:
    """The label of the row that a place is in; None where it is in none."""
    return next((at for at in (place, *reversed([*_above(place)])) if at in rows), None)


def _settle(made: Recipe, trial: Trial) -> None:
    """Makes items again if calls have changed what the function holds, so that it counts as before."""
    own = frozenset(trial.own | made.own)
    if made.preprocess is None or not (own or _values(trial)):
        return
    is_same = trial.gives_the_same(made.preprocess)
    before = made.state._replace(rows=trial.came | made.state.rows)
    for now in recipes.states_now(made):
        if differing(before, now, own=own):  # something else changed it, as another thread
            continue
        if len(recipes.changed_states) >= MOST_STATES:
            recipes.changed_states.clear()
        recipes.changed_states[now.digest] = (
            {"digest": made.digest, "parts": made.parts, "own": own, "inherits": (trial.observer,)}
            if is_same
            else differing(made.state, now)
        )


def _values(trial: Trial) -> set[str]:
    """The labels of values that came up; that a module is loaded is none."""
    return {label for label in trial.came if not label.startswith(LOADED)}


def _digest_of(sample: Any) -> bytes | None:
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


def line(changed: list[str]) -> str:
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    if any(name.endswith(_OF_ANOTHER_TIME) for name in changed):
        return (
            f"{names} is loaded in the executor, so its samples are not stored: restart the executor, or "
            "open the data set again"
        )
    return (
        f"{names} changed since the data set was opened, so new samples are not stored: set it earlier, "
        "open the data set again, or name it in untracked="
    )
