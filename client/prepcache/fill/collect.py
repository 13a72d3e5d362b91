"""Collecting samples until they are committed: many whole items, or the pieces of one large one.

Invariants:
    1. A sample that no column can hold leaves what was collected before as it was, and so does an interrupt
       that meets one half collected.
    2. A piece is on disk when the next one is begun: an item of any size takes the memory of one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prepcache import artifact
from prepcache.errors import PreprocessError, SampleError
from prepcache.fill.call import Part, weight
from prepcache.fill.commit import Batch
from prepcache.fill.input_guard import SHOWN
from prepcache.fill.leases import HeldLease, Share
from prepcache.fill.overflow import Spilled
from prepcache.fill.pacing import COMMIT_BYTES
from prepcache.fill.recipe_guard import Steady
from prepcache.index.item_index import Array, Catalogue, more_digest, piece_digest

_DOUBLE_EVERY = 16
"""Pieces of one size; then it doubles, so that one commit (64 files) holds an item of 30 GB."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a fill works on.

    Args:
        recipe: with its digest.
        catalogue: what is there; gets what is made.
        todo: the distinct items wanted.
        item_of: the item behind a distinct number, for messages; position_of: where it stands; name_of: what
            people are told of it.
        changed: names in an item that changed since the data set was opened.
        producer: the job that makes the artifacts, for people.
        steady: whether what is made still belongs to the recipe.
        is_expanded: an item gives any number of samples.
    """

    recipe: Any
    catalogue: Catalogue
    todo: Array
    item_of: Callable[[int], Any]
    position_of: Callable[[int], int]
    name_of: Callable[[int], str]
    changed: Callable[[int], list[str]]
    producer: dict[str, Any]
    steady: Steady
    is_expanded: bool = False

    def failure(self, part: Part) -> PreprocessError:
        """The error of a job in which the function raised."""
        error = part.error
        what = f"{type(error).__qualname__}: {error}" if str(error) else type(error).__qualname__
        failed = PreprocessError(
            f"preprocessing {self.name_of(part.index)} failed: {what}",
            index=self.position_of(part.index),
            item=repr(self.item_of(part.index))[:SHOWN],
        )
        failed.__cause__ = error
        return failed

    def refusal(self, index: int, error: SampleError) -> SampleError:
        """The error of a sample that no column can hold, with its item's name."""
        return SampleError(f"{self.name_of(index)}: {error.message}", **error.data)


class Collected:
    """Samples of whole items that go into one artifact."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._begin()

    def _begin(self) -> None:
        self._writer = artifact.Writer(self._task.recipe.digest, self._task.catalogue.edition)
        self._cover: dict[bytes, HeldLease | None] = {}
        self.indices: list[int] = []
        self._leases: set[int] = set()

    @property
    def is_empty(self) -> bool:
        return not self.indices

    @property
    def nbytes(self) -> int:
        return self._writer.nbytes

    @property
    def leases(self) -> int:
        """How many leases a commit would name."""
        return len(self._leases)

    def add(self, part: Part, held: HeldLease | None) -> None:
        """Takes a whole item. An interrupt meanwhile drops what was collected: columns may have half of it.

        Raises:
            SampleError: no column can hold a sample of it.
        """
        digest = self._task.catalogue.distinct.digest(part.index)
        try:
            self._writer.add(digest, part.samples, part.cost_s)
            self._cover[digest] = held
            self._leases.add(id(held))
            self.indices.append(part.index)
        except SampleError:
            raise
        except BaseException:
            self._begin()
            raise

    def batch(self, observed: list[dict[str, Any]], share: Share | None = None) -> Batch:
        """What was collected, and what the function was seen to read beside its items."""
        return Batch([self._writer], self.indices, self._cover, observed, share)


class Cut:
    """An item that expands to more than is handed over at once; see NOTE [ Items that span artifacts ]."""

    def __init__(self, task: Task, index: int) -> None:
        self.cost_s = 0.0
        self.nbytes = 0
        self._task = task
        self._index = index
        self._item = task.catalogue.distinct.digest(index)
        self.pieces: list[Spilled] = []
        self._digests: list[bytes] = []
        self._begin()

    def _begin(self) -> None:
        self._samples: list[Any] = []
        self._sample_bytes = 0
        self._piece_s = 0.0

    def add(self, part: Part, observed: list[dict[str, Any]]) -> None:
        """Takes the next part.

        Args:
            observed: what the function was seen to read so far; the last piece has all of it.

        Raises:
            SampleError: no column can hold a sample of it.
        """
        if self._samples and self._sample_bytes >= COMMIT_BYTES << (len(self.pieces) // _DOUBLE_EVERY):
            self._end_piece(observed, is_last=False)
        self._samples += part.samples
        self._sample_bytes += sum(map(weight, part.samples))
        self._piece_s += part.cost_s
        self.cost_s += part.cost_s
        if part.is_last:
            self._end_piece(observed, is_last=True)

    def _end_piece(self, observed: list[dict[str, Any]], *, is_last: bool) -> None:
        number = len(self.pieces)
        writer = artifact.Writer(self._task.recipe.digest, self._task.catalogue.edition)
        digests = [piece_digest(self._item, number)]
        writer.add(digests[0], self._samples, self._piece_s)
        if not is_last:
            digests.append(more_digest(self._item, number))
            writer.add(digests[1], [], 0.0)
        self.nbytes += writer.nbytes
        self._digests += digests
        self.pieces.append(Spilled(writer, self._task.producer, observed))
        self._begin()

    def batch(self, share: Share, observed: list[dict[str, Any]]) -> Batch:
        """Its pieces, to be committed together."""
        cover = dict.fromkeys(self._digests, None) | {self._item: share.lease_of(self._index)}
        return Batch(list(self.pieces), [self._index], cover, observed, share)
