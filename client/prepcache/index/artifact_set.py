"""The artifacts of a recipe: what the daemon has, kept mapped and held.

Invariants:
    1. Trouble with the daemon becomes a `reason` here, never an exception.
    2. Holds belong to the process that opened the data set, and to each process that reads a stream
       (`claim`). A DataLoader worker that inherited a data set takes none. A hold is given up when no data
       set of the process maps the artifact any more.
    3. An artifact whose observed inputs changed is not mapped, and the reason names the input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from prepcache import forks
from prepcache.daemon.launcher import BaseClient
from prepcache.daemon.session import Session
from prepcache.errors import DaemonUnreachable, Declined, PrepcacheError, UnknownRecipe
from prepcache.index.recipe_index import Observed, RecipeIndex, Verdicts, open_or_miss
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.recipes import Recipe
from prepcache.protocol import wire
from prepcache.settings import Mode

log = logging.getLogger("prepcache")

TOUCH_S = 60.0  # how often the daemon is told that the artifacts are in use; holds weaken after 30 minutes

_SETS: forks.Living[ArtifactSet] = forks.Living()  # those of this process


class ArtifactSet(RecipeIndex):
    """What the cache has of a recipe. `root` and `trust` are as given to the data set, for observed inputs.

    Attributes:
        owner: the process that holds the artifacts: the one that opened the data set, or reads the stream.
        filling: held by the thread that fills it up.
        is_used: a sample was read since the daemon was told that the artifacts are in use.
        has_any: the daemon has named an artifact; has_mapped: one that counts was there.
        changed_inputs: observed inputs that are not what they were, and what became of them.
        is_known: the daemon answered the last look, so that it knows the recipe; is_full: it had no room.
        reason: why samples are not stored; why, why_cue: why items are missing, which the next lease says.
    """

    _stays = (*RecipeIndex._stays, "session", "filling", "_claiming")

    def __init__(
        self, recipe: Recipe, client: BaseClient, *, root: Any, trust: Any, keeps_all: bool = False
    ) -> None:
        super().__init__(keeps_all=keeps_all)
        self.recipe = recipe
        self.client = client
        self.generation = 0
        self.reason = ""
        self.why = self.why_cue = ""
        self.has_any = self.has_lost = self.is_known = self.is_full = False
        self._refused: PrepcacheError | None = None  # why the recipe itself was not taken
        self._root = None if root is None else os.fspath(root)
        self._trust = trust
        self._budget_bytes: int | None = None
        self.owner = os.getpid()
        self._leaving: set[str] = set()
        if client.mode is Mode.REFRESH:  # it looks at no edition that the first answer names
            self.edition, self._is_refreshing = 1, True
        self._connect()

    def _connect(self) -> None:
        self.mode = self.client.mode
        self.session = Session.current(self.client)
        self.has_mapped = False
        self.changed_inputs: tuple[tuple[str, str], ...] = ()
        self.drawn: set[str] = set()
        self.filling = threading.Lock()
        self._claiming = forks.ForkLock()
        self.is_used = False
        self._told_at = time.monotonic()
        self._looked_at = 0.0
        _SETS.add(self)
        forks.note(self)
        self.session.listen(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._connect()

    @property
    def trouble(self) -> str:
        """Why samples are not stored, or ""."""
        return self.reason or (self.client.budget.warned if self.session.is_gone else "")

    @property
    def is_owner(self) -> bool:
        return self.owner == os.getpid()

    def _open(self, ref: wire.ArtifactRef, verdicts: Verdicts) -> Any | None:
        for chunk in ref.observed:
            if (rows := self.observed.get(chunk)) is None:
                return None
            if chunk not in verdicts:
                from prepcache.keys.observation.inputs import Roots, still_true

                roots = Roots.of(self.recipe, self._root)
                verdicts[chunk] = still_true(rows, user_stat_cache(), roots, self._trust)
            if (changed := verdicts[chunk]) is not None:
                self.changed_inputs = tuple(dict.fromkeys((*self.changed_inputs, changed)))
                return None
            self.drawn = self.drawn | wire.draws_in(rows)
        mapped = open_or_miss(ref, self.session.path_of, self.recipe.digest)
        self.has_mapped |= mapped is not None
        return mapped

    def claim(self) -> None:
        """In a process that got it from another and reads by itself: takes its own holds."""
        with self._claiming:
            if not self.is_owner:
                self.owner = os.getpid()
                self.look_from(0)

    def look(self, *, not_within_s: float = 0.0) -> bool:
        """Takes in what has been committed since; whether anything was found."""
        now = time.monotonic()
        if now - self._looked_at < not_within_s:
            return False
        self._looked_at = now
        return bool(self.look_from(self.generation))

    def look_from(self, generation: int) -> bool | None:
        """Takes in what is newer; whether anything missing was found, None where no daemon could be asked."""
        with self.session.looking():
            try:
                resolved = self.session.resolve(
                    self.recipe, generation, hold=self.is_owner, register=self.mode.is_writing
                )
            except PrepcacheError as error:
                self._refused, self.is_known, self.is_full = error, False, isinstance(error, Declined)
                self.reason = error.message
                return None
            self._refused, self.is_known, self.is_full = None, True, False
            try:
                return self.absorb(resolved)
            except DaemonUnreachable as error:
                self.reason = error.message
                return None

    def lease(self, *given: Any, **named: Any) -> wire.LeaseAnswer:
        """As the session's, with newer artifacts taken in; registers the recipe if the last look failed."""
        try:
            answer = self._lease(*given, **named)
        except UnknownRecipe:
            self.look()
            if self._refused is not None:
                raise self._refused from None
            answer = self._lease(*given, **named)
        self.why = self.why_cue = ""
        return answer

    def _lease(self, *given: Any, wait_s: float, **named: Any) -> wire.LeaseAnswer:
        with contextlib.nullcontext() if wait_s else self.session.looking():
            answer = self.session.lease(*given, **named, wait_s=wait_s, why=self.why, cue=self.why_cue)
            if answer.look_again is not None:
                self.absorb(answer.look_again)
        return answer

    def absorb(self, resolved: wire.Resolved) -> bool:
        found = self.take_in(resolved.artifacts, resolved.observed, is_complete=resolved.is_complete)
        self.generation = resolved.generation
        self.has_any |= bool(resolved.artifacts)
        self._hold(resolved.artifacts)
        return found > 0

    def absorb_own(self, committed: wire.Committed, observed: Observed) -> None:
        """Takes in what this job has just committed. What cannot be fetched now, a later look finds."""
        with contextlib.suppress(DaemonUnreachable):
            self.take_in([committed.artifact], observed, is_own=True)
            if committed.generation == self.generation + 1:
                self.generation = committed.generation
            self._hold([committed.artifact])

    def _hold(self, answered: Sequence[wire.ArtifactRef] = ()) -> None:
        """Gives up holds on artifacts that no data set of this process maps."""
        if self.is_owner:
            named = {str(ref.digest) for ref in answered}
            self.session.heartbeat.hold(named, lambda: {digest for one in _SETS for digest in one.digests})

    def on_reopened(self) -> None:
        """Takes holds again, and lets go what is there no more."""
        if self.is_owner and self.look_from(0) is not None:
            self.on_removed(self.digests - self.session.heartbeat.held)

    def on_removed(self, digests: set[str]) -> None:
        """Lets go what was merged, purged or evicted, once the daemon has said what it was merged into."""
        self._leaving |= digests & self.digests
        if (leaving := set(self._leaving)) and self.look_from(self.generation) is not None:
            self._leaving -= leaving
            self.has_lost |= self.lose(leaving) > 0
            self._hold()

    def on_beat(self) -> None:
        now = time.monotonic()
        if self.is_used and now - self._told_at > TOUCH_S:
            self.is_used, self._told_at = False, now
            self.session.heartbeat.note_used(ref.digest for ref in self.refs)

    def budget_bytes(self) -> int:
        if self._budget_bytes is None and self.mode.is_writing and not self.session.is_gone:
            with contextlib.suppress(PrepcacheError):
                budget = self.session.limits().get("effective_limit_bytes")
                self._budget_bytes = budget if isinstance(budget, int) else 0
        return self._budget_bytes or 0

    def after_fork_here(self) -> None:
        """Forked workers read the maps and hold nothing: to start them is to use them."""
        self.is_used = True

    def after_fork(self) -> None:
        super().after_fork()
        self.filling = threading.Lock()
