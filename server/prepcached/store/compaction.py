"""Merging many small artifacts of a recipe into one, in the background.

Invariants:
    1. A merge changes no answer's samples: the new artifact has the same items, rows, costs and
       observed inputs. It appears, and its parts leave, in one transaction.
    2. The files of parts that are held stay until the last hold goes (removal.py, invariant 4).
    3. Nothing is evicted for a merge: without room it is put off; and without plenty, while parts are held,
       since they keep their place until their holders look again, and whoever fills needs it first.
    4. Sizes grow by tiers: only artifacts of one tier merge, so that a byte is written again a few
       times in its life (once a tier), however small the pieces came.
    5. Only artifacts of one owner and edition with equal observed inputs merge; pinned ones are left alone.
    6. A merge takes the place of its parts, and of a lower edition of all their items: of nothing else.
    7. Of the producers it keeps what they say alike, so that a purge by producer finds what it would have.
    8. A part that is lost goes, one that cannot be read waits for a while: the others merge without it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from prepcache import artifact, errors
from prepcached.store import durable, queries, removal, staging
from prepcached.store.commit import row_values
from prepcached.store.core import Core, io_told, log
from prepcached.store.integrity import lose
from prepcached.store.models import artifacts, producers, recipes

FANOUT = 8
"""Artifacts of one tier that make a merge; also the factor between tiers."""
TIER_BYTES = 1 << 20
"""The lowest tier ends here."""
LARGE_BYTES = 128 << 20
"""From here on an artifact is large enough to be left alone: a gather over a few is as fast as over one."""
MERGED_BYTES = 1 << 30
"""A merge makes at most so much: it has to fit beside its parts until they are gone."""
FREE_SHARE = 0.75
"""Of the cache's size, what must be free beside a merge of parts that are held."""
PUT_OFF_S = 30.0
"""A recipe whose parts found no room, or could not be written together, is not looked through each second."""
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
        self._refused: set[int] = set()  # ids of artifacts that do not merge, until the next start
        self._left_out: dict[int, tuple[int, float]] = {}  # parts that could not be read: recipe's id, when
        self._todo: set[int] | None = None  # ids of recipes to look at; None before the first look
        self._put_off: dict[int, float] = {}  # ids of recipes that did not merge, and when that was

    def some(self) -> bool:
        """Does one merge if there is one to do; whether it did."""
        if self._todo is None:
            self._todo = self._scattered_recipes()
        with self._core.memory:
            self._todo |= self._core.grown_recipes
            self._core.grown_recipes.clear()
        now = self._core.monotonic()
        self._take_up_again(now)
        for recipe_id in sorted(self._todo):
            if now - self._put_off.get(recipe_id, -inf) < PUT_OFF_S:
                continue
            self._put_off.pop(recipe_id, None)
            parts = self._next(recipe_id)
            if not parts:
                self._todo.discard(recipe_id)
                continue
            self._put_off[recipe_id] = now  # where it fails, too: the disk and other merges are let be
            with io_told("a merge failed"):
                if self._merge([part.id for part in parts]):
                    del self._put_off[recipe_id]
                    return True
        return False

    def _take_up_again(self, now: float) -> None:
        """Parts that were left out long enough ago."""
        assert self._todo is not None
        for part_id, (recipe_id, since) in list(self._left_out.items()):
            if now - since >= LEFT_OUT_S:
                del self._left_out[part_id]
                self._todo.add(recipe_id)

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

    def _next(self, recipe_id: int) -> list[Part]:
        """What to merge next of a recipe: of one owner and edition, with equal observed inputs."""
        statement = (
            sa.select(
                artifacts.c.id,
                artifacts.c.size_bytes,
                artifacts.c.owner,
                artifacts.c.observed,
                artifacts.c.edition,
            )
            .where(artifacts.c.recipe_id == recipe_id)
            .where(sa.not_(artifacts.c.is_pinned), artifacts.c.size_bytes < LARGE_BYTES)
            .order_by(artifacts.c.generation, artifacts.c.id)
            .limit(MAX_LOOK)
        )
        groups: dict[tuple[int, str | None, int], list[Part]] = {}
        with self._core.index.read() as conn:
            for part_id, size_bytes, owner, observed, edition in conn.execute(statement):
                if part_id not in self._refused and part_id not in self._left_out:
                    groups.setdefault((owner, observed, edition), []).append(Part(part_id, size_bytes))
        return max((plan(parts) for parts in groups.values()), key=len, default=[])

    def _merge(self, ids: Sequence[int]) -> bool:
        core = self._core
        rows = removal.rows_of(core, artifacts.c.id, ids)
        if len(rows) < FANOUT:
            return False
        size = sum(row.disk_bytes for row in rows)
        free, now = core.root.free_bytes(), core.monotonic()
        with core.memory:
            is_held = any(core.holds.is_held(row.digest, now) for row in rows)
            kept_free = int(core.ledger.limit(free) * FREE_SHARE) if is_held else 0
            if core.ledger.shortfall(size + kept_free, free) > 0:
                return False
        with contextlib.ExitStack() as stack:
            fds = self._open(rows, stack)
            if fds is None:
                return True
            try:
                rows, fds, headers = self._disjoint(rows, fds)
            except errors.ArtifactError as error:
                self._refuse(rows, fds, error)
                return True
            if len(rows) < FANOUT:
                return True
            if not stack.enter_context(removal.spare_room(core, size, kept_free)):
                return False  # who committed while the parts were read has taken it
            fd, path = stack.enter_context(durable.temporary(core.layout.tmp))
            try:
                artifact.merge(fds, fd, producer=self._producer(rows), headers=headers)
            except (errors.ArtifactError, OSError) as error:
                self._refuse(rows, fds, error)
                return True
            os.fchown(fd, -1, os.fstat(fds[0]).st_gid)
            staging.mark(fd, *self._whose(rows[0].id))
            os.fchmod(fd, 0o440)
            os.fsync(fd)
            digest = staging.hash_file(fd, core.check_not_stopping)
            with core.memory:
                core.counters.merged_bytes += sum(row.size_bytes for row in rows)
            header, status = artifact.read_header(fd), os.fstat(fd)
            with core.writer:
                return self._swap(rows, path, header, digest, status)

    def _producer(self, rows: Sequence[queries.Doomable]) -> dict[str, Any]:
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

    def _open(self, rows: Sequence[queries.Doomable], stack: contextlib.ExitStack) -> list[int] | None:
        """The parts' descriptors; None when one is gone (evicted, purged, lost) or unreadable: look again."""
        fds = []
        for row in rows:
            try:
                try:
                    fd = os.open(self._core.layout.object_path(row.digest.hex()), os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    lose(self._core, row)
                    return None
            except OSError as error:
                self._leave(row, error)
                return None
            stack.callback(os.close, fd)
            fds.append(fd)
        return fds

    def _disjoint(
        self, rows: Sequence[queries.Doomable], fds: Sequence[int]
    ) -> tuple[list[queries.Doomable], list[int], list[artifact.Header]]:
        """The parts without those that hold an item of an earlier one, which are left alone from now on.

        Raises:
            ArtifactError: a part is bad. Its header alone does not tell, and the merged file would have a
                digest of its own, by which all is right.
        """
        kept_rows, kept_fds, headers = [], [], []
        seen: np.ndarray[Any, Any] = np.empty(0, _ITEM)
        for row, fd in zip(rows, fds, strict=True):
            self._core.foreground.give_way()
            try:
                header = artifact.check(fd)
                if (found := staging.hash_file(fd, self._core.check_not_stopping)) != row.digest.hex():
                    raise errors.ArtifactError(f"{row.digest.hex()}: its bytes make {found}")
            except OSError as error:
                self._leave(row, error)
                continue
            items = np.ascontiguousarray(header.item_digests).view(_ITEM).ravel()
            if np.isin(items, seen).any():
                self._refused.add(row.id)
                continue
            seen = np.concatenate([seen, items])
            kept_rows.append(row)
            kept_fds.append(fd)
            headers.append(header)
        return kept_rows, kept_fds, headers

    def _leave(self, row: queries.Doomable, error: OSError) -> None:
        """A part cannot be read: whether it is bad cannot be told."""
        log.error("cannot read artifact %s: %s; it is left out of merges for now", row.digest.hex(), error)
        self._left_out[row.id] = row.recipe_id, self._core.monotonic()

    def _refuse(self, rows: Sequence[queries.Doomable], fds: Sequence[int], error: Exception) -> None:
        """Removes damaged parts; if none is, they just do not go together: leave them alone.

        Raises:
            OSError: the error, where all parts can be read: it is the merged file's.
        """
        core = self._core
        bad = []
        unreadable = 0
        for row, fd in zip(rows, fds, strict=True):
            try:
                if staging.hash_file(fd, core.check_not_stopping) != row.digest.hex():
                    bad.append(row)
            except OSError as failure:
                self._leave(row, failure)
                unreadable += 1
        if isinstance(error, OSError) and not bad and not unreadable:
            raise error
        log.warning("%d artifacts do not merge (%s); %d of them are bad", len(rows), error, len(bad))
        if not bad and not unreadable:
            self._refused.update(row.id for row in rows)
        with core.writer:
            still = removal.rows_of(core, artifacts.c.id, [row.id for row in bad])
            removal.remove_damaged(core, still, str(error))

    def _whose(self, artifact_id: int) -> tuple[int, str]:
        """The owner and the scope of an artifact; root's and shared, where it is gone."""
        statement = sa.select(artifacts.c.owner, recipes.c.scope).where(artifacts.c.id == artifact_id)
        with self._core.index.read() as conn:
            row = conn.execute(statement.join(recipes, recipes.c.id == artifacts.c.recipe_id)).one_or_none()
        return (0, "") if row is None else (row.owner, row.scope)

    def _swap(
        self,
        rows: Sequence[queries.Doomable],
        path: str,
        header: artifact.Header,
        digest: str,
        status: os.stat_result,
    ) -> bool:
        """Places the merged file and swaps the rows. Call it with the writer lock."""
        core = self._core
        there = removal.rows_of(core, artifacts.c.id, [row.id for row in rows])
        if len(there) != len(rows) or any(row.is_pinned for row in there):
            return True  # something was evicted, purged or pinned meanwhile: look again
        twins = removal.rows_of(core, artifacts.c.digest, [bytes.fromhex(digest)])
        is_there = bool(twins)
        of_recipe = artifacts.c.recipe_id == there[0].recipe_id
        key = bytes.fromhex(header.key)
        same_key = removal.rows_of(core, artifacts.c.key, [key], of_recipe)
        older = [row for row in same_key if not is_there]
        is_anothers = any(twin.recipe_id != there[0].recipe_id for twin in twins)
        if is_anothers or any(row.edition >= header.edition for row in older):
            self._refused.update(row.id for row in rows)  # their items were made anew, all in one artifact
            return True
        disk_bytes = durable.disk_bytes(status)
        try:
            if not is_there:
                # Were the merged file to survive a crash without its row, it must not be taken
                # for a commit: its items are in its parts. So it is doomed until its row spares it.
                with core.index.write() as conn:
                    queries.doom(conn, [bytes.fromhex(digest)])
                durable.place(path, core.layout.object_path(digest))
            with core.index.write() as conn:
                oldest, newest, owner = conn.execute(_span_of([row.id for row in there])).one()
                queries.delete(conn, [*there, *older])
                recipe_id = there[0].recipe_id
                values = {
                    **row_values(header, digest, status.st_size, disk_bytes),
                    "recipe_id": recipe_id,
                    "generation": queries.raise_generation(conn, recipe_id, is_removal=True),
                    "owner": owner,
                    "created_at": oldest,
                    "used_at": newest,
                    "is_pinned": any(row.is_pinned for row in older),
                }
                if not is_there:
                    queries.add_artifact(conn, values, header.producer)
        except BaseException:
            removal.unlink_if_absent(core, [digest])
            raise
        with core.memory:
            core.counters.merges += 1
            if not is_there:
                removal.account_new(core, values)
            if values["is_pinned"]:
                core.holds.pin(bytes.fromhex(digest), True)
        removal.finish(core, [*there, *older], may_linger=True)
        return True


def _span_of(ids: Sequence[int]) -> sa.Select[Any]:
    """(first created, last used, owner) of some rows."""
    columns = (
        sa.func.min(artifacts.c.created_at),
        sa.func.max(artifacts.c.used_at),
        sa.func.max(artifacts.c.owner),
    )
    return sa.select(*columns).where(artifacts.c.id.in_(ids))
