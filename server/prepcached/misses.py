"""Misses: the recipes that jobs asked for last and that had nothing, or not all of it.

Kept in memory, for `prepcache explain`, with what was said of each when it was asked first: later the store
has other entries, and would give another reason than the job was given. After a restart the newest recipe of
a name stands in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from prepcache.protocol import inspection

MAX_MISSES = 1024
MAX_TOLD = 64
"""Explanations that are kept; one of `KEPT_DIFFERENCES` may take 256 kB, and takes 2 as a rule."""
KEPT_DIFFERENCES = 64


@dataclass(frozen=True, slots=True)
class Miss:
    """A job asked for this recipe; `is_partial`: it had entries, and the job went on to make more, and said
    `why`, and which kind of input (`cue`) that is."""

    recipe: str
    is_partial: bool = False
    why: str = ""
    cue: str = ""
    session: str = field(default="", compare=False)


class Misses:
    """The last misses: one for each name, recipe, and whether it was partial. For the event loop's thread."""

    def __init__(self, limit: int = MAX_MISSES) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str, str, bool], Miss] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], inspection.Explanation] = OrderedDict()
        self._asked_again: set[tuple[str, str]] = set()  # names and recipes in `_told`
        self._found: OrderedDict[tuple[str, str], str] = OrderedDict()

    def note(self, name: str, miss: Miss) -> None:
        """A job missed; or one that did looks again before anything was made: the two are alike."""
        of = name, miss.recipe
        whole = self._kept.get((*of, False))
        if whole is not None and whole.session != miss.session and self.last(name) != miss:
            self._told.pop(of, None)
        self._asked_again.add(of)
        self._asked_again.intersection_update(self._told)
        _put(self._kept, (*of, miss.is_partial), miss, self._limit)

    def note_found(self, session: str, name: str, recipe: str) -> None:
        """A session has opened a recipe that has entries; whether these are all, it finds out."""
        _put(self._found, (session, recipe), name, self._limit)

    def note_leasing(self, session: str, recipe: str, why: str = "", cue: str = "") -> None:
        """A session wants to make items: of what it has opened, something was missing.

        A DataLoader worker has a session of its own, and tells the `why` of the job that opened the recipe.
        """
        if (session, recipe) not in self._found and why:
            session = next((by for by, of in reversed(self._found) if of == recipe), session)
        name = self._found.pop((session, recipe), None)
        if name is not None:
            self.note(name, Miss(recipe, is_partial=True, why=why, cue=cue, session=session))

    def latest(self, count: int) -> list[tuple[str, Miss]]:
        """The last misses and their names, the last one first."""
        return list(islice(self._latest(None), count))

    def last(self, name: str | None = None) -> Miss | None:
        """What missed last: of this name, of those that begin so where it ends in `*`, or of any."""
        return next((miss for _, miss in self._latest(name)), None)

    def as_told(self, now: inspection.Explanation) -> inspection.Explanation:
        """What was said of a miss when it was asked for first; else what is to be said now, which is kept."""
        of = now.name, now.recipe or ""
        if (*of, False) not in self._kept:
            return now
        told = self._told.get(of)
        if told is not None and (now.entries or of not in self._asked_again):
            return replace(told, entries=now.entries)
        cut = max(0, len(now.differences) - KEPT_DIFFERENCES)
        kept = replace(now, differences=now.differences[:KEPT_DIFFERENCES], more=now.more + cut)
        _put(self._told, of, kept, MAX_TOLD)
        self._asked_again.discard(of)
        return now

    def told(self, miss: Miss) -> inspection.Explanation | None:
        """What was said of a miss, if it was asked for."""
        return next((told for (_, recipe), told in self._told.items() if recipe == miss.recipe), None)

    def _latest(self, name: str | None) -> Iterator[tuple[str, Miss]]:
        """Misses and their names, the last one first."""
        for (of, _, _), miss in reversed(self._kept.items()):
            if name is None or of == name or (name.endswith("*") and of.startswith(name[:-1])):
                yield of, miss


def _put(kept: OrderedDict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """As the last one; the first one goes where there are more than `limit`."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > limit:
        kept.popitem(last=False)
