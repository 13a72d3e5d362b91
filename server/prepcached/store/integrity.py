"""Index, files and bytes agree: opening an index, one walk at every start and by `check`, scrub and verify.

What the walk may find (NOTE [ Commit order ] in durable.py), and what becomes of it:
    temporary-file        half-written, in tmp/: unlinked
    doomed-file           a delete was under way: unlinked
    file-without-row      a commit was under way, or the index is lost: read, hashed and indexed; what is not
                          a whole artifact is unlinked, what cannot be read or unlinked is left alone
    row-without-file      not by our doing (somebody deleted it): the row goes
    wrong-size            only `check` looks: the artifact goes
Staged files are swept by the daemon, when it knows which sessions live.

Invariants:
    1. A folder that cannot be listed is an error, not an empty folder. No file in it ends a start.
    2. A file is indexed only after its bytes were read and made its name, in the scope (scopes.py) that it is
       marked with. Of two files of one recipe and key the higher edition counts.
    3. An index that is damaged, or of another version, is deleted and made again from the artifacts. What
       only it knew is lost: pins, and when entries were used.
    4. An artifact with a wrong byte is removed. One that cannot be read stays: that is logged and counted.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from prepcache import artifact, errors
from prepcache.digests import Key, is_hex64
from prepcache.protocol import wire
from prepcache.protocol.inspection import Verified
from prepcached.store import db, durable, eviction, queries, staging
from prepcached.store.commit import row_values
from prepcached.store.core import Core, io_told, log
from prepcached.store.db import artifacts
from prepcached.store.listing import key_bytes, owned_by
from prepcached.store.queries import Doomable
from prepcached.store.records import Finding

NEW_INDEX = "new index"
"""What was done at a start where artifacts lay and no index that could be used."""
BATCH = 256
"""Files that one transaction indexes: it waits some ms for the disk."""
FOLDERS = 16
"""Folders of objects that the walk compares with one query, and with the writer lock held."""
ROUND_S = 86_400
"""A round of the scrub begins at most so often: a small store is not read over and over."""
VERIFY_BYTES_PER_S = 64 << 20
"""What `verify` reads of a disk that jobs use; 200 GiB in an hour."""
_POSITION, _ROUND_AT = "scrub_position", "scrub_round_at"
_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""What opening or reading a folder, a link and a socket gives."""


# Opening


def open_index(core: Core, *, recover: bool) -> None:
    """Opens the core's index, and makes it agree with the disk, unless `recover` is False."""
    try:
        _open(core, recover)
    except errors.IndexCorrupt as damage:
        if not recover:
            raise
        level = logging.WARNING if "version" in damage.data else logging.ERROR  # an upgrade is no fault
        log.log(level, "%s. This start rebuilds it, which may take a while", damage.message)
        db.discard(core.layout.index)
        _open(core, recover)


def _open(core: Core, is_recovering: bool) -> None:
    core.index = db.Index(core.layout.index)
    try:
        done = _begin(core) if core.index.is_new else Counter()
        core.count_again()
        if is_recovering:
            with io_told("the store could not be scanned"):
                with core.index.write() as conn:
                    queries.use_by(conn, core.clock())
                done.update(finding.outcome for finding in _walk(core, repair=True))
            if done:
                level = logging.WARNING if done["lost"] else logging.INFO
                told = ", ".join(f"{n} {what}" for what, n in sorted(done.items()))
                log.log(level, "recovered: %s", told)
            core.counters.recovered = dict(done)
        core.look_at_staging()
    except BaseException:
        core.index.close()
        raise


def _begin(core: Core) -> Counter[str]:
    """A new index; what was done, by name. Where a store was here before, generations start beyond any that a
    client can have seen: at the time in milliseconds."""
    is_old = not core.disk.is_new
    has_artifacts = is_old and any(os.listdir(folder) for _, folder in core.layout.object_folders())
    with core.index.write() as conn:
        if is_old:
            queries.set_note(conn, "generation_base", int(core.clock() * 1000))
        core.index.finish(conn)
    return Counter({NEW_INDEX: 1} if has_artifacts else {})


# The walk


def check(core: Core, *, repair: bool = False) -> list[Finding]:
    """Compares index and disk, and mends if asked. The writer lock is held for some folders at a time."""
    with io_told("the store could not be checked"):
        return list(_walk(core, repair=repair, is_check=True))


def _walk(core: Core, *, repair: bool, is_check: bool = False) -> Iterator[Finding]:
    with core.writer:
        found = [*_temporary(core, repair), *_doomed(core, repair)]
    yield from found
    for some in queries.chunks(core.layout.object_folders(), FOLDERS):
        core.check_not_stopping()
        with core.writer:
            with core.index.read() as conn:
                rows = queries.digests_in(conn, [prefix for prefix, _ in some])
            pairs = zip(some, rows, strict=True)
            found = [
                one for (_, path), known in pairs for one in _folder(core, path, known, repair, is_check)
            ]
            if any(finding.outcome == "indexed" for finding in found):
                _keep_latest_editions(core)  # here: a start that ends early leaves rows to the next
        yield from found


