"""Whether what counts in a recipe is still what it was when its data set was opened.

A job may set a global, or change its config, while a data set is open. What is preprocessed then does not
belong to the recipe: it is not kept, and what changed is named.

Invariants:
    1. What the function changes itself (a vocabulary that it loads at its first call) is no such change.
    2. Looking again costs less than 2 % of the time between two looks.

Not here: data that changes (stamps.py), files and modules that the function opens (observe.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import Recipe, drift

EVERY_S = 5.0
MAX_SHARE = 0.02


class Steady:
    """Looks whether a recipe still holds, in the process that made it and its forks.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, recipe: Recipe, clock: Callable[[], float] = time.monotonic) -> None:
        self._recipe: Recipe | None = recipe
        self._clock = clock
        self._own: set[str] = set()
        self._changed: list[str] = []
        self._look_at = 0.0
        self._is_settled = self._is_told = False

    def __getstate__(self) -> dict[str, Any]:
        """Elsewhere globals are others; what is pickled looks at nothing."""
        return {**self.__dict__, "_recipe": None, "_clock": time.monotonic}

    def changed(self, *, is_due: bool = False) -> list[str]:
        """What has been changed from outside since the opening; looks at most so often, or now if due."""
        began = self._clock()
        if not self._changed and (is_due or began >= self._look_at):
            self._changed = [label for label in self._drift() if label not in self._own]
            took_s = self._clock() - began
            self._look_at = began + max(EVERY_S, took_s / MAX_SHARE)
        return self._changed

    def settle(self, *, once: bool = False) -> None:
        """The function was just called: what has changed by now, it changed itself.

        Args:
            once: not if that was asked before.
        """
        if not (once and self._is_settled) and not self._changed:
            self._own.update(self._drift())
        self._is_settled = True

    def is_news(self) -> bool:
        """Whether a change is to be said now: once."""
        is_news, self._is_told = not self._is_told, True
        return is_news

    def _drift(self) -> list[str]:
        if self._recipe is None:
            return []
        try:
            return drift(self._recipe)
        except UnkeyableError:  # its source was edited meanwhile: what runs is still what was loaded
            return []


def line(changed: list[str]) -> str:
    """What to say of a change."""
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return (
        f"{names} changed since the data set was opened, so what is preprocessed now is not kept: set it "
        "before, open the data set again, or name it in untracked="
    )
