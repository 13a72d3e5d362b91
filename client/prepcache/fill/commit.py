"""Commits: what was made becomes artifacts, which are written and handed to the daemon.

Invariants:
    1. A batch ends in exactly one outcome: committed, lapsed, or kept here with the reason.
    2. What was not committed is not lost: the outcome carries the samples, as artifacts of this job alone.
    3. What was leased here, for a batch whose lease had lapsed, is given back where it was not committed: its
       caller knows nothing of it, and others would wait for it.

NOTE [ Lapsed leases ]
    A commit under a lapsed lease is refused. What nobody has taken meanwhile (the machine slept, the job was
    stopped) is leased once more, and the same samples are committed. The rest is given up and looked up.
    What others have made is asked from the generation at which the lapsed lease was granted: the job may
    have looked since, at what it did not know to be its own loss.

NOTE [ Staged files ]
    They go with their session, and a daemon that was killed in a commit may have moved them already. So what
    is refused for its file, or in a forgotten session, is written once more. Where the daemon was killed
    after the commit, before it could answer, the items are found as if others had made them.

Not here: in which thread, and how long a job waits for it (background_commit.py).
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prepcache import artifact
from prepcache.digests import DIGEST_BYTES
from prepcache.errors import (
    DaemonError,
    DaemonUnreachable,
    Declined,
    LeaseLapsed,
    PrepcacheError,
    StagedFileRefused,
    StoreError,
    UnknownSession,
)
from prepcache.fill.backlog import BACKLOG
from prepcache.fill.leases import MAX_LOOKS, HeldLease, forsake
from prepcache.fill.overflow import Spilled
from prepcache.index.mapped import open_or_miss
from prepcache.protocol import wire

log = logging.getLogger("prepcache")

AWAY_BYTES = 1 << 30
"""What may wait in files of one process for a daemon that is away; beyond that nothing more is kept."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Batch:
    """Samples to be committed together.

    Args:
        writers: one, or one for each piece of an item that spans artifacts.
        indices: the distinct items in them.
        cover: every digest in the item tables, and the lease that covers it.
        is_offered_again: the job has these samples, and goes on with them whatever becomes of the batch.
    """

    writers: list[artifact.Writer | Spilled]
    indices: list[int]
    cover: dict[bytes, HeldLease | None]
    observed: list[dict[str, Any]] = field(default_factory=list)
    is_offered_again: bool = False

    @property
    def bare(self) -> list[bytes]:
        """The digests that no live lease covers."""
        return [digest for digest, held in self.cover.items() if held is None or held.is_dead]

    @property
    def leases(self) -> list[HeldLease]:
        live = (held for held in self.cover.values() if held is not None and not held.is_dead)
        return list({id(held): held for held in live}.values())

    def since(self, generation: int) -> int:
        """The generation from which to look for what others made: that of the oldest lapsed lease."""
        dead = (held.generation for held in self.cover.values() if held is not None and held.is_dead)
        return min(dead, default=generation)

    @property
    def nbytes(self) -> int:
        return sum(writer.nbytes for writer in self.writers)

    def spill(self, producer: dict[str, Any]) -> list[Spilled]:
        """Its samples as artifacts that only this job has; they leave the memory.

        Raises:
            OSError: the temporary folder takes no more.
            ArtifactError: no artifact holds so many observed inputs.
        """
        kept = [w if isinstance(w, Spilled) else Spilled(w, producer, self.observed) for w in self.writers]
        self.writers = list(kept)
        return kept

    def part(self, rows: Sequence[int], producer: dict[str, Any]) -> Batch:
        """Some items of a batch of one writer, as a batch of their own.

        Args:
            rows: of the item table.

        Raises:
            OSError, ArtifactError: as `spill`.
        """
        (spilled,) = self.spill(producer)
        whole, cover = spilled.artifact, {}
        writer = artifact.Writer(whole.recipe, whole.edition)
        for row in rows:
            digest = bytes(whole.item_digests[row])
            first = int(whole.first_row[row])
            samples = [whole.sample(n) for n in range(first, first + int(whole.row_count[row]))]
            writer.add(digest, samples, float(whole.item_cost[row]))
            cover[digest] = self.cover[digest]
        indices = [self.indices[row] for row in rows]
        return Batch([writer], indices, cover, self.observed, self.is_offered_again)


