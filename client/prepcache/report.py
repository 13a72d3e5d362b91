"""The report of a data set: what was there, what was made, what that cost, and why; and lines for people.

Invariants:
    1. The counts, and what was said once, are in memory that DataLoader workers share, spawned ones too.
    2. `hit + computed + waited <= items`. They are equal once `prepare()` has returned, the daemon was there
       and nothing was declined. An item that equals an earlier one of the data set counts as a hit.
    3. What is computed is in the cache at this moment, or not stored. What is declined may be computed, too.
    4. The reason of a hit costs no request, that of a miss at most one, of at most `ASK_S`; a job never fails
       over its reason, and the daemon is not given up for it.
    5. What is told to the daemon (`ArtifactSet.why`), and so to other users, names files, never values.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.artifact.reader import Mapping, memory_file
from prepcache.daemon.session import fitting
from prepcache.digests import RecipeDigest
from prepcache.errors import DaemonUnreachable, PrepcacheError
from prepcache.index.item_index import MISSING, Array, Catalogue, Distinct
from prepcache.protocol import wire
from prepcache.protocol.units import count_text, shortened, size_text, span_text
from prepcache.settings import Mode, is_first_rank

if TYPE_CHECKING:
    from prepcache.index.artifact_set import ArtifactSet
    from prepcache.index.recipe_index import Slot
    from prepcache.keys.items import Stamps
    from prepcache.protocol import inspection

log = logging.getLogger("prepcache")

ASK_S = 1.0
NAMED_ITEMS = 3
PATH_CHARS = 120
WITHOUT = "without the cache"
NOT_KEPT = "PREPCACHE=readonly: new samples are not stored"
NOT_KNOWN = "reason unknown: the daemon did not answer in time; try `prepcache explain`"


@dataclass(frozen=True, slots=True)
class Report:
    """Where the samples of a data set came from.

    Args:
        items: items in the data set, equal ones included.
        hit: items that were there when the data set was opened.
        computed: distinct items that this process preprocessed, or its DataLoader workers; kept or not.
        waited: distinct items that came from other jobs after the data set was opened: made meanwhile, or
            found late because the daemon was just starting.
        declined: distinct items that are not in the cache since it had no room, computed or not.
        bytes: bytes of the cached artifacts that hold the data set's samples, by its share of their items.
        seconds: seconds spent inside the preprocessing function, over all workers.
        seconds_saved: seconds that the samples found had cost the jobs that made them.
        why: what explains the misses, and what is not stored, one line each.
        not_stored: how many of the computed are not in the cache now: the next run makes them again. Of a
            stream, those that something kept from being stored.
    """

    items: int
    hit: int
    computed: int
    waited: int
    declined: int
    bytes: int
    seconds: float
    seconds_saved: float
    why: tuple[str, ...] = ()
    not_stored: int = 0

    def __str__(self) -> str:
        parts = [count_text(self.items, "item", "items"), f"{self.hit:,} hit", f"{self.computed:,} computed"]
        if self.not_stored:
            parts.append(f"{self.not_stored:,} of them not stored")
        if self.waited:
            parts.append(f"{self.waited:,} from other jobs")
        if self.declined:
            parts.append(f"{self.declined:,} declined (no room in the cache)")
        parts.append(f"{size_text(self.bytes)}, {span_text(self.seconds)} spent")
        parts.append(f"{span_text(self.seconds_saved)} saved")
        return ", ".join(parts)


def say(line: str, is_shown: bool | None = None, *, is_wrong: bool = False) -> None:
    """One line for people: to the log where one listens, else to stderr.

    `is_shown`: None shows it in the first rank, and what `is_wrong` in every process.
    """
    if is_shown is False or (is_shown is None and not is_wrong and not is_first_rank()):
        return
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        log.info("%s", line)
    elif sys.stderr is not None:  # it was closed
        with suppress(Exception):  # nobody reads it any more, or a class of the job's stands there
            print(f"prepcache: {line}\n", end="", file=sys.stderr, flush=True)  # one write: jobs share them


class Shared:
    """An array, at first of zeros, that a job's processes write into: those that it forks or sends it to.

    Once sent, it lies in a file in memory, which the other process opens. One that cannot has a copy, and so
    has what is sent within a process.
    """

    def __init__(self, like: Array) -> None:
        self._place: tuple[int, str] | None = None
        self._map(like, -1)

    def __reduce__(self) -> Any:
        if self._place is None:
            with suppress(OSError):
                name = f"prepcache-{secrets.token_hex(8)}"
                fd = memory_file(name)
                with open(fd, "wb", closefd=False) as file:
                    file.write(self.array.tobytes())
                self._keep(fd, name)
        return Shared.sent, (self.array, os.getpid(), self._place)

    @classmethod
    def sent(cls, array: Array, pid: int, place: tuple[int, str] | None) -> Shared:
        one = cls(array)
        one.array[:] = array
        if place is not None and pid != os.getpid():
            with suppress(OSError):
                path = Path(f"/proc/{pid}/fd/{place[0]}")
                if place[1] in path.readlink().name:  # else it has another file there by now
                    one._keep(os.open(path, os.O_RDWR | os.O_CLOEXEC), place[1])
        return one

    def _keep(self, fd: int, name: str) -> None:
        weakref.finalize(self, os.close, fd).atexit = False
        self._map(self.array, fd)
        self._place = fd, name

    def _map(self, like: Array, fd: int) -> None:
        flags = mmap.MAP_SHARED | (mmap.MAP_ANONYMOUS if fd < 0 else 0)
        mapping = Mapping(max(1, like.nbytes), mmap.PROT_READ | mmap.PROT_WRITE, flags, fd)
        self.array: Array = np.asarray(mapping)[: like.nbytes].view(like.dtype).reshape(like.shape)


class Once:
    """Which one-time messages were logged by a job."""

    TOPICS = (
        "ranks", "drawn", "nothing", "drifted", "left", "files", "started", "unseen", "unobserved",
        "taken", "lost",
    )  # fmt: skip

    def __init__(self) -> None:
        self._said = Shared(np.zeros(len(self.TOPICS), "u1"))

    def is_news(self, topic: str) -> bool:
        said, at = self._said.array, self.TOPICS.index(topic)
        was, said[at] = said[at], 1
        return not was


_UNKNOWN, _HIT, _WAITED = range(3)
_COUNTED = ("state", "u1"), ("made", "u1"), ("cost_s", "f8")
"""Of each item: where it came from; 1: preprocessed by this job; what it cost where it was made on access.
Items that were hits touch the memory of the first alone."""


class Tally:
    """Counts, item by item, where samples came from. `note_*` give the items found, and what they cost."""

    def __init__(self, distinct: Distinct, catalogue: Catalogue) -> None:
        self.why: list[str] = []
        self._catalogue = catalogue
        kinds = [(name, dtype, (len(distinct),)) for name, dtype in _COUNTED]
        self._shared = Shared(np.zeros(1, [*kinds, ("full", "u1")]))  # full: no room for what is not stored
        self._seconds = 0.0
        self._changed: set[int] = set()

    @property
    def _of(self) -> Any:
        return self._shared.array[0]

    def note_hits(self) -> tuple[int, float]:
        hits = np.flatnonzero(self._catalogue.places.artifact != MISSING)
        self._of["state"][hits] = _HIT
        return self._found(hits)

    def note_fill(self, computed: Any, waited: Any, seconds: float) -> tuple[int, float]:
        self._of["made"][computed] = 1
        self._of["state"][computed] = _UNKNOWN
        waited = np.array(waited, "i8")
        waited = waited[self._of["made"][waited] == 0]  # else it was made on access meanwhile
        self._of["state"][waited] = _WAITED
        self._seconds += seconds
        return self._found(waited)

    def _found(self, items: Any) -> tuple[int, float]:
        places = self._catalogue.places.artifact[items]
        saved_s = sum(share * slot.artifact.cost_s for slot, share in self._shares(places))
        return int(np.count_nonzero(places != MISSING)), float(saved_s)

    def _shares(self, places: Any) -> Iterator[tuple[Slot, float]]:
        counts = np.bincount(places[places != MISSING])
        for number in np.flatnonzero(counts).tolist():
            slot = self._catalogue.slots.get(number)
            if slot is not None and slot.artifact.items:
                yield slot, min(1.0, float(counts[number]) / slot.artifact.items)

    def note_made(self, index: int, cost_s: float) -> None:
        self._of["cost_s"][index] += cost_s
        self._of["made"][index] = 1
        self._of["state"][index] = _UNKNOWN

    def note_changed(self, index: int, names: list[str]) -> bool:
        if index in self._changed:
            return False
        self._changed.add(index)
        self.why.append(f"{', '.join(names[:3])} changed since the data set was opened")
        return True

    def note_full(self) -> None:
        self._of["full"] = 1

    @property
    def not_stored(self) -> int:
        return int(np.count_nonzero(~self._catalogue.is_shared(np.flatnonzero(self._of["made"]))))

    def made_since_opening(self) -> tuple[int, int, int]:
        is_hit, is_made = self._of["state"] == _HIT, self._of["made"] == 1
        is_others = (self._catalogue.places.artifact != MISSING) & ~is_made & ~is_hit
        return int(np.count_nonzero(is_hit)), int(np.count_nonzero(is_made)), int(np.count_nonzero(is_others))

    @property
    def nbytes(self) -> float:
        shares = self._shares(self._catalogue.places.artifact)
        return float(sum(share * slot.artifact.size_bytes for slot, share in shares if slot.ref is not None))

    @property
    def item_bytes(self) -> float:
        return self.nbytes / max(1, self._catalogue.kept)

    def report(self, why: tuple[str, ...]) -> Report:
        of, inverse = self._of, self._catalogue.distinct.inverse
        is_new = (of["made"] == 1) | (of["state"] == _WAITED)
        # Of equal items one was computed or waited for; the others found it there.
        again = np.count_nonzero(is_new[inverse]) - np.count_nonzero(is_new)
        hit = int(np.count_nonzero((of["state"] == _HIT)[inverse]) + again)
        _, saved_s = self._found(np.isin(of["state"], (_HIT, _WAITED)))
        return Report(
            items=len(inverse),
            hit=hit,
            computed=int(np.count_nonzero(of["made"])),
            waited=int(np.count_nonzero(of["state"] == _WAITED)),
            declined=len(of["made"]) - self._catalogue.kept if of["full"] else 0,
            bytes=int(self.nbytes),
            seconds=self._seconds + float(of["cost_s"].sum()),
            seconds_saved=saved_s,
            why=why,
            not_stored=self.not_stored,
        )


def opening_line(
    name: str, recipe: str, report: Report, to_do: int, reasons: Sequence[str], mode: Mode = Mode.ON
) -> str:
    """The line at open: hit or miss, and why. `to_do`: distinct items to preprocess."""
    if not report.items:
        return f"empty {name}: no items; check the glob or the folder; recipe {recipe[:12]}"
    items = count_text(report.items, "item", "items")
    if not to_do:
        return f"hit {name}: {items}; recipe {recipe[:12]}"
    counts = f"{items}, {report.hit:,} hit, {to_do:,} to preprocess"
    if mode is Mode.READONLY:  # else nobody sees why the next run, and each epoch, is as slow
        reasons = [*reasons, NOT_KEPT]
    return f"miss {name}: {'; '.join(reasons)}; {counts}; recipe {recipe[:12]}"


def stream_line(name: str, recipe: str, artifacts: ArtifactSet) -> tuple[str, list[str]]:
    """The line at the opening of a stream, and why nothing is there."""
    if there := artifacts.items:
        return f"stream {name}: {count_text(there, 'item is', 'items are')} cached; recipe {recipe[:12]}", []
    reasons = _why_nothing(artifacts) or [ask(artifacts)]
    said = WITHOUT if reasons == [artifacts.client.budget.warned] else "; ".join(reasons)
    return f"stream {name}: nothing is cached: {said}; recipe {recipe[:12]}", reasons


def why_missing(
    artifacts: ArtifactSet, catalogue: Catalogue, items: Sequence[Any], root: str | os.PathLike[str] | None
) -> list[str]:
    """Why items of a data set that has just been opened are not there."""
    if not len(catalogue.missing):
        return []
    lines, cue = _why_nothing(artifacts), "observed" if artifacts.changed_inputs else ""
    if not lines and not artifacts.has_any:
        return [ask(artifacts)]
    if not lines:
        lines, cue = [_missing_items(catalogue, items, root)], "data"
    artifacts.why, artifacts.why_cue = shortened("; ".join(lines), wire.MAX_WHY), cue
    return lines


def _why_nothing(artifacts: ArtifactSet) -> list[str]:
    """Why the daemon has told nothing, or what it told does not count."""
    if artifacts.reason:
        return [artifacts.reason]
    if artifacts.mode is Mode.REFRESH:
        return ["PREPCACHE=refresh: cached samples are not used"]
    return changed_inputs(artifacts)


def ask(artifacts: ArtifactSet) -> str:
    """The daemon's explanation of a recipe without artifacts, on one line."""
    from prepcache.protocol import explain, inspection

    recipe, session = artifacts.recipe, artifacts.session
    client: Any = session.client  # the process's one: another would keep a connection of its own open
    parts = None if artifacts.mode.is_writing else fitting(recipe.parts)  # else they are registered
    asked = inspection.ExplainRequest(recipe=RecipeDigest(recipe.digest), parts=parts).to_json()

    def attempt(limit_s: float) -> inspection.Explanation | None:
        try:
            found: inspection.Explanation = client.transport.call(
                "POST", "/v1/explain", asked, limit_s=min(limit_s, ASK_S), gives=inspection.Explanation
            )
            return found
        except DaemonUnreachable:  # invariant 4: the next request that matters will tell
            return None

    try:
        told = session.run(attempt)
    except PrepcacheError:
        told = None
    if told is None:
        return NOT_KNOWN
    hint = explain.hint(told.differences)
    return f"{told.summary} ({hint})" if hint else told.summary


