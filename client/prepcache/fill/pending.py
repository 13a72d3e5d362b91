"""What was made and is not committed yet: samples that are collected, and the files that they go into.

Invariants:
    1. A sample that no column can hold leaves what was collected before as it was, and so does an interrupt.
    2. Of an item that expands, at most `COMMIT_BYTES` and a part are in memory, the rest in a file.
    3. Nothing of a file is left on the disk after the last process that maps it has ended, unless a daemon
       took it.
    4. Opening a file by its address gives that file, another of the same items, or none.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prepcache import artifact
from prepcache.artifact.writer import Writer
from prepcache.daemon.session import script_name
from prepcache.daemon.transfer import nameless, writing_in
from prepcache.errors import ArtifactError, PrepcacheError, PreprocessError, SampleError
from prepcache.fill.call import Part
from prepcache.fill.share import COMMIT_BYTES, HeldLease, Share
from prepcache.index.item_index import SHOWN, Catalogue, Originals

if TYPE_CHECKING:
    from prepcache.report import Tally
    from prepcache.samples import Preprocessing

CHANGED_SAID = 3
"""Items that changed during a fill and are named, each on a line."""


@dataclass(frozen=True, slots=True)
class Task:
    """What samples are made of, how, where they are then, and what is counted and said of them."""

    by: Preprocessing
    catalogue: Catalogue
    originals: Originals
    tally: Tally

    @property
    def producer(self) -> dict[str, Any]:
        return {
            "recipe": self.by.name,
            "script": script_name(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "uid": os.getuid(),
            "at": time.time(),
        }

    def failure(self, part: Part) -> PrepcacheError:
        error, originals = part.error, self.originals
        if isinstance(error, SampleError):
            return self.refusal(part.index, error)
        what = f"{type(error).__qualname__}: {error}" if str(error) else type(error).__qualname__
        failed = PreprocessError(
            f"preprocessing {originals.name(part.index)} failed: {what}",
            index=originals.position(part.index),
            item=repr(originals.item(part.index))[:SHOWN],
        )
        failed.__cause__ = error
        return failed

    def refusal(self, index: int, error: SampleError) -> SampleError:
        return SampleError(f"{self.originals.name(index)}: {error.message}", **error.data)

    def say_notices(self, notices: Iterable[tuple[str, str]]) -> None:
        for topic, text in notices:
            self.by.say_of_it(text, topic)

    def say_changed(self, changed: dict[int, list[str]]) -> None:
        """Names the first items, as a whole folder may be written to meanwhile."""
        news = [names for index, names in changed.items() if self.tally.note_changed(index, names)]
        told = [", ".join(names[:3]) for names in news[:CHANGED_SAID]]
        if len(news) > len(told):
            told.append(f"{len(news) - len(told):,} more items")
        for what in told:
            self.by.say_of_it(f"{what} changed since the data set was opened: not stored", is_wrong=True)

    def say_unobserved(self, index: int, why: str) -> None:
        """Of one such item: what it reads, the others mostly read, too."""
        text = (
            f"what the function read for {self.originals.name(index)} could not be observed ({why}). Samples "
            "of such items are not stored; every job preprocesses them itself"
        )
        self.by.say_of_it(text, "unobserved")


class LocalFile:
    """An artifact in a file without a name.

    Raises OSError where the folder takes no more, ArtifactError where there are too many observed inputs.
    """

    def __init__(
        self,
        writer: Writer,
        producer: dict[str, Any],
        observed: Sequence[dict[str, Any]] = (),
        staging: Path | None = None,
    ) -> None:
        folder = staging or _folder()
        with writing_in(folder, "set TMPDIR to another folder"):
            self.fd = _owned(self, nameless(folder))
            writer.write(self.fd, producer=producer, observed=observed)
        self.artifact = artifact.open(self.fd)

    @property
    def nbytes(self) -> int:
        return self.artifact.size_bytes

    @property
    def address(self) -> tuple[int, int, str]:
        """Process and descriptor by which another process of this job can open the file, and its key."""
        return os.getpid(), self.fd, self.artifact.key

    @classmethod
    def of(cls, pid: int, fd: int, key: str) -> LocalFile | None:
        """The file at another process's `address`; None if it is not there any more."""
        found = cls.__new__(cls)
        try:
            found.fd = _owned(found, os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
            found.artifact = artifact.open(found.fd)
        except (OSError, ArtifactError):
            return None
        return found if found.artifact.key == key else None


def _folder() -> str:
    """Where large temporary files belong: `/tmp` is memory on many systems."""
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):
        return "/var/tmp"
    return tempfile.gettempdir()


