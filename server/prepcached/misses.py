"""Misses: the recipes that jobs asked for last and that had nothing, or not all of it, by name.

Kept in memory, for `prepcache explain`, with what was said of each when it was asked first: later the store
has other entries, and would give another reason than the job was given. After a restart the newest recipe of
a name stands in.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from prepcache.protocol import inspection

MAX_NAMES = 1024
MAX_TOLD = 64
"""Explanations that are kept; one of `KEPT_DIFFERENCES` may take 256 kB, and takes 2 as a rule."""
KEPT_DIFFERENCES = 64


@dataclass(frozen=True, slots=True)
class Miss:
    """A job asked for this recipe; `is_partial`: it had entries, and the job went on to make more, and said
    `why`."""

    recipe: str
    is_partial: bool = False
    why: str = ""


class Misses:
    """The last miss of each name, for the names that missed last. For the event loop's thread."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._by_name: OrderedDict[str, Miss] = OrderedDict()
        self._told: OrderedDict[str, inspection.Explanation] = OrderedDict()
        self._asked_again: set[str] = set()  # names in `_told`
        self._found: OrderedDict[tuple[str, str], str] = OrderedDict()

    def note(self, name: str, miss: Miss) -> None:
        """A job missed; or one that did looks again before anything was made: the two are alike."""
        if self._by_name.get(name) != miss:
            self._told.pop(name, None)
        self._asked_again.add(name)
        self._asked_again.intersection_update(self._told)
        _put(self._by_name, name, miss, self._limit)

    def note_found(self, session: str, name: str, recipe: str) -> None:
        """A session has opened a recipe that has entries; whether these are all, it finds out."""
        _put(self._found, (session, recipe), name, self._limit)

    def note_leasing(self, session: str, recipe: str, why: str = "") -> None:
        """A session wants to make items: of what it has opened, something was missing."""
        name = self._found.pop((session, recipe), None)
        if name is not None:
            self.note(name, Miss(recipe, is_partial=True, why=why))

    def last(self, name: str | None = None) -> Miss | None:
        """What missed last: of this name, of those that begin so where it ends in `*`, or of any."""
        if name is not None and not name.endswith("*"):
            return self._by_name.get(name)
        prefix = (name or "*")[:-1]
        return next((miss for of, miss in reversed(self._by_name.items()) if of.startswith(prefix)), None)

    def as_told(self, now: inspection.Explanation) -> inspection.Explanation:
        """What was said of a miss when it was asked for first; else what is to be said now, which is kept."""
        miss = self._by_name.get(now.name)
        if miss is None or miss.recipe != now.recipe or miss.is_partial:
            return now
        told = self._told.get(now.name)
        if told is not None and (now.entries or now.name not in self._asked_again):
            return replace(told, entries=now.entries)
        cut = max(0, len(now.differences) - KEPT_DIFFERENCES)
        kept = replace(now, differences=now.differences[:KEPT_DIFFERENCES], more=now.more + cut)
        _put(self._told, now.name, kept, MAX_TOLD)
        self._asked_again.discard(now.name)
        return now


def _put(kept: OrderedDict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """As the last one; the first one goes where there are more than `limit`."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > limit:
        kept.popitem(last=False)