def changed_inputs(artifacts: ArtifactSet) -> list[str]:
    lines = []
    for name, how in artifacts.changed_inputs:
        tag, _, rest = name.partition(":")
        shown = shortened(rest if rest and tag in ("project", "items", "cwd") else name, 200)
        lines.append(f"{shown}, which the function used, {how}")
    return lines


def ended_early(error: BaseException, kept: int, total: int) -> str:
    how = "interrupted" if isinstance(error, KeyboardInterrupt) else "ended by an error"
    onward = "; the next run continues from there, unless the code is edited" if kept else ""
    return f"{how}: {kept:,} of {total:,} items are stored{onward}"


def why_so(artifacts: ArtifactSet, stamps: Stamps, tally: Tally) -> tuple[str, ...]:
    lines = changed_inputs(artifacts)
    if stamps.typed_names:
        names = ", ".join(stamps.typed_names[:3])
        lines.append(f"{len(stamps.typed_names)} paths in the items name no file, such as {names}")
    reason = artifacts.trouble
    if count := tally.not_stored:
        which = f"the samples of {count_text(count, 'computed item', 'computed items')} are not stored"
        reason = f"{which}: {reason}" if reason else f"{which} yet"
    return tuple(dict.fromkeys([*tally.why, *lines, *filter(None, [reason])]))


def _missing_items(catalogue: Catalogue, items: Sequence[Any], root: str | os.PathLike[str] | None) -> str:
    """`3 of 2,000 items not cached: a.txt, b.txt and 1 more`: the first ones, by their files."""
    missing, total = catalogue.missing, len(catalogue.distinct)
    first = [items[int(catalogue.distinct.first[i])] for i in missing[:NAMED_ITEMS].tolist()]
    names = [name for item in first if (name := _name_of(item, root))]
    more = f" and {len(missing) - len(names):,} more" if len(missing) > len(names) else ""
    count = f"{len(missing):,} of {total:,} items" if total > 1 else "its data is"
    which = f": {', '.join(names)}{more}" if names else ""
    return f"{count} not cached{which}"


def _name_of(item: Any, root: str | os.PathLike[str] | None) -> str:
    from prepcache.fill.call import paths_in

    name = next((name for name in paths_in(item) if os.path.lexists(name)), "")
    above = "" if root is None else os.path.abspath(os.fspath(root)) + os.sep
    return shortened(os.path.abspath(name).removeprefix(above) if name and above else name, PATH_CHARS)
