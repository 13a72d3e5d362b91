"""What the background does every second, each a bounded piece: `tend` calls them all.

Recency is written behind. Doomed files that could not be unlinked are. Bytes in staging are counted, and
room is made ahead of commits. The reserve is taken again. Recipes that nobody asks for are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from prepcached.store import disk_reserve, recipes, recovery, removal, room
from prepcached.store.core import Core, io_told
from prepcached.store.queries import Doomable

RECENCY_S = 5.0
"""Recency is written this often: an eviction writes it first anyway."""
RECIPES_S = 3600.0
"""Recipes are looked through this often, and at the start."""
PIECE_ENTRIES = 32
"""Evicted ahead at once, where much has to go: commits and new recipes wait no longer than for so many..."""
PIECE_BYTES = 16 << 20
"""...and after the entry that reaches this, a piece ends: unlinking a large file takes its time."""


class Housekeeping:
    """The recurring work of one store. One thread calls `tend`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._recency_at = core.monotonic()
        self._recipes_at = -inf

    def tend(self) -> None:
        core = self._core
        now = core.monotonic()
        with io_told("housekeeping failed"):
            if _room_to_make(core) > 0:
                disk_reserve.give_up(core.layout)  # all that is written before could not be, on a full disk
        if now - self._recency_at >= RECENCY_S:
            self._recency_at = now
            removal.write_recency(core)
            recipes.write_asked(core)
        with io_told("housekeeping failed"):
            core.look_at_staging()
            with core.writer:
                recovery.finish_doomed(core)
            keep_quotas(core)
            make_room_ahead(core)
            disk_reserve.take(core.layout)
            if now - self._recipes_at >= RECIPES_S:
                self._recipes_at = now
                recipes.sweep(core)


def keep_quotas(core: Core) -> None:
    """Evicts the coldest entries of users who are over their quotas, or fewer if only fewer are idle."""
    with core.memory:
        over = {owner: core.quotas.shortfall(owner) for owner in core.quotas.over()}
    if over:
        removal.write_recency(core)
    for owner, short in over.items():
        _evict_pieces(core, room.idle(core, short, owner))


def make_room_ahead(core: Core) -> None:
    """Evicts until the headroom is free, or less if only less is idle."""
    short = _room_to_make(core)
    if short > 0:
        removal.write_recency(core)
        _evict_pieces(core, room.idle(core, short))


def _evict_pieces(core: Core, chosen: Iterable[Doomable]) -> None:
    for piece in _pieces(chosen):
        core.check_not_stopping()
        core.foreground.give_way()
        room.evict_chosen(core, piece)


def _pieces(chosen: Iterable[Doomable]) -> Iterator[list[Doomable]]:
    piece: list[Doomable] = []
    size_bytes = 0
    for row in chosen:
        piece.append(row)
        size_bytes += row.disk_bytes
        if len(piece) == PIECE_ENTRIES or size_bytes >= PIECE_BYTES:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece


def _room_to_make(core: Core) -> int:
    """Bytes that lack of the headroom, where something is idle that may go for them."""
    free = core.root.free_bytes()
    with core.memory:
        short = core.ledger.shortfall(core.ledger.headroom(free), free)
        return short if core.idle_bytes() > 0 else 0
