"""The recipe index: the mapped artifacts of one recipe, and where the items of any digest lie in them.

Invariant: a slot's number is never given to another artifact.

Locking: `lock` guards every change here and in the catalogues.

NOTE [ Editions ]
    A job that refreshes writes artifacts of an edition above all that it found, and looks at no lower one.
    Every job that opens its data set later takes an item from the highest edition that has it; a running
    job keeps what it has mapped. The daemon merges within an edition only, and a commit removes the artifacts
    of lower editions that share an item with it. Who cannot map an artifact (it is bad, it has just gone, or
    an input that it observed changed) does not know what it replaces, and looks at no lower edition.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache import artifact
from prepcache.artifact.columns import Array
from prepcache.errors import ArtifactError, DaemonUnreachable, NotFound, PrepcacheError
from prepcache.forks import Living
from prepcache.protocol.wire import ArtifactRef, Row

if TYPE_CHECKING:
    from prepcache.fill.pending import LocalFile
    from prepcache.index.item_index import Catalogue

log = logging.getLogger("prepcache")

Observed = Mapping[str, Sequence[Row]]  # chunks of observed inputs by name
Verdicts = dict[str, tuple[str, str] | None]  # of each chunk, the first input that changed, and to what


@dataclass(frozen=True, slots=True)
class Slot:
    """A mapped artifact: shared, with its reference, or a file of its own, which only this job has."""

    artifact: Any
    ref: ArtifactRef | None
    local: LocalFile | None = None

    def address(self) -> Any:
        if self.local is not None:
            return self.local.address
        return self.ref, self.artifact.path, self.artifact.recipe


class RecipeIndex:
    """What is mapped of a recipe; `ArtifactSet` is one.

    Where it `keeps_all`, artifacts stay mapped though no catalogue has an item in them: the next chunk of a
    stream may. A chunk keeps what it has found, also where that is let go.
    """

    _stays: tuple[str, ...] = (
        "lock", "slots", "catalogues", "numbers", "_own_verdicts", "_sorted", "_is_sorted"
    )  # fmt: skip
    """What another process is not sent."""

    def __init__(self, *, keeps_all: bool = False) -> None:
        self.keeps_all = keeps_all
        self.edition = 0  # the lowest that this job looks at, and the one that it writes
        self.observed: dict[str, Sequence[Row]] = {}
        self.slots: dict[int, Slot] = {}  # the shared artifacts that are mapped, by number
        self._is_refreshing = False
        self._number_of: dict[str, int] = {}
        """By digest. Written last: a child that was forked meanwhile maps once more what it lacks."""
        self._set_up(0)

    def _set_up(self, first: int) -> None:
        self.lock = threading.RLock()
        self.numbers = itertools.count(first)
        self._own_verdicts: Verdicts = {}
        self.catalogues: Living[Catalogue] = Living()
        self._sorted: tuple[Array, Array, Array] = np.empty(0, "<u8"), np.empty(0, "i8"), np.empty(0, "i4")
        """Of items: the first 8 bytes of digests, in order, slots' numbers, rows in item tables."""
        self._is_sorted: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        kept = {number: slot.address() for number, slot in list(self.slots.items())}
        sent = {name: value for name, value in self.__dict__.items() if name not in self._stays}
        return sent | {"kept": kept, "first": next(self.numbers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept, first = state.pop("kept"), state.pop("first")
        self.__dict__.update(state)
        self._set_up(first)
        self.slots = reopened(kept)
        self._number_of = {digest: n for digest, n in self._number_of.items() if n in self.slots}

    def _open(self, ref: ArtifactRef, verdicts: Verdicts) -> Any | None:
        raise NotImplementedError

    def after_fork(self) -> None:
        self.lock = threading.RLock()

    @property
    def digests(self) -> set[str]:
        return set(self._number_of)

    @property
    def refs(self) -> list[ArtifactRef]:
        return [slot.ref for slot in list(self.slots.values()) if slot.ref is not None]

    @property
    def items(self) -> int:
        return sum(slot.artifact.items for slot in list(self.slots.values()))

    # -- artifacts that come and go

    def take_in(
        self,
        refs: Sequence[ArtifactRef],
        observed: Observed | None = None,
        *,
        is_complete: bool = False,
        is_own: bool = False,
    ) -> int:
        """Maps artifacts that are new to it, and has the catalogues find items in them; how many of these
        were missing. Where `is_complete`, the recipe has no others: items move out of those, which were
        merged. Where `is_own`, this job has just committed them, and observed inputs are checked once."""
        with self.lock:
            self.observed.update(observed or {})
            opened = self._open_new(refs, is_own=is_own)
            names = {ref.digest for ref in refs}
            stale = {n for digest, n in self._number_of.items() if is_complete and digest not in names}
            new = {next(self.numbers): slot for slot in opened}
            self.slots.update(new)
            found = sum(catalogue.take_in(new, stale) for catalogue in self.catalogues)
            self._number_of.update({slot.ref.digest: number for number, slot in new.items() if slot.ref})
            unused = set(self.slots).difference(*(catalogue.slots for catalogue in self.catalogues))
            self._drop(stale if self.keeps_all else unused)
            return found

    def _open_new(self, refs: Sequence[ArtifactRef], *, is_own: bool) -> list[Slot]:
        """Those that are new and can be mapped, the highest edition first."""
        edition = max((1, *(ref.edition + 1 for ref in refs))) if self._is_refreshing else self.edition
        verdicts = self._own_verdicts if is_own else {}
        opened: dict[str, Slot] = {}
        for ref in sorted(refs, key=lambda ref: -ref.edition):  # the first that has an item keeps it
            if ref.digest in self._number_of or ref.digest in opened:
                continue
            mapped = self._open(ref, verdicts) if ref.edition >= edition else None
            if mapped is None:
                edition = max(edition, ref.edition)  # what it replaced stays replaced
            else:
                opened[ref.digest] = Slot(mapped, ref)
        self.edition, self._is_refreshing = edition, False
        return list(opened.values())

    def lose(self, digests: Iterable[str]) -> int:
        """Drops artifacts; how many items are missing by that."""
        with self.lock:
            numbers = {self._number_of[digest] for digest in digests if digest in self._number_of}
            lost = 0 if self.keeps_all else sum(catalogue.lose(numbers) for catalogue in self.catalogues)
            self._drop(numbers)
            return lost

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if (ref := self.slots.pop(number).ref) is not None:
                del self._number_of[ref.digest]

    # -- finding items

    def find(self, digests: Array) -> list[tuple[int, Array, Array]]:
        """The slots in which these items (uint8[k, 32]) are, the highest edition first: a slot's number,
        which of the digests are in it, and their rows in its item table."""
        words = np.ascontiguousarray(digests).view("<u8")
        with self.lock:
            prefix, number, row = self._all_sorted()
            slots = {n: slot for n, slot in self.slots.items() if slot.artifact.edition >= self.edition}
        query, at = matches(prefix, words[:, 0])
        number, row = number[at], row[at]
        hits = []
        for one in sorted(set(number.tolist()) & set(slots), key=lambda one: -slots[one].artifact.edition):
            at = np.flatnonzero(number == one)
            table = slots[one].artifact.item_digests.view("<u8")
            at = at[(table[row[at]] == words[query[at]]).all(axis=1)]
            if len(at):
                hits.append((one, query[at], row[at]))
        return hits

    def _all_sorted(self) -> tuple[Array, Array, Array]:
        known, numbers = self._sorted, [n for n in self.slots if n not in self._is_sorted]
        if len(known[0]) > 2 * self.items:  # most of what it names is not mapped any more
            known, numbers = (known[0][:0], known[1][:0], known[2][:0]), list(self.slots)
        if numbers:
            tables = [self.slots[number].artifact.item_digests for number in numbers]
            counts = [len(table) for table in tables]
            new = (
                np.concatenate([known[0], *(np.ascontiguousarray(one).view("<u8")[:, 0] for one in tables)]),
                np.concatenate([known[1], np.repeat(np.array(numbers, "i8"), counts)]),
                np.concatenate([known[2], *(np.arange(count, dtype="i4") for count in counts)]),
            )
            order = np.argsort(new[0], kind="stable")  # quick, as most of it is in order
            self._sorted = new[0][order], new[1][order], new[2][order]
            self._is_sorted = set(self.slots)
        return self._sorted


def matches(prefix: Array, asked: Array) -> tuple[Array, Array]:
    """The pairs of equal first 8 bytes: which of those asked for, and where in the sorted `prefix`."""
    order = np.argsort(asked, kind="stable")  # walked in order: four times as fast as at random for a million
    asked = asked[order]
    first = np.searchsorted(prefix, asked, "left")
    count = np.searchsorted(prefix, asked, "right") - first
    return order[np.repeat(np.arange(len(asked)), count)], ranges(first, count)


def ranges(starts: Array, counts: Array) -> Array:
    """start, start + 1, ... count of them, for each pair, on end."""
    total = int(counts.sum())
    begins = np.cumsum(counts) - counts
    rows: Array = np.arange(total, dtype="i8") + np.repeat(starts - begins, counts)
    return rows


def open_or_miss(ref: ArtifactRef, path_of: Callable[[ArtifactRef], Any], recipe: str) -> Any | None:
    """Maps the artifact behind a reference; None, logged, if it is gone, damaged, or of another recipe, whose
    items may have the same digests. Raises DaemonUnreachable where it could not be fetched."""
    try:
        mapped = artifact.open(path_of(ref), size_bytes=ref.size_bytes)
        if (mapped.recipe, mapped.key) != (recipe, ref.key):
            raise ArtifactError(f"it is entry {mapped.key[:12]} of recipe {mapped.recipe[:12]}")
        if mapped.header.observed and not ref.observed:
            raise ArtifactError("the answer lacks its observed inputs")
        return mapped
    except (FileNotFoundError, NotFound):
        return None
    except DaemonUnreachable:
        raise
    except (PrepcacheError, OSError) as error:
        log.warning("prepcache: artifact %s cannot be read and counts as a miss: %s", ref.digest[:12], error)
        return None


def reopened(kept: Mapping[int, Any]) -> dict[int, Slot]:
    """Slots of another process, mapped here; without those whose files are gone."""
    slots = {number: _reopened(address) for number, address in kept.items()}
    return {number: slot for number, slot in slots.items() if slot is not None}


def _reopened(address: Any) -> Slot | None:
    if isinstance(address[0], int):
        from prepcache.fill.pending import LocalFile

        local = LocalFile.of(*address)
        return None if local is None else Slot(local.artifact, None, local)
    ref, path, recipe = address
    mapped = open_or_miss(ref, lambda _: path, recipe)
    return None if mapped is None else Slot(mapped, ref)
