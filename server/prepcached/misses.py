"""Misses: the recipes that jobs asked for last and that had nothing, or not all of it.

Kept in memory, for `prepcache explain` and the dashboard. After a restart the newest recipe of a name stands
in. For the event loop's thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

MAX_MISSES = 1024


@dataclass(slots=True)
class Miss:
    """A job asked for a recipe.

    Args:
        is_partial: it had entries, and the job went on to make more.
        why: the reason on one line, where it is known: what the job said, or the first explanation.
        cue: which kind of input that is, "data" or "observed", where the job said so.
    """

    name: str
    recipe: str
    is_partial: bool = False
    why: str = ""
    cue: str = ""
    session: str = ""
    at: float = field(default_factory=time.time, compare=False)


class Misses:
    """The last misses: one for each name, recipe, and whether it was partial."""

    def __init__(self, limit: int = MAX_MISSES) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str, str, bool], Miss] = OrderedDict()
        self._found: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def note(self, miss: Miss) -> None:
        """A job missed; one that looks again before anything was made has missed once."""
        of = miss.name, miss.recipe, miss.is_partial
        before = self._kept.get(of)
        is_again = before is not None and before.session == miss.session and not miss.why
        self._put(self._kept, of, before if is_again else miss)

    def note_found(self, session: str, name: str, recipe: str) -> None:
        """A session has opened a recipe that has entries; whether these are all, it finds out."""
        self._put(self._found, recipe, (session, name))

    def note_leasing(self, session: str, recipe: str, why: str = "", cue: str = "") -> None:
        """A session wants to make items: of what it has opened, something was missing.

        A DataLoader worker has a session of its own, and tells the `why` of the job that opened the recipe.
        """
        opened_by, name = self._found.get(recipe, ("", ""))
        if opened_by and (why or opened_by == session):
            del self._found[recipe]
            self.note(Miss(name, recipe, is_partial=True, why=why, cue=cue, session=opened_by))

    def note_reason(self, recipe: str | None, why: str) -> None:
        """A miss of a whole recipe was explained; the first explanation is the reason that is shown."""
        for miss in self._kept.values():
            if miss.recipe == recipe and not miss.is_partial and not miss.why:
                miss.why = why

    def latest(self, count: int = MAX_MISSES, name: str | None = None) -> list[Miss]:
        """The last misses, the last one first: of this name, of those that begin so where it ends in `*`, or
        of all."""
        found = (
            miss
            for miss in reversed(self._kept.values())
            if name in (None, miss.name) or (name and name[-1] == "*" and miss.name.startswith(name[:-1]))
        )
        return list(islice(found, count))

    def _put(self, kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        kept[key] = value
        kept.move_to_end(key)
        if len(kept) > self._limit:
            kept.popitem(last=False)
