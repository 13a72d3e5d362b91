"""Committing staged files: NOTE [ Commit order ] in durable.py, step by step.

Invariants:
    1. What an artifact is (recipe, key, items, rows, cost) is read from its header, never from the request.
    2. Placing, inserting and raising the generation happen under the writer lock, the last two in one
       transaction. When that fails, the placed file goes again, unless it cannot be told whether the row is
       there: then the next start decides.
    3. Of artifacts of a recipe that share an item, only those of the highest edition stay (`_replaced`).
    4. Committing the same bytes again succeeds with the generation that they came with: a newer one would
       make the client skip what others committed in between. Their file is placed again, since it may have
       been lost. The same key with other bytes replaces the old artifact.
    5. What replaces a pinned artifact is pinned.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from prepcache import artifact, errors
from prepcache.artifact import Header
from prepcache.artifact.header import WAY_OUT
from prepcache.digests import Digest
from prepcache.protocol import wire
from prepcache.protocol.units import size_text
from prepcache.protocol.wire import ArtifactRef, Committed, StagedFile, chunks_of
from prepcached.store import durable, eviction, queries, scopes, staging
from prepcached.store.core import Core, io_told, log, no_space_declined
from prepcached.store.db import artifacts
from prepcached.store.queries import Doomable
from prepcached.store.staging import Taken

AllowedItems = Callable[["np.ndarray[Any, np.dtype[np.uint8]]"], "np.ndarray[Any, np.dtype[np.bool_]]"]
"""uint8[n, 32] item digests -> bool[n]: which of them the committer's leases name."""
MAX_OBSERVED_BYTES = wire.MAX_ANSWER_BYTES // 2
"""Of all chunks of a recipe, and their names, which one answer to a look-up has."""
Items = np.ndarray[Any, np.dtype[Any]]
"""An item table: one digest an element."""
_ITEM = np.dtype("V32")


def commit(
    core: Core,
    recipe: str,
    staged: StagedFile,
    *,
    owner_uid: int,
    allowed_items: AllowedItems | None = None,
    holder: str | None = None,
    hashed: Digest | None = None,
) -> Committed:
    """Takes a staged file into the store (NOTE [ Commit order ] in durable.py).

    Args:
        owner_uid: whose file it must be, and who owns the entry.
        allowed_items: which items the leases name; None allows all.
        holder: the session that takes a hold on the new artifact.
        hashed: of a file that the daemon itself has written: its digest.

    Raises:
        StagedFileRefused, TooLarge, UnknownRecipe, Declined, StoreError: nothing was committed.
    """
    with (
        no_space_declined(core),
        io_told("a commit failed"),
        _checked(core, staged, recipe, owner_uid, allowed_items, hashed) as file,
    ):
        sharing: dict[int, bool] = {}
        _replaced(core, recipe, file, sharing)  # the lock is not held while thousands of headers are read
        with core.writer:
            generation = _commit(core, recipe, file, owner_uid, holder, sharing)
    header, items = file.header, len(file.header.item_digests)
    observed = tuple(Digest(chunk.name) for chunk in chunks_of(header.inputs))
    of = header.rows, header.cost_s, observed, header.edition
    return Committed(generation, ArtifactRef(header.key, file.digest, file.size_bytes, items, *of))


@contextlib.contextmanager
def _checked(
    core: Core,
    staged: StagedFile,
    recipe: str,
    owner_uid: int,
    allowed_items: AllowedItems | None,
    hashed: Digest | None,
) -> Iterator[Taken]:
    """One staged file, hashed, with room reserved for it and for a copy. Its header is read first: what is no
    artifact, or not what was leased, makes no room and is not copied."""
    with staging.opened(core.layout, staged, owner_uid) as (fd, status), core.staged_area.busy(staged.name):
        _check_items(staged.name, staging.header_of(fd, staged), recipe, allowed_items)
        core.look_at_staging()
        size_bytes = max(durable.disk_bytes(status), status.st_size)
        is_copied = status.st_uid != os.geteuid()
        with (
            eviction.room(core, size_bytes, owner_uid, placed_bytes=durable.disk_bytes(status)),
            eviction.room(core, size_bytes) if is_copied else contextlib.nullcontext(),
            staging.taken(core.layout, staged, fd, owner_uid, scopes.scope_of(recipe), hashed) as file,
        ):
            _check_items(file.name, file.header, recipe, allowed_items)
            yield file


def _check_items(name: str, header: Header, recipe: str, allowed_items: AllowedItems | None) -> None:
    """Called twice: before any room is made, and with the header of what is kept."""
    if header.recipe != scopes.digest(recipe):
        raise errors.StagedFileRefused(
            f"the staged file {name} is of recipe {header.recipe}, not of {scopes.digest(recipe)}", name=name
        )
    foreign = header.item_digests[:0]
    if allowed_items is not None:
        foreign = header.item_digests[~allowed_items(header.item_digests)]
    if len(foreign):
        raise errors.StagedFileRefused(
            f"the staged file {name} holds {len(foreign)} items that its leases do not name, the first "
            f"{foreign[0].tobytes().hex()}",
            name=name,
            items=[digest.tobytes().hex() for digest in foreign[:16]],
        )


