"""Opening a store's index, and making it and the disk agree: at every start, and by `check`.

What may lie there after a crash (NOTE [ Commit order ] in durable.py), and what becomes of it:
    temporary-file        half-written, in tmp/: unlinked
    doomed-file           a delete was under way: unlinked
    file-without-row      a commit was under way: read, hashed and indexed (adoption.py); what is not a whole
                          artifact is unlinked, what cannot be read is left alone
    row-without-file      not by our doing (somebody deleted it): the row goes
`check` looks into the artifacts and at the sums, too:
    wrong-size            the artifact goes
    not-an-artifact       its header or item table is not what the row says, or of another recipe: it goes
    wrong-sums            the running counters are set from the index
The bytes themselves are `verify`'s and the scrub's to read (integrity.py). Staged files belong to sessions,
which may have outlived the daemon: the daemon sweeps them when it knows who lives (`Daemon.sweep`).

Invariants:
    1. A folder that cannot be listed is an error, not an empty folder.
    2. An index that is damaged, or of another version, is deleted and made again from the artifacts. What
       only it knew is lost: pins, and when entries were used. Where damage shows up later, the daemon ends,
       and the next start makes the index again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator

import sqlalchemy as sa

from prepcache import artifact, errors
from prepcached.store import db, durable, queries, removal
from prepcached.store.adoption import adopt
from prepcached.store.commit import items_of, superseded
from prepcached.store.core import Core, io_told, log
from prepcached.store.layout import OBJECT_FOLDERS
from prepcached.store.models import artifacts, recipes
from prepcached.store.queries import Doomable
from prepcached.store.records import Finding

Progress = Callable[[int, float], None]
"""(artifacts indexed, which share of the store was looked through), after each folder."""
NEW_INDEX = "new index"
"""What was done at a start where artifacts lay and no index that could be used."""


def open_index(core: Core, *, recover: bool, progress: Progress | None) -> None:
    """Opens the core's index, and makes it agree with the disk.

    Args:
        recover: False leaves everything as it is.

    Raises:
        IndexCorrupt: the index is damaged, and must be left as it is, or a new one is damaged too.
    """
    core.disk.free_reserve()
    try:
        _open(core, recover, progress)
    except errors.IndexCorrupt as damage:
        if not recover:
            raise
        level = logging.WARNING if "version" in damage.data else logging.ERROR  # an upgrade is no fault
        log.log(level, "%s. This start rebuilds it, which may take a while", damage.message)
        db.discard(core.layout.index)
        _open(core, recover, progress)


def _open(core: Core, is_recovering: bool, progress: Progress | None) -> None:
    core.index = db.Index(core.layout.index)
    try:
        done = _begin(core) if core.index.is_new else {}
        core.count_again()
        if is_recovering:
            done |= recover(core, progress)
            if done:
                log.info("recovered: %s", ", ".join(f"{n} {what}" for what, n in sorted(done.items())))
            core.counters.recovered = done
        core.look_at_staging()
        if is_recovering:
            core.disk.take_reserve()  # others may fill the disk before housekeeping does
    except BaseException:
        core.index.close()
        raise


def _begin(core: Core) -> dict[str, int]:
    """A new index; what was done, by name.

    Where a store was here before, generations start beyond any that a client can have seen: at the time in
    milliseconds.
    """
    has_artifacts = any(os.listdir(folder) for _, folder in core.layout.object_folders())
    with core.index.write() as conn:
        if not core.disk.is_new:
            queries.set_note(conn, "generation_base", int(core.clock() * 1000))
        core.index.finish(conn)
    return {NEW_INDEX: 1} if has_artifacts else {}


def recover(core: Core, progress: Progress | None = None) -> dict[str, int]:
    """Makes the index and the disk agree; returns what was done, by name, for the log and stats."""
    done: Counter[str] = Counter()
    with io_told("the store could not be scanned"), core.writer:
        with core.index.write() as conn:
            queries.use_by(conn, core.clock())
        done["temporary"] = sum(1 for _ in _temporary(core, True))
        done["doomed"] = finish_doomed(core)
        for number, (prefix, folder) in enumerate(core.layout.object_folders(), 1):
            without_row, without_file, _ = _compared(core, prefix, folder)
            done.update(adopt(core, folder, without_row))
            if without_file:
                first = without_file[0].digest.hex()
                log.warning("%d entries have lost their files, such as %s", len(without_file), first)
                removal.remove(core, without_file)
                done["lost"] += len(without_file)
            if progress is not None:
                progress(done["indexed"], number / OBJECT_FOLDERS)
        if done["indexed"]:
            done["replaced"] = _remove_superseded(core)
    return {name: count for name, count in done.items() if count}


def _remove_superseded(core: Core) -> int:
    """Removes what files that were just indexed had replaced, or were replaced by; how many these are."""
    refreshed = sa.select(artifacts.c.recipe_id).where(queries.IS_REFRESHED).distinct()
    with core.index.read() as conn:
        ids = conn.execute(refreshed).scalars().all()
    count = 0
    for recipe_id in ids:
        rows = removal.rows_of(core, artifacts.c.recipe_id, [recipe_id])
        found = []
        for row in rows:
            try:
                found.append((row.edition, items_of(core, row), row))
            except OSError as error:
                log.error("cannot tell what the artifact %s holds: %s", row.digest.hex(), error)
        gone = superseded(found)
        removal.remove(core, gone)
        count += len(gone)
    return count


def check(core: Core, *, repair: bool = False, breaks_off: bool = False) -> list[Finding]:
    """Compares index and disk. The writer lock is held for one folder of 256 at a time.

    Args:
        repair: whether what is found is mended.
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
            if repair and any(one.code == "file-without-row" for one in findings):
                _remove_superseded(core)
            findings += _sums(core, repair)
    return findings