def _owned(owner: object, fd: int) -> int:
    """A descriptor that is closed with its owner."""
    # Not at the end of the process: a thread may still write, and the number be another file's by then.
    weakref.finalize(owner, os.close, fd).atexit = False
    return fd


@dataclass(slots=True, eq=False, weakref_slot=True)
class Batch:
    """Samples to be committed together.

    Args:
        cover: the digest of each of `indices`, and the lease that covers it.
        share: where the items are to be settled.
        is_late: it is waited for no more.
    """

    file: LocalFile
    indices: list[int]
    cover: dict[bytes, HeldLease | None]
    observed: list[dict[str, Any]] = field(default_factory=list)
    share: Share | None = None
    has_failed: bool = False
    is_late: bool = False

    @property
    def bare(self) -> list[bytes]:
        """The digests that no live lease covers."""
        return [digest for digest, held in self.cover.items() if held is None or held.is_dead]

    @property
    def leases(self) -> list[HeldLease]:
        live = (held for held in self.cover.values() if held is not None and not held.is_dead)
        return list({id(held): held for held in live}.values())

    def settle(self, indices: Sequence[int]) -> None:
        if self.share is not None:
            self.share.settle(indices)

    def leave(self, lost: set[bytes], producer: dict[str, Any]) -> None:
        digests = list(self.cover)
        rows = [row for row, digest in enumerate(digests) if digest not in lost]
        self.settle([index for row, index in enumerate(self.indices) if row not in rows])
        if rows:
            whole = self.file.artifact
            writer = Writer(whole.recipe, whole.edition)
            for row in rows:
                first = int(whole.first_row[row])
                samples = [whole.sample(n) for n in range(first, first + int(whole.row_count[row]))]
                writer.add(digests[row], samples, float(whole.item_cost[row]))
            self.file = LocalFile(writer, producer, self.observed)
        self.cover = {digests[row]: self.cover[digests[row]] for row in rows}
        self.indices = [self.indices[row] for row in rows]


class Collected:
    """Samples of items that go into one artifact: of whole ones, or the parts of one."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._begin()

    def _begin(self) -> None:
        self._writer = Writer(self._task.by.recipe.digest, self._task.catalogue.index.edition)
        self._cover: dict[bytes, HeldLease | None] = {}
        self.indices: list[int] = []
        self.cost_s = 0.0
        self.leases: set[int] = set()  # which a commit would name
        self._spills_at = COMMIT_BYTES
        self._folder, self._scratch = "", 0

    @property
    def nbytes(self) -> int:
        return self._writer.nbytes

    def add(self, part: Part, held: HeldLease | None) -> None:
        """Takes an item, or the next part of it. An interrupt drops what was collected: columns may have half
        of it."""
        digest = bytes(self._task.catalogue.distinct.digests[part.index])
        try:
            self.cost_s += part.cost_s
            if digest in self._cover:
                self._extend(part)
                return
            self._writer.add(digest, part.samples, part.cost_s)
            self._cover[digest] = held
            self.leases.add(id(held))
            self.indices.append(part.index)
        except SampleError:
            raise
        except BaseException:
            self._begin()
            raise

    def _extend(self, part: Part) -> None:
        self._writer.extend(part.samples, part.cost_s)
        if self.nbytes >= self._spills_at:
            self._folder = self._folder or self._roomier()
            with writing_in(self._folder, "set TMPDIR to another folder"):
                self._scratch = self._scratch or _owned(self, nameless(self._folder))
                self._writer.spill(self._scratch)
            self._spills_at = self.nbytes + COMMIT_BYTES

    def _roomier(self) -> str:
        """The folder of temporary files, or that of the daemon if that has more room."""
        own = _folder()
        with suppress(PrepcacheError, OSError):
            staging = self._task.by.artifacts.session.staging() or own
            return max(own, str(staging), key=lambda folder: shutil.disk_usage(folder).free)
        return own

    def batch(self, observed: list[dict[str, Any]], session: Any = None) -> Batch:
        """What was collected, in a file: where `session` commits it from, if there is room."""
        file = None
        with suppress(PrepcacheError, OSError):
            if session is not None:
                file = LocalFile(self._writer, self._task.producer, observed, session.staging())
        file = file or LocalFile(self._writer, self._task.producer, observed)
        return Batch(file, self.indices, self._cover, observed)
