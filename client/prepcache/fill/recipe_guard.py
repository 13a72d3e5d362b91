"""Whether what counts in a recipe is still as it was when its data set was opened, and who changed it.

A job may set a global, or change an object in its config, while a data set is open. What is preprocessed
then is not stored, and what changed is named. What the function's own calls change is no such change:

NOTE [ Own state ]
    A `Prep()` with `n == 0` may have `n == 200` after a fill, and 0 where everything was cached. The recipe
    of the next data set is in both cases that of `n == 0`: at the end of a fill a few items are made again,
    and if they give the same bytes, the recipe of exactly this state is from now on that of the state before
    the first call. Otherwise the state counts as it is, and this is said.

    Of a function that holds random generators, the first items are made again at once: it draws from those
    that moved if another sample came out. One that it seeds, or draws from in vain, is none of them.

Invariants:
    1. A change is put down to calls only after the first call, or after a fill in which only the function ran
       and whose code may change it. In another process, where a value may never have been as the recipe says,
       only if it was so there once.
    2. A state counts as the one before the first call only if nothing but what calls changed differs. Files
       that calls read when they changed it are inputs of every data set for which it counts so.
    3. What came up meanwhile (a module that the function imported) is no change; it counts from then on as it
       was at the first look. In another process, only if that cannot have loaded it from an older text.
    4. Nothing is committed unless it was looked at after the last sample of it was made.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from blake3 import blake3

from prepcache import forks
from prepcache.errors import UnkeyableError
from prepcache.keys import recipes
from prepcache.keys.code.dependencies import Dependencies
from prepcache.keys.code.names import Alters
from prepcache.keys.code.resolution import older_texts
from prepcache.keys.encoding.encoder import Encoder
from prepcache.keys.environment import differing as differing_distributions
from prepcache.keys.randomness import Guard
from prepcache.keys.recipes import DEFAULT_DTYPE, DEFINITION, LOADED, Recipe, State

MOST_ITEMS = 3
"""Items of a function that are made again, in at most `ENOUGH_S`."""
ENOUGH_S = 1.0
MOST_STATES = 256
"""Changed states of which it is known whether they make the same samples as the first one."""
MOST_TRIES = 4
"""How often such an item is made again to see whether it is random: a flip may come out the same."""
_MOVING = "a dict or set, while it was being read,"
"""Another thread grows it: who does, and whether it had changed before, cannot be told."""

_met: set[tuple[str, str | None]] = set()
"""Rows of recipes, label and digest, that were so when this process looked, which did not make them."""


class RecipeGuard:
    """Tells whether a recipe still holds in this process: the one that made it, or one that was sent it.

    Attributes:
        changed: what was found changed from outside since the opening; it stays so.
        is_called: whether the function was called here: what comes up now was not loaded by its first call.
        drawn: the random generators that the function was seen to draw from.
        generators: those that it held at the last look, and their places.
        untried: how many items are still to be made again, to see whether they are random.
        _own: the places that calls were seen to change.
        _came: rows that calls brought up, by label: of modules that they imported.
        _items: what makes the first items again, and the digests of their samples.
    """

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.changed: list[str] = []
        self.is_called = False
        self.drawn: set[str] = set()
        self.generators = () if recipe is None else recipe.generators
        self.untried = MOST_ITEMS
        self._recipe = recipe
        self._own: set[str] = set()
        self._came: dict[str, Any] = {}
        self._items: list[tuple[Callable[[], Any], bytes | None]] = []
        self._is_filling = self._is_elsewhere = False
        forks.note(self)

    def after_fork(self) -> None:
        self._is_filling = False

    def __getstate__(self) -> dict[str, Any]:
        """Where modules are imported again, globals are others: they are looked at before the first call."""
        there = {"is_called": False, "_is_elsewhere": True, "_came": {}, "_items": [], "generators": ()}
        return self.__dict__ | there

    # -- what the job asks

    def check(self) -> list[str]:
        """Looks for what has been changed from outside since the opening; before each commit."""
        if self.changed:
            return self.changed
        known = self._values()
        try:
            found, others = self._drift(is_of_calls=self._is_filling)
            found |= dict.fromkeys(others, False)
        except UnkeyableError as error:
            found = {getattr(error, "path", None) or "what the function depends on": False}
        except (RuntimeError, KeyError):
            return [_MOVING]
        if not (self._is_filling or self.is_called or self._is_elsewhere):
            # The job has loaded it, and may have set it.
            found |= dict.fromkeys(sorted(self._values() - known), False)
        self._own.update(
            label
            for label, may_be_own in found.items()
            if may_be_own and (label in self._came or (self._is_filling and self._was(label)))
        )
        self.changed = [label for label in found if label not in self._own]
        return self.changed

    def check_first(self) -> list[str]:
        """As `check` before the first call in this process; later what was found by then."""
        return self.changed if self.is_called else self.check()

    # -- what it is told

    def note(self, changed: list[str]) -> None:
        """What was found changed where an executor has put the function."""
        self.changed = self.changed or [label for label in changed if label != _MOVING]
        self.untried = 0  # it was tried there

    def note_draws(self, again: Callable[[], Any], sample: Any) -> None:
        """Notes the generators of the function that a sample depends on; `again` makes it again."""
        self.untried -= 1
        before, began = _digest_of(sample), time.monotonic()
        with contextlib.suppress(Exception):  # it cannot be made again
            for _ in range(MOST_TRIES):
                with Guard(held=self.generators) as watched:
                    is_same = _digest_of(again()) == before
                if not is_same:
                    self.drawn |= watched.drawn
                if not (is_same and watched.drawn) or time.monotonic() - began > ENOUGH_S:
                    break
        if self.drawn or time.monotonic() - began > ENOUGH_S:
            self.untried = 0

    def note_item(self, again: Callable[[], Any], sample: Any) -> None:
        """Notes what the first items gave; `again` makes one again."""
        if len(self._items) < MOST_ITEMS and not self._is_elsewhere:
            self._items.append((again, _digest_of(sample)))

    def note_call(self) -> None:
        """The function was just called: what its first call has changed, it changed itself."""
        if not self.is_called and not self.changed:
            with contextlib.suppress(UnkeyableError, RuntimeError, KeyError):  # nothing passes for its own
                self._own.update(self._drift(is_of_calls=True)[0])
        self.is_called = True

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """While only the function runs, and threads of the job's: what changes, it may have changed itself.
        After a fill that ends well, its state may count as before."""
        self._is_filling = True
        try:
            yield
            if not self.check():
                with contextlib.suppress(RuntimeError, KeyError):  # as `_MOVING`: it counts as it is
                    self._settle()
        finally:
            self._is_filling = False

    # -- what has changed

    def _drift(self, *, is_of_calls: bool) -> tuple[dict[str, bool], list[str]]:
        """What differs from the recipe now, and whether the function may have changed it; and distributions
        and files that are loaded in another version. `is_of_calls`: only the function ran meanwhile."""
        made = self._recipe
        if made is None or made.preprocess is None or made.asked.get("code") is None:
            return {}, []
        state, reach = recipes.again(made)
        self.generators = tuple(reach.generators.values())
        before = made.state._replace(rows=self._came | made.state.rows)
        moved = (before.rows.keys() ^ state.rows.keys()) - self._own if is_of_calls else set()
        asked = before.rows.keys() & {f"{label.rpartition('.')[0]}.__getattr__" for label in moved}
        # What a module's `__getattr__` puts there comes up as an import does, and it is asked for it no more.
        is_given = any(map(self._was, asked))
        drifted = differing(before, state, own=made.own, is_brought=is_given)
        if is_given:
            gone = (moved & before.rows.keys()).difference(drifted)
            self._own |= gone | {label.removesuffix(DEFINITION) for label in gone}
        functions = [function.__code__ for function in reach.labels.functions()]
        alters = Alters([*functions, *reach.whole_files.values()] if drifted else ())
        found = {label.removesuffix(DEFINITION): _may_be_own(label, reach, alters) for label in drifted}
        others = differing_distributions(made.parts["environment"]["distributions"])
        came = {label: row for label, row in state.rows.items() if label not in before.rows}
        if self._is_elsewhere:
            texts = older_texts(reach, came)
            found = {label: own for label, own in found.items() if label.rpartition(".")[0] not in texts}
            others += texts.values()
            holders = {_holder(label, made.state.rows) for label in (*found, *others)}
            _met.update(row for row in made.state.rows.items() if row[0] not in holders)
        self._came |= {label: row for label, row in came.items() if label not in found}
        return found, others

    def _values(self) -> set[str]:
        return {label for label in self._came if not label.startswith(LOADED)}

    def _was(self, place: str) -> bool:
        rows = self._recipe.state.rows if self._recipe is not None and self._is_elsewhere else {}
        holder = _holder(place, rows)
        return holder is None or (holder, rows[holder]) in _met

    # -- what calls have changed

    def _settle(self) -> None:
        """Makes items again if calls have changed what the function holds, so that it counts as before."""
        made = self._recipe
        if made is None or made.preprocess is None:
            return
        own = frozenset(self._own | made.own)
        if not (own or self._values()):
            return
        is_same = self._gives_the_same()
        before = made.state._replace(rows=self._came | made.state.rows)
        for now in recipes.states_now(made):
            if differing(before, now, own=own):  # something else changed it, as another thread
                continue
            if len(recipes.changed_states) >= MOST_STATES:
                recipes.changed_states.clear()
            recipes.changed_states[now.digest] = (
                {"digest": made.digest, "parts": made.parts, "own": own}
                if is_same
                else differing(made.state, now)
            )

    def _gives_the_same(self) -> bool:
        began = time.monotonic()
        for again, before in self._items:
            try:
                with Guard():
                    sample = again()
                if before is None or _digest_of(sample) != before:
                    return False
            except Exception:  # noqa: BLE001 - whatever it raises, it is not what it was
                return False
            if time.monotonic() - began > ENOUGH_S:
                break
        return bool(self._items)


def _may_be_own(label: str, reach: Dependencies, alters: Alters) -> bool:
    value = reach.values.get(label)
    if value is not None and value.holder is not None and not reach.labels.is_project(value.holder):
        return True  # the object's own code may change it
    if label.endswith(DEFINITION) or label == DEFAULT_DTYPE:
        return False  # modules were imported again, or functions replaced
    if label.startswith("$"):
        return alters.may_alter("environ", dict)
    # The function was given its config.
    return label.startswith("config.") or alters.may_alter(label, object if value is None else value.kind)


def differing(before: State, now: State, *, own: Iterable[str] = (), is_brought: bool = False) -> list[str]:
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
    is_brought |= bool(changed) or any(label.startswith(LOADED) for label in moved & now.rows.keys())
    moved = {label for label in moved if not label.startswith(("$", LOADED))}
    if is_brought:
        moved = {one for one in moved if one.startswith("config.") or not objects.isdisjoint(_above(one))}
    found = changed | moved
    whole = sorted(label for label in found if label not in moved or found.isdisjoint(_above(label)))
    own = {*own}
    return [label for label in whole if own.isdisjoint((label, *_above(label)))]


def _above(place: str) -> Iterator[str]:
    return (place[:at] for at, mark in enumerate(place) if mark in ".[" and at)


def _holder(place: str, rows: dict[str, str | None]) -> str | None:
    """The label of the row that a place is in; None where it is in none."""
    return next((at for at in (place, *reversed([*_above(place)])) if at in rows), None)


def _digest_of(sample: Any) -> bytes | None:
    """The digest of a sample; None of one that no artifact holds."""
    hasher = blake3()
    try:
        Encoder().write(sample, hasher.update, "sample")
    except Exception:  # noqa: BLE001 - a sample may be anything
        return None
    return hasher.digest()


def line(changed: list[str]) -> str:
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return (
        f"{names} changed since the data set was opened, so new samples are not stored: set it earlier, open "
        "the data set again, restart the executor that loaded it before, or name it in untracked="
    )
