"""What the background does every second, each a bounded piece: `tend` calls them all.

Recency is written behind. Removed artifacts that nobody holds any more are unlinked, and so are doomed files
that could not be. Bytes in staging are counted, sizes of new files settled, and room is made ahead of
commits. The reserve is taken again. Recipes that nobody asks for are deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from prepcached.store import disk_reserve, durable, queries, recipes, recovery, removal
from prepcached.store.core import Core, io_told
from prepcached.store.eviction import Candidate
from prepcached.store.models import artifacts

RECENCY_S = 5.0
"""Recency is written this often: an eviction writes it first anyway."""
RECIPES_S = 3600.0
"""Recipes are looked through this often, and at the start."""
PIECE_BYTES, PIECE_ENTRIES = 16 << 20, 128
"""Evicted ahead at once, where much has to go: commits and new recipes wait no longer than for a piece."""
SETTLE_S = 2.0
"""A filesystem may give back preallocated blocks when the writer closes the file, after the commit."""


class Housekeeping:
    """The recurring work of one store. One thread calls `tend`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._recency_at = core.clock()
        self._recipes_at = 0.0

    def tend(self) -> None:
        core = self._core
        with io_told("upkeep failed"):
            if _room_to_make(core) > 0:
                disk_reserve.give_up(core.layout)  # all that is written before could not be, on a full disk
        if is_due(core.clock(), self._recency_at, RECENCY_S):
            self._recency_at = core.clock()
            removal.write_recency(core)
            recipes.write_asked(core)
        with io_told("upkeep failed"):
            core.look_at_staging()
            with core.writer:
                recovery.finish_doomed(core)
            settle(core)
            keep_quotas(core)
            make_room_ahead(core)
            disk_reserve.take(core.layout)
            if is_due(core.clock(), self._recipes_at, RECIPES_S):
                self._recipes_at = core.clock()
                recipes.sweep(core)


def is_due(now: float, last: float, span_s: float) -> bool:
    """Whether a span has passed, or the clock was set back since: it would be put off for as long."""
    return not 0 <= now - last < span_s


def settle(core: Core) -> None:
    """Corrects the bytes on disk of files that were committed a moment ago."""
    now = core.clock()
    with core.memory:
        due = [digest for digest, at in core.unsettled.items() if is_due(now, at, SETTLE_S)]
    if not due:
        return
    with core.writer:
        for row in removal.rows_of(core, artifacts.c.digest, due):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(core.layout.object_path(row.digest.hex()))
                set_disk_bytes(core, row, durable.disk_bytes(status))
        with core.memory:
            for digest in due:
                core.unsettled.pop(digest, None)


def set_disk_bytes(core: Core, row: queries.Doomable, disk_bytes: int) -> None:
    """Notes that a file takes other blocks than its row says. Call it with the writer lock."""
    if disk_bytes == row.disk_bytes:
        return
    with core.index.write() as conn:
        conn.execute(artifacts.update().where(artifacts.c.id == row.id).values(disk_bytes=disk_bytes))
    with core.memory:
        removal.account(core, row, -1)
        removal.account(core, row._replace(disk_bytes=disk_bytes), +1)


def keep_quotas(core: Core) -> None:
    """Evicts the coldest entries of users who are over their quotas, or fewer if only fewer are idle."""
    with core.memory:
        over = {owner: core.quotas.shortfall(owner) for owner in core.quotas.over()}
    for owner, short in over.items():
        _evict_pieces(core, removal.idle(core, short, owner))


def make_room_ahead(core: Core) -> None:
    """Evicts until the headroom is free, or less if only less is idle."""
    short = _room_to_make(core)
    if short > 0:
        _evict_pieces(core, removal.idle(core, short))


def _evict_pieces(core: Core, chosen: Iterable[Candidate]) -> None:
    for piece in _pieces(chosen):
        core.check_not_stopping()
        core.foreground.give_way()
        removal.evict_chosen(core, piece)


def _room_to_make(core: Core) -> int:
    """Bytes that lack of the headroom, where something is idle that may go for them."""
    free = core.root.free_bytes()
    with core.memory:
        short = core.ledger.shortfall(core.ledger.headroom(free), free)
        return short if core.idle_bytes() > 0 else 0


def _pieces(chosen: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    """Parts of these of about `PIECE_BYTES` and `PIECE_ENTRIES` at most."""
    piece: list[Candidate] = []
    size = 0
    for candidate in chosen:
        piece.append(candidate)
        size += candidate.disk_bytes
        if size >= PIECE_BYTES or len(piece) == PIECE_ENTRIES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
