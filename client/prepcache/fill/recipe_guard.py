"""Whether what counts in a recipe is still what it was when its data set was opened.

A job may set a global, or change an object in its config, while a data set is open. What is preprocessed then
does not belong to the recipe: it is not kept, and what changed is named.

Invariants:
    1. What the function changes itself is no such change: what did change in its first call (a vocabulary
       that it loads), and during a fill what its code may change (a counter, a table of what it met). In
       another process, which may never have been as the recipe says (an object that an executor's initializer
       or the job alone has set), this is said only of what was so there once.
       What was first there after its first call is what it loaded; what was there before, the job did.
    2. Nothing is committed unless it was looked at after the last sample of it was made.
    3. Other looks cost less than 2 % of the time between two of them.

The libraries that are loaded meanwhile, and what an executor had loaded before, are looked at too (drift.py).

Not here: data that changes (keys/items.py), files and modules that the function opens (keys/observation).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.drift import OF_ANOTHER_TIME, drift
from prepcache.keys.own_state import Trial
from prepcache.keys.recipes import Recipe, settle

EVERY_S = 5.0
MAX_SHARE = 0.02
_MOVING = "a dict or set, while it was being read,"
"""Another thread grows it: whose it is, and whether it had changed before, is not told."""

_met: set[tuple[str, str]] = set()
"""What recipes count, label and value, and was so when this process looked, which did not make them."""


class Steady:
    """Looks whether a recipe still holds in this process: the one that made it, or one that got it.

    Args:
        clock: monotonic seconds.
        trial: that of the data set's `Job`: what calls were seen to change, and what came up.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        trial: Trial | None = None,
    ) -> None:
        self._recipe = recipe
        self._clock = clock
        self._trial = trial or Trial()
        self._changed: list[str] = []
        self._look_at = 0.0
        self._is_settled = self._is_told = self._is_elsewhere = False

    def __getstate__(self) -> dict[str, Any]:
        """Where modules are imported again, globals are others: they are looked at before the first call."""
        fresh = {
            "_clock": time.monotonic,
            "_look_at": 0.0,
            "_is_settled": False,
            "_is_elsewhere": True,
        }
        return self.__dict__ | fresh

    @property
    def is_settled(self) -> bool:
        """Whether the function was called: what comes up now was not loaded by its first call."""
        return self._is_settled

    def changed(self, *, is_due: bool = False, is_filling: bool = False) -> list[str]:
        """What has been changed from outside since the opening; looks at most so often, or now if due.

        Args:
            is_filling: only the function ran since the last look, and threads of the job's.
        """
        began = self._clock()
        if not self._changed and (is_due or began >= self._look_at):
            known = set(self._trial.came)
            try:
                found = self._drift()
            except (RuntimeError, KeyError):
                return [_MOVING]
            if not (is_filling or self._is_settled or self._is_elsewhere):
                # The job has loaded it, and may have set it.
                found |= dict.fromkeys(sorted(self._trial.came.keys() - known), False)
            self._trial.own.update(
                label
                for label, may_be_own in found.items()
                if may_be_own and (label in self._trial.came or (is_filling and self._was(label)))
            )
            self._changed = [label for label in found if label not in self._trial.own]
            took_s = self._clock() - began
            self._look_at = began + max(EVERY_S, took_s / MAX_SHARE)
        return self._changed

    def note(self, changed: list[str]) -> None:
        """What was found changed where an executor has put the function."""
        self._changed = self._changed or [label for label in changed if label != _MOVING]

    def settle(self) -> None:
        """The function was just called: what its first call has changed, it changed itself."""
        if not self._is_settled and not self._changed:
            with contextlib.suppress(RuntimeError, KeyError):  # `_MOVING`: then nothing passes for its own
                self._trial.own.update(label for label in self._drift() if not self._is_of_library(label))
        self._is_settled = True

    def filled(self) -> None:
        """A fill is over, in which only the function ran."""
        if not self.changed(is_due=True, is_filling=True) and self._recipe is not None:
            settle(self._recipe, self._trial)

    def _is_of_library(self, label: str) -> bool:
        """Whether it names a distribution, or a text, of which another was loaded: by no function's doing."""
        assert self._recipe is not None
        distributions = self._recipe.parts["environment"]["distributions"]
        return label in distributions or label.endswith(OF_ANOTHER_TIME)

    def is_news(self) -> bool:
        """Whether a change is to be said now: once."""
        is_news, self._is_told = not self._is_told, True
        return is_news

    def _drift(self) -> dict[str, bool]:
        if self._recipe is None:
            return {}
        try:
            found = drift(self._recipe, self._trial.came, is_elsewhere=self._is_elsewhere)
        except UnkeyableError:  # its source was edited meanwhile: what runs is still what was loaded
            return {}
        if self._is_elsewhere:
            values = self._recipe.state.values
            others = {_holder(label, values) for label in found}
            _met.update((label, repr(v)) for label, v in values.items() if label not in others)
        return found

    def _was(self, label: str) -> bool:
        """Whether a value was once in this process what the recipe says."""
        if not self._is_elsewhere or self._recipe is None:
            return True
        values = self._recipe.state.values
        holder = _holder(label, values)
        return holder not in values or (holder, repr(values[holder])) in _met


def _holder(place: str, values: Mapping[str, Any]) -> str:
    """The label of the value that a place is in; the place itself where it is in none."""
    ends = [at for at, mark in enumerate(place) if mark in ".["]
    return next((place[:at] for at in (len(place), *reversed(ends)) if place[:at] in values), place)


def line(changed: list[str]) -> str:
    """What to say of a change."""
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    if any(name.endswith(OF_ANOTHER_TIME) for name in changed):
        return (
            f"{names} is loaded in the executor, so its samples are not stored: restart the executor, or "
            "open the data set again"
        )
    return (
        f"{names} changed since the data set was opened, so new samples are not stored: set it earlier, "
        "open the data set again, or name it in untracked="
    )
