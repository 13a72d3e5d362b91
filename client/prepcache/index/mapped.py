"""Mapped artifacts of one recipe: which are mapped, which count, and how a new one is mapped.

NOTE [ Editions ]
    A job that refreshes writes artifacts of an edition above all that it found, and looks at no lower one.
    Every job that opens its data set later takes an item from the highest edition that has it; a running
    job keeps what it has mapped. The daemon merges within an edition only, and a commit removes the artifacts
    of lower editions that share an item with it: what was replaced never comes back. Who cannot map an
    artifact (it is bad, it has just gone, or an input that it observed changed) does not know what it
    replaces: that job looks at no lower edition.

Not here: where items lie in them (catalogue.py, and for a stream recipe_index.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prepcache import artifact
from prepcache.errors import ArtifactError, DaemonUnreachable, NotFound, PrepcacheError
from prepcache.protocol.observed import Row
from prepcache.protocol.wire import ArtifactRef

if TYPE_CHECKING:
    from prepcache.fill.overflow import Spilled

log = logging.getLogger("prepcache")

Observed = Mapping[str, Sequence[Row]]
"""Chunks of observed inputs by name."""
Verdicts = dict[str, str | None]
"""Of each chunk that was looked at, the first input that is not what it was."""
OpenRef = Callable[[ArtifactRef, Observed, Verdicts], Any | None]
NO_INPUTS: Observed = {}


@dataclass(frozen=True, slots=True)
class Slot:
    """A mapped artifact: shared, with its reference, or spilled, which only this job has."""

    artifact: Any
    ref: ArtifactRef | None
    spilled: Spilled | None = None

    @property
    def edition(self) -> int:
        return int(self.artifact.edition)


class MappedArtifacts:
    """What an index of items has in common with others.

    Args:
        open_ref: maps an artifact; None if it is gone or not whole, which makes it a miss.

    Attributes:
        edition: the lowest that this job looks at, and the one that it writes: NOTE [ Editions ].
        observed: the chunks of inputs that artifacts name, by name.
    """

    def __init__(self, open_ref: OpenRef) -> None:
        self.edition = 0
        self.observed: dict[str, Sequence[Row]] = {}
        self._is_refreshing = False
        self._own_verdicts: Verdicts = {}
        self._by_digest: dict[str, int] = {}
        """The number of each one's slot, which is never given to another artifact."""
        self._open_ref = open_ref
        self._lock = threading.RLock()

    def opens_with(self, open_ref: OpenRef) -> None:
        """Says how artifacts are mapped, in a process that got this index from another."""
        self._open_ref = open_ref

    def reset_lock(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    def refresh(self) -> None:
        """Looks at no edition that the first answer to come names."""
        self.edition, self._is_refreshing = 1, True

    def knows(self, digest: str) -> bool:
        return digest in self._by_digest

    def _open_new(
        self, refs: Sequence[ArtifactRef], observed: Observed, *, is_own: bool
    ) -> tuple[list[Slot], list[ArtifactRef]]:
        """Maps artifacts that are not known by their digests. Call it with the lock.

        Returns:
            Those, the highest edition first, and those that cannot be mapped.
        """
        self.observed.update(observed)
        edition = max((1, *(ref.edition + 1 for ref in refs))) if self._is_refreshing else self.edition
        verdicts = self._own_verdicts if is_own else {}
        opened: dict[str, Slot] = {}
        gone = []
        for ref in sorted(refs, key=lambda ref: -ref.edition):  # the first that has an item keeps it
            if ref.digest in self._by_digest or ref.digest in opened:
                continue
            mapped = self._open_ref(ref, self.observed, verdicts) if ref.edition >= edition else None
            if mapped is None:
                gone.append(ref)
                edition = max(edition, ref.edition)  # what it replaced stays replaced
            else:
                opened[ref.digest] = Slot(mapped, ref)
        self.edition, self._is_refreshing = edition, False
        return list(opened.values()), gone


def open_or_miss(ref: ArtifactRef, path_of: Callable[[ArtifactRef], Any], recipe: str) -> Any | None:
    """Maps the artifact behind a reference; None, logged, if it is gone, damaged, or not what was told of it.

    Items of two recipes have the same digests: a file of another one would give wrong samples.

    Raises:
        DaemonUnreachable: it could not be fetched, and may be there.
    """
    try:
        mapped = artifact.open(path_of(ref), size_bytes=ref.size_bytes)
        if (mapped.recipe, mapped.key) != (recipe, ref.key):
            raise ArtifactError(
                f"it is entry {mapped.key[:12]} of recipe {mapped.recipe[:12]}, not {ref.key[:12]} of "
                f"{recipe[:12]}"
            )
        if mapped.header.packed_observed and not ref.observed:
            raise ArtifactError("the answer lacks its observed inputs")
        return mapped
    except (FileNotFoundError, NotFound):
        return None
    except DaemonUnreachable:
        raise
    except (PrepcacheError, OSError) as error:
        log.warning("prepcache: artifact %s cannot be read and counts as a miss: %s", ref.digest[:12], error)
        return None


def reopened(kept: Any) -> Slot | None:
    """A slot of another process, mapped here; None if its file is gone."""
    if isinstance(kept[0], int):
        from prepcache.fill.overflow import Spilled

        spilled = Spilled.of(*kept)
        return None if spilled is None else Slot(spilled.artifact, None, spilled)
    ref, path, recipe = kept
    mapped = open_or_miss(ref, lambda _: path, recipe)
    return None if mapped is None else Slot(mapped, ref)
