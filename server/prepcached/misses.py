"""Misses: the recipes that jobs asked for last and that had nothing, or not all of it.

In memory; after a restart the newest recipe of a name stands in. For the event loop's thread.
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
    """A job asked for a recipe that had nothing or, `is_partial`, not all.

    Args:
        why: the reason on one line: what the job said, or the first explanation.
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
        self._put(self._found, recipe, (session, name))

    def note_leasing(self, session: str, recipe: str, why: str = "", cue: str = "") -> None:
        """A session makes items of what it, or the job whose worker it is, has opened: some were missing."""
        opened_by, name = self._found.get(recipe, ("", ""))
        if opened_by and (why or opened_by == session):
            del self._found[recipe]
            self.note(Miss(name, recipe, is_partial=True, why=why, cue=cue, session=opened_by))

    def note_reason(self, recipe: str | None, why: str) -> None:
        """The first explanation of a miss of a whole recipe is the reason that is shown."""
        for miss in self._kept.values():
            if miss.recipe == recipe and not miss.is_partial and not miss.why:
                miss.why = why

    def latest(self, count: int = MAX_MISSES, name: str | None = None) -> list[Miss]:
        """The last misses, the last one first; of a name, or a prefix that ends in `*`."""
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
