"""Commits: what was made becomes artifacts, which are written and handed to the daemon.

Invariants:
    1. A batch ends in exactly one outcome, or in two parts that do.
    2. What was leased here, for a batch whose lease had lapsed, is given back where it was not committed: its
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

Not here: in which thread, and what becomes of a batch that is not committed (background_commit.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

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
from prepcache.fill.item_locks import ItemLocks
from prepcache.fill.leases import MAX_LOOKS, HeldLease, forsake
from prepcache.fill.overflow import Spilled
from prepcache.index.recipe_index import open_or_miss
from prepcache.protocol import wire

if TYPE_CHECKING:
    from prepcache.fill.leases import Share

log = logging.getLogger("prepcache")


class Outcome(Enum):
    """What became of a batch."""

    COMMITTED = auto()
    LAPSED = auto()
    """Others have made its items, or are making them."""
    DECLINED = auto()
    """There is no room."""
    REFUSED = auto()
    """It would be refused again."""
    FAILED = auto()
    """The store had an error, which another commit may not meet."""
    AWAY = auto()
    """There is no daemon."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Batch:
    """Samples to be committed together.

    Args:
        writers: one, or one for each piece of an item that spans artifacts.
        indices: the distinct items in them.
        cover: every digest in the item tables, and the lease that covers it.
        share: where the items are settled; None where they are.
        locks: under which they were made; kept as long as the batch is.
        on_end: called when it has a last outcome, or its samples are in files of this job.
    """

    writers: list[artifact.Writer | Spilled]
    indices: list[int]
    cover: dict[bytes, HeldLease | None]
    observed: list[dict[str, Any]] = field(default_factory=list)
    share: Share | None = None
    on_end: Callable[[Sequence[int]], None] | None = None
    has_failed: bool = False
    locks: ItemLocks | None = None

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

    @property
    def files(self) -> list[Spilled] | None:
        """The files of this job that hold its samples; None while they are in memory."""
        files = [writer for writer in self.writers if isinstance(writer, Spilled)]
        return files if len(files) == len(self.writers) else None

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
        return Batch(
            [writer], indices, cover, self.observed, self.share, self.on_end, self.has_failed, self.locks
        )


@dataclass(slots=True)
class Result:
    """A batch, and what became of it; `reason` where it was not committed."""

    batch: Batch
    outcome: Outcome
    reason: str = ""
    committed: wire.Committed | None = None


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

    def commit(self, batch: Batch, generation: int, limit_s: float | None = None) -> list[Result]:
        """Commits a batch now; never raises.

        Args:
            limit_s: how long the daemon may be at it, where somebody waits.
        """
        return self._commit(batch, generation, None if limit_s is None else time.monotonic() + limit_s)

    def _commit(self, batch: Batch, generation: int, until: float | None) -> list[Result]:
        try:
            return self._try(batch, generation, until)
        except Declined as error:
            return [Result(batch, Outcome.DECLINED, error.message)]
        except DaemonUnreachable as error:
            return [Result(batch, Outcome.AWAY, error.message)]
        except (PrepcacheError, OSError) as error:
            outcome = Outcome.FAILED if isinstance(error, StoreError) else Outcome.REFUSED
            return [Result(batch, outcome, str(error))]
        except Exception as error:
            log.exception("prepcache: internal error in a commit; only this job has its samples")
            return [Result(batch, Outcome.REFUSED, repr(error))]

    def _try(self, batch: Batch, generation: int, until: float | None) -> list[Result]:
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
                    committed = self._hand_over(batch, staged, until)
                    return [Result(batch, Outcome.COMMITTED, committed=committed)]
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
        limit_s = None if until is None else max(0.0, until - time.monotonic())
        leases = [held.lease for held in batch.leases]
        committed: wire.Committed = self.session.commit(leases, staged, limit_s=limit_s)
        return committed

    def _stage(self, batch: Batch, staged: list[Any]) -> None:
        for writer in batch.writers:
            file = self.session.stage()
            staged.append(file)
            with file.writing():
                writer.write(file.fd, producer=self.producer, observed=batch.observed)

    def _without(self, lost: set[bytes], batch: Batch, generation: int, until: float | None) -> list[Result]:
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

    def _give_up(self, batch: Batch) -> Result:
        """The result of a batch whose items others took: what is left of its leases is given back."""
        forsake(self.session, batch.leases)
        return Result(batch, Outcome.LAPSED)