def finish_doomed(core: Core) -> int:
    """Unlinks what was doomed and is still there, and makes that durable. Call it with the writer lock."""
    with core.index.read() as conn:
        doomed = queries.doomed_digests(conn)
    if not doomed:
        return 0
    gone = [digest for digest in doomed if removal.unlink_object(core, digest.hex())]
    for folder in {core.layout.object_folder(digest.hex()) for digest in gone}:
        durable.fsync_folder(folder)
    with core.index.write() as conn:
        queries.spare(conn, gone)
    return len(gone)


def _temporary(core: Core, repair: bool) -> Iterator[Finding]:
    with os.scandir(core.layout.tmp) as found:
        entries = list(found)
    for entry in entries:
        if repair and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif repair:
            os.unlink(entry.path)
        yield Finding("temporary-file", f"{entry.name} is left in tmp", repair)


def _doomed(core: Core, repair: bool) -> Iterator[Finding]:
    with core.index.read() as conn:
        doomed = [digest.hex() for digest in queries.doomed_digests(conn)]
    left = [digest for digest in doomed if durable.is_there(core.layout.object_path(digest))]
    if repair:
        finish_doomed(core)
    for digest in left:
        yield Finding("doomed-file", f"artifact {digest} was deleted, but its file still exists", repair)


def _compared(core: Core, prefix: str, folder: str) -> tuple[list[str], list[Doomable], list[str]]:
    """Of a folder: files without rows, rows without files, and digests that have both."""
    names = set(os.listdir(folder))
    with core.index.read() as conn:
        rows = queries.digests_between(conn, prefix)
        doomed = {digest.hex() for digest in queries.doomed_digests(conn)}
    lost = [bytes.fromhex(digest) for digest in sorted(rows - names)]
    without_file = removal.rows_of(core, artifacts.c.digest, lost)
    return sorted(names - rows - doomed), without_file, sorted(names & rows)


def _folder(core: Core, prefix: str, folder: str, repair: bool) -> Iterator[Finding]:
    without_row, without_file, both = _compared(core, prefix, folder)
    for name in without_row:
        is_mended = repair and not adopt(core, folder, [name])["unreadable"]
        yield Finding("file-without-row", f"{name} is in objects, but not in the index", is_mended)
    if repair:
        removal.remove(core, without_file)
    for row in without_file:
        what = f"artifact {row.digest.hex()} is in the index, its file is missing"
        yield Finding("row-without-file", what, repair)
    with core.index.read() as conn:
        of = {one: digest.hex() for one, digest in conn.execute(sa.select(recipes.c.id, recipes.c.digest))}
    for row in removal.rows_of(core, artifacts.c.digest, map(bytes.fromhex, both)):
        found = _wrong(os.path.join(folder, row.digest.hex()), row, of.get(row.recipe_id, "none"))
        if found is not None:
            code, wrong = found
            if repair:
                removal.remove_damaged(core, [row], wrong)
            yield Finding(code, f"artifact {row.digest.hex()}: {wrong}", repair)


def _wrong(path: str, row: Doomable, recipe: str) -> tuple[str, str] | None:
    """The code of what is wrong with an artifact that has a row, and what it is."""
    size_bytes = os.lstat(path).st_size
    if size_bytes != row.size_bytes:
        return "wrong-size", f"it has {size_bytes} bytes, but {row.size_bytes} in the index"
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        header = artifact.read_header(fd)
    except errors.ArtifactError as error:
        return "not-an-artifact", error.message
    finally:
        os.close(fd)
    if header.key != row.key.hex():
        return "not-an-artifact", f"its items give key {header.key}"
    if header.recipe != recipe:
        return "not-an-artifact", f"its recipe is {header.recipe}, but another in the index"
    return None


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