def _commit(
    core: Core, recipe: str, file: Taken, owner_uid: int, holder: str | None, sharing: dict[int, bool]
) -> int:
    digest, key = bytes.fromhex(file.digest), bytes.fromhex(file.header.key)
    with core.index.read() as conn:
        row = queries.recipe(conn, recipe)
        if row is None:
            raise errors.UnknownRecipe(
                f"recipe {scopes.digest(recipe)} is not registered; resolve with register first",
                recipe=scopes.digest(recipe),
            )
        known = queries.doomable_in(conn, artifacts.c.digest, [digest])
        of_key = queries.doomable_in(conn, artifacts.c.key, [key], artifacts.c.recipe_id == row.id)
    if any(r.recipe_id != row.id for r in known):
        raise errors.Declined("the same artifact is another user's entry, and users are isolated")
    replaced = _replaced(core, recipe, file, sharing)
    values = None
    older = replaced
    if not known:
        older = [*of_key, *(r for r in replaced if r not in of_key)]
        now = core.clock()
        values = row_values(file.header, file.digest, file.size_bytes)
        values |= {"recipe_id": row.id, "owner": owner_uid, "created_at": now, "used_at": now}
        values["is_pinned"] = any(r.is_pinned for r in older)
    generation = _place_and_insert(core, row, file, values, older)
    eviction.finish(core, older)
    if file.is_copy:
        try:
            core.staged_area.unlink(file.name)
        except OSError as error:  # the commit is done
            log.error("cannot unlink the staged file %s: %s; it goes with its session", file.name, error)
    held = [(r.digest, r.disk_bytes, r.is_pinned) for r in known]
    with core.memory:
        if values is not None:
            held = [(digest, values["disk_bytes"], values["is_pinned"])]
            eviction.account_new(core, values)
        core.counters.commits += 1
        if holder is not None:
            core.holds.take(holder, held, core.monotonic())
    return generation


def _replaced(core: Core, recipe: str, file: Taken, sharing: dict[int, bool]) -> list[Doomable]:
    """The artifacts of lower editions that share an item with this file; Declined where one of a higher
    edition does. `sharing` keeps, by row id, which do: a header is read once."""
    edition = file.header.edition
    with core.index.read() as conn:
        row = queries.recipe(conn, recipe)
        is_other = sa.or_(artifacts.c.edition < edition, artifacts.c.edition > edition)  # by the index
        others = queries.doomable_in(conn, artifacts.c.recipe_id, [row.id] if row else [], is_other)
    items = set(as_items(file.header).tolist()) if others else set()
    for other in others:
        if other.id not in sharing:
            sharing[other.id] = not items.isdisjoint(items_of(core, other).tolist())
    found = [other for other in others if sharing[other.id]]
    if any(other.edition > edition for other in found):
        raise errors.Declined("a refresh has replaced these items meanwhile")
    return found


def as_items(header: Header | None = None) -> Items:
    if header is None:
        return np.empty(0, _ITEM)
    return np.ascontiguousarray(header.item_digests).view(_ITEM).ravel()


def items_of(core: Core, row: Doomable) -> Items:
    """The item table of an artifact; none where it is lost or damaged, OSError where that cannot be told."""
    try:
        with open(core.layout.object_path(row.digest.hex()), "rb") as file:
            return as_items(artifact.read_header(file.fileno()))
    except (FileNotFoundError, errors.ArtifactError):
        return as_items()


def _check_observed(conn: sa.Connection, recipe: queries.RecipeRow, new: Taken) -> None:
    """Refuses what would make clients refuse the answer to a look-up."""
    size = queries.observed_bytes(conn, recipe.id) if new.header.observed else 0
    if size > MAX_OBSERVED_BYTES:
        raise errors.TooLarge(
            f"the observed inputs of {recipe.name} would take {size_text(size)} per look-up; the limit is "
            f"{size_text(MAX_OBSERVED_BYTES)}: {WAY_OUT}"
        )


def _place_and_insert(
    core: Core,
    recipe: queries.RecipeRow,
    file: Taken,
    values: dict[str, Any] | None,
    older: Sequence[Doomable],
) -> int:
    """Places a file, whose earlier one may have been lost, and inserts its row if it is new."""
    try:
        staging.still_the_same(file)
        durable.place(file.path, core.layout.object_path(file.digest))
        with core.index.write() as conn:
            if older:
                queries.delete(conn, older)
            if values is None:
                generation = queries.generation_of(conn, bytes.fromhex(file.digest))
            else:
                generation = queries.raise_generation(conn, recipe.id, is_removal=False)
                queries.add_artifacts(conn, [({**values, "generation": generation}, file.header.producer)])
            _check_observed(conn, recipe, file)
        return generation
    except BaseException:
        eviction.unlink_if_absent(core, file.digest)
        raise


def row_values(header: Header, digest: str, size_bytes: int) -> dict[str, Any]:
    """What a row says that comes from the file itself."""
    return {
        "key": bytes.fromhex(header.key),
        "digest": bytes.fromhex(digest),
        "size_bytes": size_bytes,
        "disk_bytes": durable.artifact_bytes(size_bytes),
        "items": len(header.item_digests),
        "rows": header.rows,
        "cost_s": header.cost_s,
        "edition": header.edition,
        "observed": header.observed or None,
    }