def _keep_latest_editions(core: Core) -> None:
    """Which older artifacts of the recipes of new rows refreshes had replaced, files do not tell: all go."""
    latest = sa.select(artifacts.c.recipe_id, sa.func.max(artifacts.c.edition)).where(artifacts.c.edition > 0)
    with core.index.read() as conn:
        found = conn.execute(latest.group_by(artifacts.c.recipe_id)).all()
    for recipe_id, edition in (one for one in found if one.recipe_id in core.grown_recipes):
        older = artifacts.c.edition < edition
        eviction.remove(core, eviction.rows_of(core, artifacts.c.recipe_id, [recipe_id], older))


def _temporary(core: Core, repair: bool) -> Iterator[Finding]:
    for name in os.listdir(core.layout.tmp):
        is_gone = repair and _is_deleted(os.path.join(core.layout.tmp, name))
        outcome = "temporary" if is_gone or not repair else "unreadable"
        yield Finding("temporary-file", f"{name} was left in tmp", is_gone, outcome)


def _doomed(core: Core, repair: bool) -> Iterator[Finding]:
    with core.index.read() as conn:
        doomed = [digest.hex() for digest in queries.doomed_digests(conn)]
    left = [digest for digest in doomed if durable.is_there(core.layout.object_path(digest))]
    if repair:
        eviction.finish_doomed(core)
    for digest in left:
        what = f"artifact {digest} was deleted, but its file still exists"
        yield Finding("doomed-file", what, repair, "doomed")


def _folder(core: Core, folder: str, with_row: set[str], repair: bool, is_check: bool) -> Iterator[Finding]:
    names = set(os.listdir(folder))
    without_row = names - with_row
    if without_row:
        with core.index.read() as conn:
            without_row -= {digest.hex() for digest in queries.doomed_digests(conn)}
    for name, outcome in _adopted(core, folder, sorted(without_row), repair):
        what = f"{name} is in objects, but not in the index"
        yield Finding("file-without-row", what, repair and outcome != "unreadable", outcome)
    lost = sorted(with_row - names)
    rows = eviction.rows_of(core, artifacts.c.digest, map(bytes.fromhex, lost)) if lost else []
    if repair:
        eviction.remove(core, rows)
    for row in rows:
        what = f"artifact {row.digest.hex()} is in the index, but its file is missing"
        yield Finding("row-without-file", what, repair, "lost")
    if not is_check:
        return
    for row in eviction.rows_of(core, artifacts.c.digest, map(bytes.fromhex, sorted(with_row & names))):
        size_bytes = os.lstat(os.path.join(folder, row.digest.hex())).st_size
        if size_bytes != row.size_bytes:
            wrong = f"it has {size_bytes} bytes, but {row.size_bytes} in the index"
            if repair:
                eviction.remove_damaged(core, [row], wrong)
            yield Finding("wrong-size", f"artifact {row.digest.hex()}: {wrong}", repair, "damaged")


# Files that have no rows


_Found = tuple[str, str, dict[str, Any], Mapping[str, Any]]
"""A whole artifact: its scoped recipe, that one's name, its row but what the index gives, its producer."""