@dataclass(slots=True)
class Outcome:
    """What became of a batch; `reason` and `kept` where the daemon did not take it, or has not yet.

    Args:
        is_cut_off: the daemon was gone.
        is_retryable: its store had an error, which another commit may not meet.
    """

    batch: Batch
    committed: wire.Committed | None = None
    is_lapsed: bool = False
    is_declined: bool = False
    reason: str = ""
    kept: list[Spilled] = field(default_factory=list)
    is_cut_off: bool = False
    is_retryable: bool = False
    is_left: bool = False

    @property
    def aside(self) -> Batch | None:
        """What the daemon could not be given, for when it answers again, or its store does."""
        if not (self.is_cut_off or self.is_retryable) or not self.kept:
            return None
        batch, cover = self.batch, dict.fromkeys(self.batch.cover)
        batch = Batch(list(self.kept), batch.indices, cover, batch.observed, True)
        _WAITING.add(batch)
        return batch


_WAITING: weakref.WeakSet[Batch] = weakref.WeakSet()
"""What could not be given to a daemon, in this process."""


def waiting_bytes() -> int:
    """How much waits in files of this process for a daemon that is away."""
    files = {id(writer): writer.nbytes for batch in list(_WAITING) for writer in batch.writers}
    return sum(files.values())


def waiting_of(recipe: str) -> list[Batch]:
    """What waits in files of this process, of one recipe: batches of any data set's."""
    return [
        batch
        for batch in list(_WAITING)
        if all(isinstance(one, Spilled) and one.artifact.recipe == recipe for one in batch.writers)
    ]


def wait_too(spilled: Spilled, indices: list[int], like: Batch) -> Batch:
    """What waits in a file, as a batch of another data set, whose distinct items these are."""
    batch = Batch([spilled], indices, dict.fromkeys(like.cover), like.observed, is_offered_again=True)
    _WAITING.add(batch)
    return batch


def _close(staged: list[Any]) -> None:
    while staged:
        staged.pop().close()


