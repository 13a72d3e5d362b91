"""The stock of a stream: what the daemon has of a recipe, kept mapped for all that the stream will read.

Invariants:
    1. Every process that reads the stream holds what it maps: it asks for it once in its own session.
    2. What one stretch learns of the daemon (artifacts, the generation, that it is gone) all later ones know.
    3. A daemon that was not there, or does not know the recipe any more, is told of it when it answers.

Not here: how items are found (recipe_index.py), the items of a stretch (chunk.py).
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from prepcache.daemon.client import Client
from prepcache.digests import DIGEST_BYTES
from prepcache.fill.background_commit import Adopter
from prepcache.fill.collect import Task
from prepcache.fill.filler import Filled, Watcher
from prepcache.fill.workers import Crew
from prepcache.index.artifact_set import Supply
from prepcache.index.item_index import Distinct
from prepcache.keys.recipes import Recipe
from prepcache.protocol import wire
from prepcache.settings import Mode
from prepcache.streaming.recipe_index import Shelf, Shelved


class Stock(Supply):
    """What there is of a recipe.

    Args:
        root, trust: as given to the data set, for observed inputs.
    """

    def __init__(self, recipe: Recipe, client: Client, *, is_expanded: bool, root: Any, trust: Any) -> None:
        nothing = Distinct(np.empty((0, DIGEST_BYTES), "u1"))
        self.is_known = False
        super().__init__(recipe, nothing, client, is_expanded=is_expanded, root=root, trust=trust)
        self._is_expanded = is_expanded
        self._commit_bytes = 0

    def _catalogue_of(self, distinct: Distinct, is_expanded: bool) -> Any:
        return Shelf(self._opener)

    def _connect(self) -> None:
        super()._connect()
        self._claiming = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_claiming"}

    def after_fork(self) -> None:
        super().after_fork()
        self._claiming = threading.Lock()

    def beside(self, recipe: Recipe) -> Stock:
        """That of another recipe, of the same items' functions: opened."""
        other = Stock(
            recipe, self.client, is_expanded=self._is_expanded, root=self._root, trust=self._trust
        )  # fmt: skip
        other.open()
        return other

    def claim(self) -> None:
        """In a process that got it from another: takes its own holds, and maps what is not mapped."""
        with self._claiming:
            if not self.is_owner:
                self.owner = os.getpid()
                self._look(0)

    def _count_missing(self) -> int:
        """None: each stretch finds out what it lacks, and fills it up."""
        return 0

    def commit_bytes(self) -> int:
        """As `Supply`'s, asked for once."""
        if self._commit_bytes:
            return self._commit_bytes
        commit_bytes = super().commit_bytes()
        if self.mode.is_writing and not self.session.is_gone:
            self._commit_bytes = commit_bytes
        return commit_bytes

    def _resolve(self, generation: int) -> wire.Resolved | None:
        resolved = super()._resolve(generation)
        self.is_known = resolved is not None
        return resolved

    def lot(self, distinct: Distinct) -> Lot:
        """What there is of some items."""
        if not self.is_known and self.mode is not Mode.OFF and not self.session.is_gone:
            self._look(0)
        return Lot(self, distinct, is_expanded=self._is_expanded)


class Lot(Supply):
    """The part of a stock that one stretch asks for."""

    def __init__(self, stock: Stock, distinct: Distinct, *, is_expanded: bool) -> None:
        self._stock = stock
        for name in ("recipe", "client", "mode", "session", "has_any", "is_damaged", "owner", "_opener"):
            setattr(self, name, getattr(stock, name))
        self.filling = threading.Lock()
        self.catalogue = Shelved(distinct, stock.catalogue, is_expanded=is_expanded)

    @property
    def generation(self) -> int:
        """The stock's."""
        return self._stock.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self._stock.generation = generation

    @property
    def reason(self) -> str:
        """The stock's."""
        return self._stock.reason

    @reason.setter
    def reason(self, reason: str) -> None:
        self._stock.reason = reason

    def fill(self, crew: Crew, watcher: Watcher, task: Task, adopter: Adopter) -> Filled:
        filled = super().fill(crew, watcher, task, adopter)
        self._stock.is_known = self._stock.is_known and (not filled.reason or filled.is_declined)
        return filled

    def lease(self, *given: Any, **named: Any) -> wire.LeaseAnswer:
        return self._stock.lease(*given, **named)

    def look(self, *, not_within_s: float = 0.0) -> bool:
        self._stock.look(not_within_s=not_within_s)
        return bool(len(self.catalogue.place()))

    def touch(self) -> None:
        self._stock.touch()

    def commit_bytes(self) -> int:
        return self._stock.commit_bytes()
