"""Committing staged files: NOTE [ Commit order ] in durable.py, step by step.

Invariants:
    1. What an artifact is (recipe, key, items, rows, cost) is read from its header, never from the request.
    2. Placing, inserting and raising the generation happen under the writer lock, the last two in one
       transaction. When that fails, the placed file goes again, unless it cannot be
       told whether the row is there: then the next start decides.
    3. Committing the same bytes again changes nothing and succeeds, with the generation that they came with:
       with a newer one, a client would take what others have brought since for seen. Where their file was
       lost they are new. The same key with other bytes replaces the old artifact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from prepcache import errors
from prepcache.artifact import Header
from prepcache.artifact.observed import WAY_OUT
from prepcache.digests import RecipeDigest, entry_key
from prepcache.protocol import wire
from prepcache.protocol.observed import chunks_of
from prepcache.protocol.units import size_text
from prepcached.store import durable, observed, queries, removal, room, scopes, staging
from prepcached.store.core import Core, io_told, log, no_space_declined
from prepcached.store.integrity import lose
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable
from prepcached.store.records import ArtifactRef, Committed, StagedFile
from prepcached.store.staging import Taken

AllowedItems = Callable[["np.ndarray[Any, np.dtype[np.uint8]]"], "np.ndarray[Any, np.dtype[np.bool_]]"]
"""uint8[n, 32] item digests -> bool[n]: which of them the committer's leases name."""
MAX_OBSERVED_BYTES = wire.MAX_ANSWER_BYTES // 2
"""Of all chunks of a recipe, and their names: who looks it up is told of each, in one answer."""


def commit(
    core: Core,
    recipe: str,
    staged: Sequence[StagedFile],
    *,
    owner_uid: int,
    allowed_items: AllowedItems | None,
    holder: str | None,
) -> Committed:
    """Takes staged files into the store, all or none. See `Store.commit`."""
    with no_space_declined(core), io_told("a commit failed"), contextlib.ExitStack() as stack:
        files = [stack.enter_context(_checked(core, s, recipe, owner_uid, allowed_items)) for s in staged]
        with core.writer:
            generation, answered = _commit(core, recipe, files, owner_uid, holder)
        return Committed(generation, tuple(_ref(file) for file in answered))


@contextlib.contextmanager
def _checked(
    core: Core, staged: StagedFile, recipe: str, owner_uid: int, allowed_items: AllowedItems | None
) -> Iterator[Taken]:
    """One staged file, hashed, with room reserved for it; its bytes are no longer counted as staged.

    Its header is read first: what is no artifact, or not what was leased, makes no room and is not copied.
    """
    if core.artifact_bytes is not None and staged.size_bytes > core.artifact_bytes:
        raise errors.TooLarge(
            f"the artifact has {staged.size_bytes} bytes; the limit is {core.artifact_bytes}",
            name=staged.name,
        )
    with staging.opened(core.layout, staged, owner_uid) as (fd, status), core.staged_area.taking(staged.name):
        _check_items(staged.name, staging.header_of(fd, staged), recipe, allowed_items)
        core.look_at_staging()
        with (
            room.room(core, max(durable.disk_bytes(status), status.st_size), owner_uid),
            staging.taken(core.layout, staged, fd, owner_uid, scopes.scope_of(recipe)) as file,
        ):
            _check_items(file.name, file.header, recipe, allowed_items)
            yield file


def _check_items(name: str, header: Header, recipe: str, allowed_items: AllowedItems | None) -> None:
    """Called twice: before any room is made or any byte copied, and with the header of what is kept."""
    if header.recipe != scopes.digest(recipe):
        raise errors.StagedFileRefused(
            f"the staged file {name} is of recipe {header.recipe}, not of {scopes.digest(recipe)}",
            name=name,
        )
    if header.key != (key := entry_key(RecipeDigest(header.recipe), header.item_digests.tobytes())):
        raise errors.StagedFileRefused(
            f"the staged file {name} has key {header.key}, but its items give {key}", name=name
        )
    if allowed_items is None:
        return
    is_allowed = allowed_items(header.item_digests)
    if not is_allowed.all():
        foreign = header.item_digests[~is_allowed]
        raise errors.StagedFileRefused(
            f"the staged file {name} holds {len(foreign)} items that its leases do not name, the first "
            f"{foreign[0].tobytes().hex()}",
            name=name,
            items=[digest.tobytes().hex() for digest in foreign[:16]],
        )


