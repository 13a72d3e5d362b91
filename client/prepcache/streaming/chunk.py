"""A stretch of a stream: items that were read together, as a data set of their own.

Its recipe, its function and what the daemon has of that recipe are those of the first stretch, which has no
items: that one opens the stream.

Invariants:
    1. What is said of the function, or of the daemon, is said once for the stream, not for each stretch.
    2. Samples that are made on access and neither committed yet nor in files of this job are those of
       `MAX_BEHIND` stretches at most.
    3. An executor is used by the process that it was given in: its threads and pipes are not in others.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from prepcache.daemon.client import Client
from prepcache.dataset import CachedDataset
from prepcache.fill.input_guard import Originals
from prepcache.fill.on_access import Keeper
from prepcache.fill.recipe_guard import Steady, line
from prepcache.fill.verify import put_away, verify
from prepcache.fill.workers import Crew
from prepcache.index.artifact_set import Supply
from prepcache.index.item_index import Array, Distinct
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import Recipe
from prepcache.keys.snapshot import Stamps
from prepcache.progress import Flow, Once
from prepcache.reasons import stream_line
from prepcache.report import Tally
from prepcache.streaming.recipe_artifacts import Stock

MAX_BEHIND = 4
"""Stretches whose samples, made on access, wait in memory to be committed; more are not kept."""
_STAYS = ("_keeper", "_view", "_executor", "_flow", "_behind")


class Stretch(CachedDataset[Any]):
    """The first of a stream, without items; `of` gives the others.

    Args:
        said: what was said of the stream.
        preprocess, config, options: as `CachedDataset` takes them.
    """

    _is_part = True
    _follows_mode = False

    def __init__(
        self,
        said: Once,
        preprocess: Callable[..., Any],
        config: Mapping[str, Any] | None,
        **options: Any,
    ) -> None:
        self._said = said
        self._opened_in = os.getpid()
        self._verified = options.get("verify_fraction", 0.0)
        self._flow: Flow | None = None
        self._behind: deque[Keeper] = deque()
        self.is_speaker = True
        self.noted: Array | None = None
        super().__init__([], preprocess, config, **options)

    def _supply_of(self, distinct: Distinct, client: Client, root: Any, trust: Any) -> Supply:
        return Stock(self._recipe, client, is_expanded=self._is_expanded, root=root, trust=trust)

    def _opening_line(self, root: Any) -> str:
        said, reasons = stream_line(self.name, self._recipe.digest, self._supply)
        self._tally.why.extend(reasons)
        return said

    def _prepare(self) -> None:
        if self._count:
            super()._prepare()

    @property
    def stock(self) -> Stock:
        """What the daemon has of the recipe."""
        assert isinstance(self._supply, Stock)
        return self._supply

    def beside(self, recipe: Recipe, observer: Observer | None) -> Stretch:
        """The first stretch of the items that need another recipe."""
        job = replace(self._job, observer=observer, of=secrets.token_hex(8))
        return self._copy(_recipe=recipe, _steady=Steady(recipe), _job=job, _supply=self.stock.beside(recipe))

    def of(self, items: Sequence[Any], numbers: Sequence[int], digests: Array, stamps: Stamps) -> Stretch:
        """The stretch of some items.

        Args:
            numbers: theirs in the stream.
            digests, stamps: as they were read.
        """
        distinct = Distinct(digests)
        lot = self.stock.lot(distinct)
        return self._copy(
            items=items, _count=len(items), _stamps=stamps, _supply=lot,
            _originals=Originals(items, distinct, stamps, numbers), _tally=Tally(distinct, lot.catalogue),
        )  # fmt: skip

    def _copy(self, **changed: Any) -> Stretch:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, _keeper=None, _view=None, **changed)
        return copy

    def begin_epoch(self, *, is_speaker: bool, others: Callable[[], Sequence[int]]) -> None:
        """Another epoch begins, in this process.

        Args:
            is_speaker: other processes, which read other shares, say nothing.
            others: tells what they have so far; see `Flow`.
        """
        self.stock.claim()
        self.is_speaker = is_speaker
        self._flow = Flow(self.name, self._progress if is_speaker else False, self._tell, others)

    @property
    def others(self) -> Callable[[], Sequence[int]]:
        """What the other workers have of the epoch."""
        assert self._flow is not None
        return self._flow.others

    def begin(self) -> None:
        """Looks its items up, and prepares what is missing.

        Raises:
            PreprocessError, SampleError, VerifyError: as at the opening of a `CachedDataset`.
        """
        self._supply.found(*self._tally.note_hits())
        if self._verified:
            away = partial(put_away, self._supply)
            verify(self._job, self._supply.catalogue, self._originals, self._verified, random.Random(), away)
        if not self.lazy and not self._is_adrift():
            self._prepare()
        self._originals.end_opening()

    def _is_adrift(self) -> bool:
        """Whether samples that were made now would not belong to the recipe; then they are made on access."""
        if self._is_expanded or not len(self._supply.catalogue.missing) or not self._may_fill:
            return False
        drifted = self._steady.changed(is_due=True)
        if drifted:
            self._say(f"{self.name}: {line(drifted)}", "drifted")
        return bool(drifted)

    def given(self, items: Sequence[int]) -> Iterator[Any]:
        """The samples of its items at these positions."""
        yield from self.samples_of(items)
        if (keeper := self._present_keeper) is not None and self._supply.session.is_away:
            keeper.flush(time.monotonic())  # into files of this job, where later stretches find it

    def _say(self, line: str, topic: str = "") -> None:
        if self.is_speaker and (not topic or self._said.is_news(topic)):
            super()._say(line)

    def _watcher(self, total: int, there: int) -> Flow:
        assert self._flow is not None
        return self._flow.stretch(total, there)

    def _crew(self) -> Crew:
        if os.getpid() != self._opened_in:
            self._executor = None
        return super()._crew()

    def _wanting_keeper(self) -> Keeper | None:
        if self._keeper is None:
            keepers = [one for one in self._behind if one.pid == os.getpid() and one.is_collecting]
            self._behind.clear()
            self._behind.extend(keepers)
            if len(keepers) >= MAX_BEHIND:
                return None
        keeper = super()._wanting_keeper()
        if keeper is not None and keeper not in self._behind:
            self._behind.append(keeper)
        return keeper

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _STAYS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(dict.fromkeys(_STAYS), _behind=deque())
        self.__dict__.update(state)
