"""Indexing files that have no rows: what a crash left of a few commits, or a whole store whose index is lost.

Invariants:
    1. A file is indexed only after its bytes were read and made its name; what is not a whole artifact
       is unlinked, what cannot be read is left alone.
    2. A batch of files is one transaction; a file that another one makes superfluous is unlinked after it.
    3. Of two files of one recipe and key the higher edition counts.
    4. A file is of the scope (scopes.py) that it is marked with; without a mark it is shared.

Files are read by a few threads, so that a disk has several reads to do at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from prepcache import artifact, errors
from prepcache.digests import is_hex64
from prepcached.store import durable, queries, removal, staging
from prepcached.store.commit import row_values
from prepcached.store.core import Core, log
from prepcached.store.models import artifacts

READERS = 4
BATCH = 256
"""Files in a transaction: one waits some ms for the disk."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""What opening or reading a folder, a link and a socket gives."""


class Found(NamedTuple):
    """A whole artifact: its scoped recipe, and its row, but for what the index gives it."""

    name: str
    recipe: str
    values: Mapping[str, Any]
    producer: Mapping[str, Any]


def adopt(core: Core, folder: str, names: Sequence[str]) -> Counter[str]:
    """Indexes files of one folder that have no rows; what was done, by name. Call it with the writer lock."""
    done: Counter[str] = Counter()
    if not names:
        return done
    with ThreadPoolExecutor(READERS, "adopt") as readers:
        for start in range(0, len(names), BATCH):
            whole = []
            for found in readers.map(partial(_look, folder), names[start : start + BATCH]):
                if isinstance(found, Found):
                    whole.append(found)
                else:
                    done[_settle(core, folder, *found)] += 1
            if whole:
                done.update(_index(core, whole))
    return done


_Looked = Found | tuple[str, Exception]
"""What a file is: an artifact, or (its name, what is wrong)."""


def _look(folder: str, name: str) -> _Looked:
    try:
        if not is_hex64(name) or name[:2] != os.path.basename(folder):
            raise errors.ArtifactError("its name is not a digest")
        fd = os.open(os.path.join(folder, name), _FLAGS)
        try:
            return _read(fd, name)
        finally:
            os.close(fd)
    except (errors.ArtifactError, OSError) as error:
        return name, error


def _read(fd: int, name: str) -> Found:
    status = os.fstat(fd)
    header = artifact.check(fd)
    if staging.hash_file(fd) != name:
        raise errors.ArtifactError("its digest is not its name")
    values = {
        **row_values(header, name, status.st_size),
        "owner": _owner(fd, status),
        "created_at": status.st_mtime,
        "used_at": status.st_mtime,
        "is_pinned": False,
    }
    return Found(name, header.recipe + staging.scope_of(fd), values, header.producer)


def _settle(core: Core, folder: str, name: str, error: Exception) -> str:
    """Does with a file what must be done if it is not to be indexed; what that was."""
    path = os.path.join(folder, name)
    if isinstance(error, errors.ArtifactError) or getattr(error, "errno", None) in _NO_FILE:
        log.error("%s is not an artifact (%s); removing it", path, error)
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except OSError as fault:  # another user's folder: the daemon starts all the same
            log.error("cannot remove %s: %s; it is left alone", path, fault)
            return "unreadable"
        with core.memory:
            core.counters.damaged += 1
        return "damaged"
    log.error("cannot read %s: %s; it is left alone", path, error)
    return "unreadable"


def _index(core: Core, whole: Sequence[Found]) -> Counter[str]:
    """One transaction; returns how many were indexed, and how many others had the same key."""
    with core.index.write() as conn:
        named = {found.recipe: found for found in whole}
        ids = {
            one: queries.add_recipe(conn, one, _name(found), core.clock()).id for one, found in named.items()
        }
    rows = removal.rows_of(core, artifacts.c.key, {found.values["key"] for found in whole})
    twins = {(row.recipe_id, row.key): row for row in rows}
    there = {one for one, row in twins.items() if durable.is_there(core.layout.object_path(row.digest.hex()))}
    highest = {one: twins[one].edition for one in there}
    best: dict[tuple[int, bytes], Found] = {}
    for found in whole:
        one, edition = (ids[found.recipe], found.values["key"]), found.values["edition"]
        if edition > highest.get(one, -1):
            highest[one], best[one] = edition, found
    removal.remove(core, [row for one, row in twins.items() if one in best])
    with core.index.write() as conn:
        raised = {of: queries.raise_generation(conn, of, is_removal=False) for of in {of for of, _ in best}}
        new = [
            ({**found.values, "recipe_id": of, "generation": raised[of]}, found.producer)
            for (of, _), found in best.items()
        ]
        queries.add_artifacts(conn, new)
    with core.memory:
        for values, _ in new:
            removal.account_new(core, values)
    kept = {found.name for found in best.values()}
    doubled = [found.name for found in whole if found.name not in kept]
    for name in doubled:
        removal.unlink_object(core, name)
    return Counter(indexed=len(best), doubled=len(doubled))


def _name(found: Found) -> str:
    """Its recipe's name, as its producer says, or else the digest's beginning."""
    name = found.producer.get("recipe")
    return name if isinstance(name, str) else found.recipe[:12]


def _owner(fd: int, status: os.stat_result) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(os.getxattr(fd, staging.OWNER_XATTR))
    return status.st_uid
