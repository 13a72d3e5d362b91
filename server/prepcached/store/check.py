"""Does the index say what the disk holds? Looks at everything, mends on request.

Findings (`code`, and what `repair` does):
    file-without-row      indexed if it is a whole artifact, else unlinked; left where it cannot be read
    row-without-file      the row goes
    wrong-size            the artifact goes
    wrong-blocks          the row takes the file's
    not-an-artifact       its header or item table is not what the row says, or of another recipe: it goes
    temporary-file        unlinked
    doomed-file           unlinked
    wrong-sums            the running counters are set from the index
The bytes themselves are `verify`'s and the scrub's to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import sqlalchemy as sa

from prepcache import artifact, errors
from prepcached.store import durable, housekeeping, queries, recovery, removal
from prepcached.store.adoption import adopt
from prepcached.store.core import Core, io_told
from prepcached.store.models import artifacts, recipes
from prepcached.store.queries import Doomable
from prepcached.store.records import Finding

_RECIPES = sa.select(recipes.c.id, recipes.c.digest)


def check(core: Core, *, repair: bool, breaks_off: bool) -> list[Finding]:
    """All findings. The writer lock is held for one folder of 256 at a time.

    Args:
        breaks_off: a stop of the daemon ends it.
    """
    findings: list[Finding] = []
    with io_told("the check could not look"):
        with core.writer:
            findings += _temporary(core, repair)
            findings += _doomed(core, repair)
        for prefix, folder in core.layout.object_folders():
            if breaks_off:
                core.check_not_stopping()
            with core.writer:
                findings += _folder(core, prefix, folder, repair)
        with core.writer:
            findings += _sums(core, repair)
    return findings


def _temporary(core: Core, repair: bool) -> Iterator[Finding]:
    for name in os.listdir(core.layout.tmp):
        if repair:
            os.unlink(os.path.join(core.layout.tmp, name))
        yield Finding("temporary-file", f"{name} is left in tmp", repair)


def _doomed(core: Core, repair: bool) -> Iterator[Finding]:
    with core.index.read() as conn:
        doomed = [digest.hex() for digest in queries.doomed_digests(conn)]
    left = [digest for digest in doomed if durable.is_there(core.layout.object_path(digest))]
    if repair:
        recovery.finish_doomed(core)
    for digest in left:
        yield Finding("doomed-file", f"artifact {digest} was deleted, but its file still exists", repair)


def _folder(core: Core, prefix: str, folder: str, repair: bool) -> Iterator[Finding]:
    low, high = bytes.fromhex(prefix + "00" * 31), bytes.fromhex(prefix + "ff" * 31)
    with core.index.read() as conn:
        rows = {
            row.digest.hex(): row for row in queries.doomable(conn, artifacts.c.digest.between(low, high))
        }
        doomed = {digest.hex() for digest in queries.doomed_digests(conn)}
        of = {one: digest.hex() for one, digest in conn.execute(_RECIPES)}
    names = set(os.listdir(folder))
    for name in sorted(names - set(rows) - doomed):
        is_mended = False
        if repair:
            is_mended = not adopt(core, folder, [name], set())["unreadable"]
            core.count_again()
        what = f"{name} is in objects, but not in the index"
        yield Finding("file-without-row", what, is_mended)
    for digest in sorted(set(rows) - names):
        if repair:
            removal.remove(core, [rows[digest]])
        yield Finding("row-without-file", f"artifact {digest} is in the index, its file is missing", repair)
    for digest in sorted(set(rows) & names):
        recipe = of.get(rows[digest].recipe_id, "none")
        yield from _artifact(core, rows[digest], recipe, os.path.join(folder, digest), repair)


def _artifact(core: Core, row: Doomable, recipe: str, path: str, repair: bool) -> Iterator[Finding]:
    digest = row.digest.hex()
    status = os.lstat(path)
    if status.st_size != row.size_bytes:
        if repair:
            removal.remove_damaged(core, [row], "its size is wrong")
        what = f"artifact {digest} has {status.st_size} bytes, but {row.size_bytes} in the index"
        yield Finding("wrong-size", what, repair)
        return
    wrong = _header_wrong(path, row, recipe)
    if wrong is not None:
        if repair:
            removal.remove_damaged(core, [row], wrong)
        yield Finding("not-an-artifact", f"artifact {digest}: {wrong}", repair)
        return
    on_disk = durable.disk_bytes(status)
    if on_disk != row.disk_bytes:
        if repair:
            housekeeping.set_disk_bytes(core, row, on_disk)
        what = f"artifact {digest} takes {on_disk} bytes on disk, but {row.disk_bytes} in the index"
        yield Finding("wrong-blocks", what, repair)


def _header_wrong(path: str, row: Doomable, recipe: str) -> str | None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        header = artifact.read_header(fd)
    except errors.ArtifactError as error:
        return error.message
    finally:
        os.close(fd)
    if header.key != row.key.hex():
        return f"its items give key {header.key}"
    return None if header.recipe == recipe else f"its recipe is {header.recipe}, but another in the index"


def _sums(core: Core, repair: bool) -> Iterator[Finding]:
    with core.index.read() as conn:
        totals = queries.totals(conn)
    with core.memory:
        running = (
            core.counters.entries,
            core.counters.size_bytes,
            core.ledger.live_bytes,
            core.counters.pinned_bytes,
        )
        unlinked = core.ledger.unlinked_bytes, core.holds.unlinked_bytes()
    if running != totals[:4] or unlinked[0] != unlinked[1]:
        if repair:
            core.count_again()
        yield Finding("wrong-sums", f"counted {running}, but the index has {totals[:4]}", repair)
