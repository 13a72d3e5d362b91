"""What a crash left: swept or indexed at every start. And `rebuild`: the same, from an empty index.

What may lie there after a crash (NOTE [ Commit order ] in durable.py), and what becomes of it:
    a file in tmp/                          half-written: unlinked
    a retired row                           nobody holds anything at a start: removed
    a doomed digest                         a delete was under way: its file is unlinked
    a file in objects/ without a row        a commit was under way: read, hashed and indexed; what is
                                            not a whole artifact goes to quarantine
    a row without its file                  not by our doing (somebody deleted it): removed, and said
Staged files belong to sessions, which may have outlived the daemon: the daemon sweeps them when it
knows who lives (`Store.sweep_staging`).

A folder that cannot be listed is an error, not an empty folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections import Counter

from prepcache import artifact, errors
from prepcache.digests import is_hex64
from prepcached.store import durable, queries, removal, staging
from prepcached.store.commit import row_values
from prepcached.store.core import Core, io_told, log
from prepcached.store.quarantine import put_away
from prepcached.store.tables import artifacts


def recover(core: Core) -> dict[str, int]:
    """Makes the index and the disk agree; returns what was done, by name, for the log and stats."""
    done: Counter[str] = Counter()
    with io_told("the store could not be looked through"), core.writing():
        done["temporary"] = _empty(core.layout.tmp)
        done["doomed"] = finish_doomed(core)
        with core.index.read() as conn:
            retired = list(queries.doomable(conn, queries.IS_RETIRED))
        removal.remove(core, retired, "merge")
        done["retired"] = len(retired)
        for prefix, folder in core.layout.object_folders():
            _agree(core, prefix, folder, done)
    return {name: count for name, count in done.items() if count}


def begin(core: Core) -> None:
    """A new index: where older artifacts or recipes lie, it takes the place of a lost one.

    Its generations then start beyond any that a client can have seen: at the time in milliseconds.
    """
    names = os.listdir(core.layout.recipes)
    is_first = not names and not any(os.listdir(folder) for _, folder in core.layout.object_folders())
    if is_first:
        return
    with core.index.write() as conn:
        queries.set_note(conn, "generation_base", int(core.clock() * 1000))
        for name in names:
            digest = name.removesuffix(".json")
            if is_hex64(digest):
                queries.add_recipe(conn, bytes.fromhex(digest), recipe_name(core, digest), core.clock())


def recipe_name(core: Core, digest: str) -> str:
    """A recipe's name from its readable parts; the digest's beginning when they are lost."""
    with (
        contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError),
        open(core.layout.recipe_path(digest), encoding="utf-8") as file,
    ):
        return str(json.load(file)["name"])
    return digest[:12]


def finish_doomed(core: Core) -> int:
    """Unlinks what was doomed and is still there. Call it with the writer lock."""
    with core.index.read() as conn:
        doomed = queries.doomed_digests(conn)
    if not doomed:
        return 0
    gone = [digest for digest in doomed if removal.unlink_object(core, digest.hex())]
    with core.index.write() as conn:
        queries.spare(conn, gone)
    return len(gone)


def _agree(core: Core, prefix: str, folder: str, done: Counter[str]) -> None:
    names = set(os.listdir(folder))
    with core.index.read() as conn:
        rows = queries.digests_between(conn, prefix)
    for name in sorted(names - rows):
        done[adopt(core, folder, name)] += 1
    dangling = sorted(rows - names)
    if dangling:
        log.warning("%d entries have lost their files, the first %s", len(dangling), dangling[0])
        lost = removal.rows_of(core, artifacts.c.digest, [bytes.fromhex(digest) for digest in dangling])
        removal.remove(core, lost, "quarantine")
        done["lost"] += len(lost)


def adopt(core: Core, folder: str, name: str) -> str:
    """Indexes a file without a row, or puts it away; returns what was done."""
    path = os.path.join(folder, name)
    try:
        if not is_hex64(name) or name[:2] != os.path.basename(folder):
            raise errors.ArtifactError("its name is no digest")
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _index_file(core, fd, name)
        finally:
            os.close(fd)
    except (errors.ArtifactError, IsADirectoryError) as error:
        log.warning("%s is not an artifact (%s); it goes to quarantine", path, error)
        put_away(core, path)
        return "quarantined"
    except OSError as error:
        log.error("cannot read %s: %s; it is left alone", path, error)
        return "unreadable"


def _index_file(core: Core, fd: int, name: str) -> str:
    status = os.fstat(fd)
    if status.st_mode & stat.S_ISVTX:
        removal.unlink_object(core, name)
        return "retired"
    header = artifact.check(fd)
    if staging.hash_file(fd) != name:
        raise errors.ArtifactError("its bytes do not make its name")
    twins = removal.rows_of(core, artifacts.c.key, [bytes.fromhex(header.key)], queries.IS_LIVE)
    if any(twin.edition >= header.edition for twin in twins):
        removal.unlink_object(core, name)
        return "doubled"
    removal.remove(core, twins, "replace")
    with core.index.write() as conn:
        recipe = queries.add_recipe(
            conn, bytes.fromhex(header.recipe), recipe_name(core, header.recipe), core.clock()
        )
        queries.add_artifact(
            conn,
            {
                **row_values(header, name, status.st_size, durable.disk_bytes(status)),
                "recipe_id": recipe.id,
                "generation": queries.raise_generation(conn, recipe.id, is_removal=False),
                "owner": _owner(fd, status),
                "created_at": status.st_mtime,
                "used_at": status.st_mtime,
                "is_pinned": False,
            },
            header.producer,
        )
    return "indexed"


def _owner(fd: int, status: os.stat_result) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(os.getxattr(fd, staging.OWNER_XATTR))
    return status.st_uid


def _empty(folder: str) -> int:
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    return len(entries)