def _commit(
    core: Core,
    recipe: str,
    files: Sequence[Taken],
    owner_uid: int,
    holder: str | None,
) -> tuple[int, list[Taken]]:
    with core.index.read() as conn:
        row = queries.recipe(conn, recipe)
    if row is None:
        raise errors.UnknownRecipe(
            f"recipe {scopes.digest(recipe)} is not registered; resolve with register first",
            recipe=scopes.digest(recipe),
        )
    digests = {bytes.fromhex(file.digest) for file in files}
    known, lost = _known(core, digests)
    if any(r.recipe_id != row.id for r in known):
        raise errors.Declined("the same artifact is another user's entry, and users are isolated")
    new = _first_of_each({r.digest.hex() for r in known}, files)
    keys = [bytes.fromhex(key) for key in new]
    older = removal.rows_of(core, artifacts.c.key, keys, artifacts.c.recipe_id == row.id)
    if any(r.edition > new[r.key.hex()].header.edition for r in older):
        raise errors.Declined("a refresh has replaced these items meanwhile")
    pinned = {r.key for r in (*older, *lost) if r.is_pinned and r.recipe_id == row.id}
    rows = [_new_row(core, file, row.id, owner_uid, pinned) for file in new.values()]
    generation = _place_and_insert(core, row, list(new.values()), rows, older, digests)
    removal.finish(core, older)
    renamed = {file.name for file in new.values() if not file.is_copy}
    for file in files:
        if file.name not in renamed:
            try:
                core.staged_area.unlink(file.name)
            except OSError as error:  # the commit is done
                log.error("cannot unlink the staged file %s: %s; it goes with its session", file.name, error)
    pinned_digests = {r.digest.hex() for r in known if r.is_pinned}
    pinned_digests |= {r["digest"].hex() for r in rows if r["is_pinned"]}
    answered = [new.get(file.key, file) for file in files]
    with core.memory:
        for values in rows:
            removal.account_new(core, values)
        core.counters.commits += 1
        if holder is not None:
            found = [(file.digest, durable.artifact_bytes(file.size_bytes)) for file in answered]
            taken = ((bytes.fromhex(digest), size, digest in pinned_digests) for digest, size in found)
            core.holds.take(holder, taken, core.monotonic())
    return generation, answered


def _check_observed(conn: sa.Connection, recipe: queries.RecipeRow, new: Iterable[Taken]) -> None:
    """
    Raises:
        TooLarge: clients would refuse the answer to a look-up.
    """
    if not any(file.header.packed_observed for file in new):
        return
    size = observed.size_bytes(conn, recipe.id)
    if size > MAX_OBSERVED_BYTES:
        raise errors.TooLarge(
            f"the observed inputs of {recipe.name} would take {size_text(size)} per look-up; the limit is "
            f"{size_text(MAX_OBSERVED_BYTES)}: {WAY_OUT}"
        )


def _known(core: Core, digests: Collection[bytes]) -> tuple[list[Doomable], list[Doomable]]:
    """Rows of these bytes, and those that had lost their files: they are gone now, else what is committed
    would be thrown away for them. It takes on their pins."""
    rows = removal.rows_of(core, artifacts.c.digest, digests)
    lost = [row for row in rows if not durable.is_there(core.layout.object_path(row.digest.hex()))]
    for row in lost:
        lose(core, row)
    return (removal.rows_of(core, artifacts.c.digest, digests) if lost else rows), lost


def _first_of_each(known: set[str], files: Sequence[Taken]) -> dict[str, Taken]:
    """By key, the files whose bytes are not in the store yet."""
    new: dict[str, Taken] = {}
    for file in files:
        if file.digest not in known:
            new.setdefault(file.key, file)
    return new


def _new_row(
    core: Core, file: Taken, recipe_id: int, owner_uid: int, pinned: Collection[bytes]
) -> dict[str, Any]:
    values = row_values(file.header, file.digest, file.size_bytes)
    now = core.clock()
    return {
        **values,
        "recipe_id": recipe_id,
        "owner": owner_uid,
        "created_at": now,
        "used_at": now,
        "is_pinned": values["key"] in pinned,
    }


def _place_and_insert(
    core: Core,
    recipe: queries.RecipeRow,
    new: Sequence[Taken],
    rows: Sequence[dict[str, Any]],
    older: Sequence[Doomable],
    known: Collection[bytes],
) -> int:
    placed: list[Taken] = []
    try:
        for file in new:
            staging.still_the_same(file)
            placed.append(file)
            durable.place(file.path, core.layout.object_path(file.digest))
        with core.index.write() as conn:
            if older:
                queries.delete(conn, older)
            if new:
                generation = queries.raise_generation(conn, recipe.id, is_removal=False)
            else:
                generation = queries.newest_generation(conn, known)
            for file, values in zip(new, rows, strict=True):
                queries.add_artifact(conn, {**values, "generation": generation}, file.header.producer)
            _check_observed(conn, recipe, new)
        return generation
    except BaseException:
        removal.unlink_if_absent(core, [file.digest for file in placed])
        raise


def row_values(header: Header, digest: str, size_bytes: int) -> dict[str, Any]:
    """What a row says that comes from the file itself; what it observed as the file has it."""
    return {
        "key": bytes.fromhex(header.key),
        "digest": bytes.fromhex(digest),
        "size_bytes": size_bytes,
        "disk_bytes": durable.artifact_bytes(size_bytes),
        "items": len(header.item_digests),
        "rows": header.rows,
        "cost_s": header.cost_s,
        "edition": header.edition,
        "observed": header.packed_observed or None,
    }


def _ref(file: Taken) -> ArtifactRef:
    header = file.header
    return ArtifactRef(
        key=file.key,
        digest=file.digest,
        size_bytes=file.size_bytes,
        items=len(header.item_digests),
        rows=header.rows,
        cost_s=header.cost_s,
        observed=tuple(chunks_of(header.observed)),
        edition=header.edition,
    )
