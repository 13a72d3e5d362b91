"""Merging many small artifacts of a recipe into one, in the background.

Invariants:
    1. A merge changes no answer's samples: the new artifact has the same items, rows, costs and
       observed inputs. It appears, and its parts leave, in one transaction.
    2. Only artifacts that nobody holds or pinned merge, and only those of one owner and edition with equal
       observed inputs. Of their producers it keeps what they say alike.
    3. Nothing is evicted for a merge: without room for what it may come to (MERGED_SHARE), or where its
       owner's quota would not hold it once the parts are gone, it is put off. While it is written, commits
       take room as if it were not there: the store may exceed its budget by that much, and fall below the
       disk's minimum by twice as much.
    4. Sizes grow by tiers: only artifacts of one tier merge, so that a byte is written again a few
       times in its life (once a tier), however small the pieces came.
    5. A merge takes the place of its parts, and of nothing else: where its key is taken, it is given up.
    6. Every byte that is merged was read and had the digest that it must have: a damaged part goes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from prepcache import artifact, errors
from prepcache.artifact import writer
from prepcached.store import durable, eviction, queries, staging
from prepcached.store.commit import as_items, row_values
from prepcached.store.core import Core, io_told, log
from prepcached.store.db import artifacts, recipes
from prepcached.store.integrity import read_whole
from prepcached.store.queries import Doomable

FANOUT = 8
"""Artifacts of one tier that make a merge; also the factor between tiers."""
TIER_BYTES, LARGE_BYTES = 1 << 20, 128 << 20
"""The lowest tier ends at the one; from the other on an artifact is left alone."""
MANY_ITEMS = staging.MAX_ITEMS // FANOUT
"""An artifact with more is left alone, too: FANOUT of them would have more than one artifact may have."""
MERGED_BYTES, MERGED_SHARE = 1 << 30, 8
"""A merge makes at most so much, and 1/8 more than its parts: large columns begin at a multiple of 2 MiB."""
PUT_OFF_S = 30.0
"""A recipe whose parts are held, or found no room, is looked at again after this."""
MAX_PARTS, MAX_LOOK = 128, 20_000
"""Of one merge, and artifacts of a recipe that are looked at for it, the oldest first."""


class Part(NamedTuple):
    id: int
    size_bytes: int
    items: int = 1
    alike: tuple[Any, ...] = ()


def tier(size_bytes: int) -> int:
    number = 0
    while size_bytes >= TIER_BYTES:
        size_bytes //= FANOUT
        number += 1
    return number


def plan(parts: Iterable[Part]) -> list[Part]:
    """The parts to merge next, oldest first, or none: of the fullest tier that has at least FANOUT parts, as
    many as fit in MERGED_BYTES and have no more than MAX_ITEMS items. Pure."""
    tiers: dict[tuple[Any, int], list[Part]] = {}
    for part in parts:
        if part.size_bytes < LARGE_BYTES and part.items <= MANY_ITEMS:
            tiers.setdefault((part.alike, tier(part.size_bytes)), []).append(part)
    best: list[Part] = []
    for found in tiers.values():
        chosen, total, items = [], 0, 0
        for part in found[:MAX_PARTS]:
            total += part.size_bytes
            items += part.items
            if total > MERGED_BYTES or items > staging.MAX_ITEMS:
                break
            chosen.append(part)
        if len(chosen) >= FANOUT and len(chosen) > len(best):
            best = chosen
    return best


class Merger:
    """Finds and does one merge after another. One thread calls `some`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._due: dict[int, float] | None = None  # ids of recipes, when to look at them; None at first
        self._left_out: set[int] = set()  # ids of artifacts that do not merge, until the next start

    def some(self) -> bool:
        """Does one merge if there is one to do; whether it did."""
        core, now = self._core, self._core.monotonic()
        if self._due is None:
            of = artifacts.c.recipe_id
            with core.index.read() as conn:
                scattered = sa.select(of).group_by(of).having(sa.func.count() >= FANOUT)
                self._due = dict.fromkeys(conn.execute(scattered).scalars(), now)
        with core.memory:
            grown, core.grown_recipes = core.grown_recipes, set()
        for recipe_id in grown:
            self._due.setdefault(recipe_id, now)
        for recipe_id in sorted(one for one, at in self._due.items() if at <= now):
            ids = self._next(recipe_id)
            if ids is None:
                del self._due[recipe_id]
                continue
            self._due[recipe_id] = now + PUT_OFF_S  # where it fails, too, so as not to keep the disk busy
            with io_told("a merge failed"):
                if ids and self._merge(ids):
                    self._due[recipe_id] = now
                    return True
        return False

    def _next(self, recipe_id: int) -> list[int] | None:
        """Ids of what to merge next of a recipe, none of it held just now; None where nothing would merge
        if all of it were idle, either."""
        columns = "digest", "id", "size_bytes", "items", "owner", "edition", "observed"
        statement = (
            sa.select(*(artifacts.c[name] for name in columns))
            .where(artifacts.c.recipe_id == recipe_id)
            .where(sa.not_(artifacts.c.is_pinned), artifacts.c.size_bytes < LARGE_BYTES)
            .order_by(artifacts.c.generation, artifacts.c.id)
            .limit(MAX_LOOK)
        )
        is_held = eviction.is_held_now(self._core)
        with self._core.index.read() as conn:
            rows = [row for row in conn.execute(statement) if row.id not in self._left_out]
        parts = {row[0]: Part._make([*row[1:4], tuple(row[4:])]) for row in rows}
        idle = [part for digest, part in parts.items() if not is_held(digest)]
        return [part.id for part in plan(idle)] if plan(parts.values()) else None

    def _merge(self, ids: Sequence[int]) -> bool:
        """Whether it merged, or found why not, so that the recipe is to be looked at again."""
        core = self._core
        rows = eviction.rows_of(core, artifacts.c.id, ids)
        if len(rows) < FANOUT:
            return True
        size_bytes = sum(row.disk_bytes for row in rows)
        need_bytes = size_bytes + size_bytes // MERGED_SHARE
        with contextlib.ExitStack() as stack:
            free = core.disk.free_bytes()
            with core.memory:
                short = core.ledger.shortfall(need_bytes, free)
                if max(short, core.quotas.shortfall(rows[0].owner, need_bytes - size_bytes)) > 0:
                    return False
            core.merging_bytes = need_bytes
            stack.callback(setattr, core, "merging_bytes", 0)
            fds, headers = self._opened(rows, stack)
            with core.memory:
                core.counters.merged_bytes += sum(row.size_bytes for row in rows)
            if len(fds) < len(rows):
                return True
            with core.index.read() as conn:
                of = sa.select(recipes.c.digest, recipes.c.scope).where(recipes.c.id == rows[0].recipe_id)
                recipe, scope = conn.execute(of).one()
            fd, path = stack.enter_context(durable.temporary(core.layout.tmp))
            said = headers[0].producer.items()
            alike = {k: v for k, v in said if all(one.producer.get(k) == v for one in headers)}
            try:
                writer.merge(fds, headers, fd, producer={**alike, "merged": len(rows)})
            except errors.ArtifactError as error:
                log.warning("%d artifacts do not merge (%s)", len(rows), error)
                self._left_out.update(ids)
                return True
            os.fchown(fd, -1, os.fstat(fds[0]).st_gid)
            staging.mark(fd, rows[0].owner, scope)
            os.fchmod(fd, 0o440)
            os.fsync(fd)
            digest = staging.hash_file(fd, core.check_not_stopping)
            header = artifact.read_header(fd)
            values = row_values(header, digest, os.fstat(fd).st_size)
            with core.writer:
                self._swap(rows, path, values, header.producer, recipe.hex() + scope)
        return True

    def _opened(
        self, rows: Sequence[Doomable], stack: contextlib.ExitStack
    ) -> tuple[list[int], list[artifact.Header]]:
        """The parts, open and read; without one that has an item of another, or that fails, which goes if it
        is lost or damaged."""
        core = self._core
        fds, headers = [], []
        seen = as_items()
        for row in rows:
            try:
                fd = os.open(core.layout.object_path(row.digest.hex()), os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                header = artifact.check(fd, max_items=staging.MAX_ITEMS)
                if staging.hash_file(fd, core.check_not_stopping) != row.digest.hex():
                    raise errors.ArtifactError("its digest is not its name")
            except (OSError, errors.ArtifactError):
                self._left_out.add(row.id)
                read_whole(core, row, core.check_not_stopping)
            else:
                items = as_items(header)
                if np.isin(items, seen).any():
                    self._left_out.add(row.id)
                    continue
                seen = np.concatenate([seen, items])
                fds.append(fd)
                headers.append(header)
        return fds, headers

    def _swap(
        self, rows: Sequence[Doomable], path: str, values: dict[str, Any], producer: Any, recipe: str
    ) -> None:
        """Places the merged file and swaps the rows, unless a part was removed, pinned or held meanwhile."""
        core = self._core
        there = eviction.rows_of(core, artifacts.c.id, [row.id for row in rows])
        is_held = eviction.is_held_now(core)
        if len(there) != len(rows) or any(row.is_pinned or is_held(row.digest) for row in there):
            return
        recipe_id, digest = there[0].recipe_id, values["digest"]
        taken = eviction.rows_of(core, artifacts.c.digest, [digest])
        taken += eviction.rows_of(core, artifacts.c.key, [values["key"]], artifacts.c.recipe_id == recipe_id)
        if taken:
            self._left_out.update(row.id for row in rows)
            return
        try:
            # Were the merged file to survive a crash without its row, it must not be taken
            # for a commit: its items are in its parts. So it is doomed until its row spares it.
            with core.index.write() as conn:
                queries.doom(conn, [digest])
            durable.place(path, core.layout.object_path(digest.hex()))
            with core.index.write() as conn:
                queries.delete(conn, there)
                values |= {
                    "recipe_id": recipe_id,
                    "generation": queries.raise_generation(conn, recipe_id, is_removal=True),
                    "owner": there[0].owner,
                    "created_at": min(row.created_at for row in there),
                    "used_at": max(row.used_at for row in there),
                    "is_pinned": False,
                }
                queries.add_artifacts(conn, [(values, producer)])
        except BaseException:
            eviction.unlink_if_absent(core, digest.hex())
            raise
        with core.memory:
            core.counters.merges += 1
            eviction.account_new(core, values)
        core.on_merged(recipe, values["generation"])
        eviction.finish(core, there)