def _adopted(core: Core, folder: str, names: Sequence[str], repair: bool) -> Iterator[tuple[str, str]]:
    """Indexes files of a folder, or only names them; what was done with each. Call it with the lock."""
    if not repair:
        yield from ((name, "") for name in names)
        return
    for batch in queries.chunks(names, BATCH):
        whole = []
        for name in batch:
            path = os.path.join(folder, name)
            try:
                whole.append(_read(path, name))
            except (errors.ArtifactError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in _NO_FILE:
                    log.error("cannot read %s: %s; it is left alone", path, error)
                    yield name, "unreadable"
                    continue
                log.error("%s is not an artifact (%s); removing it", path, error)
                is_gone = _is_deleted(path)
                with core.memory:
                    core.counters.damaged += is_gone
                yield name, "damaged" if is_gone else "unreadable"
        kept = _indexed(core, whole)
        for name in (values["digest"].hex() for _, _, values, _ in whole):
            if name not in kept:
                eviction.unlink_object(core, name)
            yield name, "indexed" if name in kept else "doubled"


def _read(path: str, name: str) -> _Found:
    """ArtifactError where it is not an artifact of this name, OSError where that could not be told."""
    if not is_hex64(name) or name[:2] != os.path.basename(os.path.dirname(path)):
        raise errors.ArtifactError("its name is not a digest")
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_size > wire.MAX_STAGED_BYTES:  # a sparse file has a terabyte for nothing
            raise errors.ArtifactError(f"no commit takes {status.st_size} bytes")
        header = artifact.check(fd, max_items=staging.MAX_ITEMS)
        if staging.hash_file(fd) != name:
            raise errors.ArtifactError("its digest is not its name")
        values = {
            **row_values(header, name, status.st_size),
            "owner": staging.owner_of(fd),
            "created_at": status.st_mtime,
            "used_at": status.st_mtime,
            "is_pinned": False,
        }
        called = header.producer.get("recipe")  # not to be trusted
        called = called.encode(errors="replace").decode() if isinstance(called, str) else header.recipe[:12]
        return header.recipe + staging.scope_of(fd), called, values, header.producer
    finally:
        os.close(fd)


def _is_deleted(path: str) -> bool:
    """Deletes what the store has no use for; False (and logged) where that fails: a start goes on."""
    try:
        durable.delete(path)
    except OSError as fault:
        log.error("cannot remove %s: %s; it is left alone", path, fault)
        return False
    return True


def _indexed(core: Core, whole: Iterable[_Found]) -> set[str]:
    """Adds the rows of one batch; the names of those for which no other file counts as much or more."""
    added: dict[str, dict[str, Any]] = {}
    gone: list[Doomable] = []
    with core.index.write() as conn:
        for recipe, called, values, producer in whole:
            of = queries.add_recipe(conn, recipe, called, core.clock()).id
            twins = queries.doomable_in(conn, artifacts.c.key, [values["key"]], artifacts.c.recipe_id == of)
            as_new = (row.digest.hex() for row in twins if row.edition >= values["edition"])
            if any(durable.is_there(core.layout.object_path(digest)) for digest in as_new):
                continue
            queries.delete(conn, twins)
            values |= {"recipe_id": of, "generation": queries.raise_generation(conn, of, is_removal=False)}
            queries.add_artifacts(conn, [(values, producer)])
            added[values["digest"].hex()] = values
            gone += twins
    with core.memory:
        for values in added.values():
            eviction.account_new(core, values)
    eviction.finish(core, gone)
    return added.keys() - {row.digest.hex() for row in gone}


# Bytes


class Scrubber:
    """The background scrub, round by row id, over restarts, too. One thread calls `one`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        with core.index.read() as conn:
            self._position = queries.note(conn, _POSITION)
            self._round_at = queries.note(conn, _ROUND_AT)

    def one(self) -> int:
        """Reads the next artifact; its bytes, or 0 when the round is done and the next is not due yet."""
        core, now = self._core, self._core.clock()
        if self._position == 0:
            if 0 <= now - self._round_at < ROUND_S:  # one of the future was begun under a wrong clock
                return 0
            self._round_at = int(now)
        row = next(_rows_after(core, self._position), None)
        self._position = 0 if row is None else row.id
        if row is None:
            return 0
        read_whole(core, row, core.check_not_stopping)
        with core.memory:
            core.counters.scrubbed_bytes += row.size_bytes
        return row.size_bytes

    def remember(self) -> None:
        """At a stop: after a crash the round goes on where the last start was."""
        with self._core.index.write() as conn:
            queries.set_note(conn, _POSITION, self._position)
            queries.set_note(conn, _ROUND_AT, self._round_at)


def verify(
    core: Core,
    keys: Iterable[str] | None = None,
    owner: int | None = None,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> Verified:
    """Reads artifacts whole, now: all, or those of some keys, or an owner. Damaged ones are removed."""
    rows = _rows_after(core, 0, owner)
    if keys is not None:
        wanted = [key_bytes(key) for key in keys]
        rows = iter(eviction.rows_of(core, artifacts.c.key, wanted, *owned_by(owner)))
    read = 0
    found: dict[bool | None, list[Key]] = {True: [], False: [], None: []}

    def pace(count: int) -> None:
        nonlocal read
        read += count
        core.stopping.wait(count / VERIFY_BYTES_PER_S)
        core.check_not_stopping()
        if is_abandoned():
            raise errors.DaemonUnreachable("verification stopped early: the client has gone")

    for row in rows:
        found[read_whole(core, row, pace)].append(Key(row.key.hex()))
    return Verified(sum(map(len, found.values())), read, tuple(found[False]), tuple(found[None]))


def _rows_after(core: Core, position: int, owner: int | None = None) -> Iterator[Doomable]:
    """One after another, by id: what is removed meanwhile is not met."""
    while True:
        with core.index.read() as conn:
            rows = queries.after(conn, position, 1, *owned_by(owner))
        if not rows:
            return
        position = rows[0].id
        yield rows[0]


def read_whole(core: Core, row: Doomable, pace: Callable[[int], object]) -> bool | None:
    """Reads an artifact; whether it is whole. One that is lost or damaged is removed; None where that could
    not be told, which is logged. `pace` gets the bytes of each piece, and may end the work."""
    try:
        with open(core.layout.object_path(row.digest.hex()), "rb") as file:
            digest = staging.hash_file(file.fileno(), pace)
    except FileNotFoundError:
        return not eviction.lose(core, row)
    except OSError as error:
        log.error("cannot read artifact %s: %s", row.digest.hex(), error)
        return None
    if digest == row.digest.hex():
        return True
    with io_told("a damaged artifact could not be removed"), core.writer:
        eviction.remove_damaged(
            core, eviction.rows_of(core, artifacts.c.id, [row.id]), f"its digest is {digest}"
        )
    return False
