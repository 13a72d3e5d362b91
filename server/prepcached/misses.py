"""Misses: the recipes that jobs asked for last and that had nothing, by name.

Kept in memory, for `prepcache explain --name`: after a restart the newest recipe of a name stands in.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_NAMES = 1024


class Misses:
    """The last miss of each name, for the names that missed last. For the event loop's thread."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._by_name: OrderedDict[str, str] = OrderedDict()

    def note(self, name: str, recipe: str) -> None:
        """A job asked for this recipe, and nothing was there."""
        self._by_name[name] = recipe
        self._by_name.move_to_end(name)
        if len(self._by_name) > self._limit:
            self._by_name.popitem(last=False)

    def last(self, name: str | None = None) -> str | None:
        """The recipe that missed last: of this name, or of any."""
        if name is not None:
            return self._by_name.get(name)
        return next(reversed(self._by_name.values()), None)