class Commits:
    """Commits batches of one recipe, one after the other.

    Args:
        session: as in session.py.
        recipe: the recipe digest.
        producer: the job that makes them, for people.
        edition: of the job; what older editions hold is made again.
    """

    def __init__(self, session: Any, recipe: str, producer: dict[str, Any], edition: int = 0) -> None:
        self.session = session
        self._recipe = recipe
        self._edition = edition
        self.producer = producer

    def commit(self, batch: Batch, generation: int, limit_s: float | None = None) -> list[Outcome]:
        """Commits a batch now; never raises.

        Args:
            limit_s: how long the daemon may be at it, where somebody waits.
        """
        return self._commit(batch, generation, None if limit_s is None else time.monotonic() + limit_s)

    def _commit(self, batch: Batch, generation: int, until: float | None) -> list[Outcome]:
        try:
            return self._try(batch, generation, until)
        except Declined as error:
            return [self.keep(batch, error.message, is_declined=True)]
        except DaemonUnreachable as error:
            return [self.cut_off(batch, error)]
        except (PrepcacheError, OSError) as error:
            outcome = self.keep(batch, str(error))
            outcome.is_retryable = isinstance(error, StoreError)
            return [outcome]
        except Exception as error:
            log.exception("prepcache: internal error in a commit; only this job has its samples")
            return [self.keep(batch, repr(error))]

    def _try(self, batch: Batch, generation: int, until: float | None) -> list[Outcome]:
        before = batch.leases
        is_refused = False
        staged: list[Any] = []
        try:
            for _ in range(2 + len(before)):  # see NOTE [ Lapsed leases ]; they may lapse one by one
                if not staged:
                    self._stage(batch, staged)
                lost = self._lease_bare(batch, generation)
                if lost:
                    return self._without(lost, batch, generation, until)
                try:
                    return [Outcome(batch, committed=self._hand_over(batch, staged, until))]
                except (LeaseLapsed, UnknownSession, StagedFileRefused) as error:
                    if is_refused and isinstance(error, StagedFileRefused):
                        raise
                    is_refused |= isinstance(error, StagedFileRefused)  # see NOTE [ Staged files ]
                    lapsed = [held for held in batch.leases if held.lease.id == error.data.get("lease")]
                    forsake(self.session, lapsed or batch.leases)  # else it may wait for itself
                    if not isinstance(error, LeaseLapsed):
                        _close(staged)
            return [self._give_up(batch)]
        except BaseException:
            forsake(self.session, [held for held in batch.leases if held not in before])
            raise
        finally:
            _close(staged)

    def _hand_over(self, batch: Batch, staged: list[Any], until: float | None) -> wire.Committed:
        leases, began = [held.lease for held in batch.leases], time.monotonic()
        limit_s = None if until is None else max(0.0, until - began)
        committed: wire.Committed = self.session.commit(leases, staged, limit_s=limit_s)
        BACKLOG.note_speed(batch.nbytes, time.monotonic() - began)
        return committed

    def _stage(self, batch: Batch, staged: list[Any]) -> None:
        for writer in batch.writers:
            file = self.session.stage()
            staged.append(file)
            with file.writing():
                writer.write(file.fd, producer=self.producer, observed=batch.observed)

    def _without(self, lost: set[bytes], batch: Batch, generation: int, until: float | None) -> list[Outcome]:
        """Commits what others have not taken of a batch; an item in pieces is taken whole."""
        digests = list(batch.cover)
        rows = [row for row, digest in enumerate(digests) if digest not in lost]
        if not rows or len(batch.indices) < len(digests):
            return [self._give_up(batch)]
        mine = batch.part(rows, self.producer)
        rest = batch.part([row for row, digest in enumerate(digests) if digest in lost], self.producer)
        return [*self._commit(mine, generation, until), self._give_up(rest)]

    def _lease_bare(self, batch: Batch, generation: int) -> set[bytes]:
        """Leases what no lease covers; what of it others have made meanwhile, or are making."""
        bare, generation = batch.bare, batch.since(generation)
        made: set[bytes] = set()
        for start in range(0, len(bare), wire.MAX_ITEMS):
            asked, looks = bare[start : start + wire.MAX_ITEMS], 0
            while asked := [digest for digest in asked if digest not in made]:
                answer = self._ask(asked, generation, batch.nbytes, len(asked))
                if answer.look_again is None:
                    break
                if (looks := looks + 1) > MAX_LOOKS:
                    raise DaemonError("the daemon keeps announcing new artifacts")
                made |= self._made(answer.look_again.artifacts, bare)
                generation = answer.look_again.generation
            if not asked:
                continue
            if answer.is_declined:
                raise Declined(answer.reason or "the cache has no room")
            if answer.lease is not None:
                held = HeldLease(answer.lease, generation)
                batch.cover.update(dict.fromkeys((asked[i] for i in answer.granted), held))
        return set(batch.bare)

    def _made(self, refs: Sequence[wire.ArtifactRef], bare: Sequence[bytes]) -> set[bytes]:
        """What of these another job has made meanwhile."""
        made: set[bytes] = set()
        for ref in refs:
            if ref.edition < self._edition:
                continue
            found = open_or_miss(ref, self.session.path_of, self._recipe)
            if found is not None:
                made.update(map(bytes, found.item_digests))
        return made.intersection(bare)

    def _ask(self, asked: list[bytes], generation: int, nbytes: int, want: int) -> wire.LeaseAnswer:
        digests = np.frombuffer(b"".join(asked), "u1").reshape(-1, DIGEST_BYTES)
        answer: wire.LeaseAnswer = self.session.lease(
            self._recipe, generation, digests, want=want, cost_s=0.0, nbytes=nbytes, wait_s=0.0
        )
        return answer

    def _give_up(self, batch: Batch) -> Outcome:
        """The outcome of a batch whose items others took: what is left of its leases is given back."""
        forsake(self.session, batch.leases)
        return Outcome(batch, is_lapsed=True)

    def cut_off(self, batch: Batch, error: DaemonUnreachable) -> Outcome:
        """The outcome of a batch for which there was no daemon."""
        outcome = self.keep(batch, error.message)
        outcome.is_cut_off = True
        return outcome

    def keep(self, batch: Batch, reason: str = "", *, is_declined: bool = False) -> Outcome:
        """The outcome of a batch that is not to be shared, or cannot be."""
        try:
            return Outcome(batch, reason=reason, is_declined=is_declined, kept=batch.spill(self.producer))
        except Exception as error:  # noqa: BLE001 - a thread that waits for the outcome would wait for ever
            why = repr(error) if not isinstance(error, OSError) else str(error)
            count = len(batch.indices)
            log.warning("prepcache: samples of %d items are dropped and recomputed: %s", count, why)
            return Outcome(batch, reason=reason or why, is_declined=is_declined)
