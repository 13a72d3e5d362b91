"""Merging many small artifacts of a recipe into one, in the background.

Invariants:
    1. A merge changes no answer's samples: the new artifact has the same items, rows, costs and
       observed inputs. It appears, and its parts leave, in one transaction.
    2. Only artifacts that nobody holds merge. A job that looks them up just then may find their files gone;
       the generation has risen, and whoever grants leases was told so before they went: it looks again.
    3. Nothing is evicted for a merge: without room for what it may come to (MERGED_SHARE), or where its
       owner's quota would not hold it once the parts are gone, it is put off.
    4. Sizes grow by tiers: only artifacts of one tier merge, so that a byte is written again a few
       times in its life (once a tier), however small the pieces came.
    5. Only artifacts of one owner and edition with equal observed inputs merge; pinned ones are left alone.
    6. A merge takes the place of its parts, and of nothing else: where its key is taken, it is given up.
    7. Of the producers it keeps what they say alike, so that a purge by producer finds what it would have.
    8. A part that is lost or damaged goes; one that cannot be read, or holds an item of another, is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from prepcache import artifact, errors
from prepcached.store import durable, queries, removal, room, staging
from prepcached.store.commit import row_values
from prepcached.store.core import Core, io_told, log
from prepcached.store.integrity import lose
from prepcached.store.models import artifacts, producers, recipes
from prepcached.store.queries import Doomable

FANOUT = 8
"""Artifacts of one tier that make a merge; also the factor between tiers."""
TIER_BYTES = 1 << 20
"""The lowest tier ends here."""
LARGE_BYTES = 128 << 20
"""From here on an artifact is large enough to be left alone: a gather over a few is as fast as over one."""
MERGED_BYTES = 1 << 30
"""A merge makes at most so much: it has to fit beside its parts until they are gone."""
MERGED_SHARE = 8
"""A merged file may be 1/8 larger than its parts: each of its large columns begins at a multiple of 2 MiB."""
PUT_OFF_S = 30.0
"""A recipe whose parts are held, found no room, or could not be written together is looked at again after
this."""
LEFT_OUT_S = 600.0
"""A part that could not be read is tried again after so long: what it met may have passed."""
MAX_PARTS = 128
"""Their headers are in memory together, 10 KiB each."""
MAX_LOOK = 20_000
"""Artifacts of a recipe that are looked at for one merge; a recipe with more has its oldest merged first."""

_ITEM = np.dtype("V32")


class Part(NamedTuple):
    """A live artifact that may be merged."""

    id: int
    size_bytes: int


class _Whose(NamedTuple):
    """What a merged artifact takes over from its parts."""

    created_at: float
    used_at: float
    owner: int
    scope: str
    recipe: bytes


def _pairs(producer: str) -> Iterable[tuple[str, str]]:
    """The members of a producer, their values as JSON, so that 1 and true differ."""
    return ((name, json.dumps(value, sort_keys=True)) for name, value in json.loads(producer).items())


def tier(size_bytes: int) -> int:
    """0 below TIER_BYTES, one more for each factor of FANOUT."""
    number = 0
    while size_bytes >= TIER_BYTES:
        size_bytes //= FANOUT
        number += 1
    return number


def plan(parts: Iterable[Part]) -> list[Part]:
    """The parts to merge next, oldest first, or none. Pure.

    The fullest of the tiers that have at least FANOUT parts, as many of them as fit in MERGED_BYTES.
    """
    tiers: dict[int, list[Part]] = {}
    for part in parts:
        if part.size_bytes < LARGE_BYTES:
            tiers.setdefault(tier(part.size_bytes), []).append(part)
    best: list[Part] = []
    for found in tiers.values():
        chosen, total = [], 0
        for part in found[:MAX_PARTS]:
            if total + part.size_bytes > MERGED_BYTES:
                break
            chosen.append(part)
            total += part.size_bytes
        if len(chosen) >= FANOUT and len(chosen) > len(best):
            best = chosen
    return best


class Merger:
    """Finds and does one merge after another. One thread calls `some`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._todo: set[int] | None = None  # ids of recipes to look at; None before the first look
        self._put_off: dict[int, float] = {}  # ids of recipes that did not merge, and until when
        self._left_out: dict[int, float] = {}  # ids of artifacts that do not merge, and until when

    def some(self) -> bool:
        """Does one merge if there is one to do; whether it did."""
        if self._todo is None:
            self._todo = self._scattered_recipes()
        with self._core.memory:
            self._todo |= self._core.grown_recipes
            self._core.grown_recipes.clear()
            if self._core.has_ended_session:
                self._put_off.clear()  # what it held is idle now
                self._core.has_ended_session = False
        now = self._core.monotonic()
        self._left_out = {part: until for part, until in self._left_out.items() if now < until}
        for recipe_id in sorted(self._todo):
            if now < self._put_off.get(recipe_id, now):
                continue
            ids = self._next(recipe_id)
            if ids is None:
                self._todo.discard(recipe_id)
                self._put_off.pop(recipe_id, None)
                continue
            self._put_off[recipe_id] = now + PUT_OFF_S  # where it fails, too: the disk and others are let be
            with io_told("a merge failed"):
                if ids and self._merge(ids):
                    del self._put_off[recipe_id]
                    return True
        return False

    def _scattered_recipes(self) -> set[int]:
        """Ids of recipes with enough small artifacts: one pass over the index, at the first call."""
        statement = (
            sa.select(artifacts.c.recipe_id)
            .where(artifacts.c.size_bytes < LARGE_BYTES)
            .group_by(artifacts.c.recipe_id)
            .having(sa.func.count() >= FANOUT)
        )
        with self._core.index.read() as conn:
            return set(conn.execute(statement).scalars())

    def _next(self, recipe_id: int) -> list[int] | None:
        """Ids of what to merge next of a recipe; none of what is held or left out just now.

        Returns:
            None where nothing would merge either if all of it were idle and readable.
        """
        alike = artifacts.c.owner, artifacts.c.observed, artifacts.c.edition
        statement = (
            sa.select(artifacts.c.id, artifacts.c.size_bytes, artifacts.c.digest, *alike)
            .where(artifacts.c.recipe_id == recipe_id)
            .where(sa.not_(artifacts.c.is_pinned), artifacts.c.size_bytes < LARGE_BYTES)
            .order_by(artifacts.c.generation, artifacts.c.id)
            .limit(MAX_LOOK)
        )
        is_held = room.is_held_now(self._core)
        all_parts: dict[Any, list[Part]] = {}
        idle: dict[Any, list[Part]] = {}
        with self._core.index.read() as conn:
            for part_id, size_bytes, digest, *of in conn.execute(statement):
                if self._left_out.get(part_id) == inf:
                    continue
                all_parts.setdefault(tuple(of), []).append(Part(part_id, size_bytes))
                if part_id not in self._left_out and not is_held(digest):
                    idle.setdefault(tuple(of), []).append(Part(part_id, size_bytes))
        if not any(plan(parts) for parts in all_parts.values()):
            return None
        return [part.id for part in max((plan(parts) for parts in idle.values()), key=len, default=[])]

    def _merge(self, ids: Sequence[int]) -> bool:
        """Whether it merged, or found why not, so that the recipe is to be looked at again."""
        core = self._core
        rows = removal.rows_of(core, artifacts.c.id, ids)
        if len(rows) < FANOUT:
            return True
        with contextlib.ExitStack() as stack:
            size_bytes = sum(row.disk_bytes for row in rows)
            more_bytes = size_bytes // MERGED_SHARE
            there = room.spare_room(core, size_bytes + more_bytes, rows[0].owner, more_bytes)
            if not stack.enter_context(there):
                return False
            rows, fds, headers = self._whole(rows, stack)
            with core.memory:
                core.counters.merged_bytes += sum(row.size_bytes for row in rows)
            if len(rows) < FANOUT:
                return True
            whose = self._whose(rows)
            fd, path = stack.enter_context(durable.temporary(core.layout.tmp))
            try:
                artifact.merge(fds, headers, fd, producer=self._producer(rows))
            except errors.ArtifactError as error:
                log.warning("%d artifacts do not merge (%s)", len(rows), error)
                self._leave(rows)
                return True
            os.fchown(fd, -1, os.fstat(fds[0]).st_gid)
            staging.mark(fd, whose.owner, whose.scope)
            os.fchmod(fd, 0o440)
            os.fsync(fd)
            digest = staging.hash_file(fd, core.check_not_stopping)
            status = os.fstat(fd)
            header = artifact.read_header(fd)
            with core.writer:
                values = row_values(header, digest, status.st_size)
                return self._swap(rows, path, values, header.producer)

    def _producer(self, rows: Sequence[Doomable]) -> dict[str, Any]:
        """What the producers of all parts say alike (script, host, user), and how many parts there are."""
        statement = (
            sa.select(producers.c.json)
            .distinct()
            .join(artifacts, artifacts.c.producer_id == producers.c.id)
            .where(artifacts.c.id.in_([row.id for row in rows]))
        )
        with self._core.index.read() as conn:
            said = [set(_pairs(text)) for text in conn.execute(statement).scalars()]
        alike = set.intersection(*said) if said else set()
        return {**{name: json.loads(value) for name, value in sorted(alike)}, "merged": len(rows)}

    def _whole(
        self, rows: Sequence[Doomable], stack: contextlib.ExitStack
    ) -> tuple[list[Doomable], list[int], list[artifact.Header]]:
        """The parts that can be merged, open. Every byte is read: a merged file has a digest of its own, by
        which all would be right."""
        core = self._core
        kept, fds, headers = [], [], []
        seen: np.ndarray[Any, Any] = np.empty(0, _ITEM)
        for row in rows:
            core.foreground.give_way()
            try:
                fd = os.open(core.layout.object_path(row.digest.hex()), os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                header = artifact.check(fd)
                if (found := staging.hash_file(fd, core.check_not_stopping)) != row.digest.hex():
                    raise errors.ArtifactError(f"its digest is {found}")
            except FileNotFoundError:
                lose(core, row)
                continue
            except OSError as error:
                log.error("cannot read artifact %s: %s; it is not merged for now", row.digest.hex(), error)
                self._leave([row], core.monotonic() + LEFT_OUT_S)
                continue
            except errors.ArtifactError as error:
                with core.writer:
                    removal.remove_damaged(core, removal.rows_of(core, artifacts.c.id, [row.id]), str(error))
                continue
            items = np.ascontiguousarray(header.item_digests).view(_ITEM).ravel()
            if np.isin(items, seen).any():
                self._leave([row])
                continue
            seen = np.concatenate([seen, items])
            kept.append(row)
            fds.append(fd)
            headers.append(header)
        return kept, fds, headers

    def _leave(self, rows: Iterable[Doomable], until: float = inf) -> None:
        self._left_out.update((row.id, until) for row in rows)

    def _whose(self, rows: Sequence[Doomable]) -> _Whose:
        alike = artifacts.c.owner, recipes.c.scope, recipes.c.digest
        last = (sa.func.max(one) for one in (artifacts.c.used_at, *alike))
        statement: sa.Select[Any] = sa.select(sa.func.min(artifacts.c.created_at), *last)
        statement = statement.join_from(artifacts, recipes, recipes.c.id == artifacts.c.recipe_id)
        with self._core.index.read() as conn:
            found = conn.execute(statement.where(artifacts.c.id.in_([row.id for row in rows]))).one()
            return _Whose(*found)

    def _swap(
        self, rows: Sequence[Doomable], path: str, values: dict[str, Any], producer: Mapping[str, Any]
    ) -> bool:
        """Places the merged file and swaps the rows. Call it with the writer lock."""
        core = self._core
        there = removal.rows_of(core, artifacts.c.id, [row.id for row in rows])
        is_held = room.is_held_now(core)
        if len(there) != len(rows) or any(row.is_pinned or is_held(row.digest) for row in there):
            return True  # something was evicted, purged, pinned or looked up meanwhile: look again
        recipe_id, digest = there[0].recipe_id, values["digest"]
        taken = removal.rows_of(core, artifacts.c.digest, [digest])
        taken += removal.rows_of(core, artifacts.c.key, [values["key"]], artifacts.c.recipe_id == recipe_id)
        if taken:
            self._leave(rows)
            return True
        whose = self._whose(rows)
        try:
            # Were the merged file to survive a crash without its row, it must not be taken
            # for a commit: its items are in its parts. So it is doomed until its row spares it.
            with core.index.write() as conn:
                queries.doom(conn, [digest])
            durable.place(path, core.layout.object_path(digest.hex()))
            with core.index.write() as conn:
                queries.delete(conn, there)
                generation = queries.raise_generation(conn, recipe_id, is_removal=True)
                values = {
                    **values,
                    "recipe_id": recipe_id,
                    "generation": generation,
                    "owner": whose.owner,
                    "created_at": whose.created_at,
                    "used_at": whose.used_at,
                    "is_pinned": False,
                }
                queries.add_artifact(conn, values, producer)
        except BaseException:
            removal.unlink_if_absent(core, [digest.hex()])
            raise
        with core.memory:
            core.counters.merges += 1
            removal.account_new(core, values)
        core.on_merged(whose.recipe.hex() + whose.scope, generation)
        removal.finish(core, there)
        return True
