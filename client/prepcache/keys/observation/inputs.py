"""Observed inputs, as rows that are checked at a look-up.

    {"kind": "file", "name": "project:vocab.txt", "digest": "<64 hex>"}     also "items:", "cwd:", "/..."
    {"kind": "module", "name": "project:plugins/fast.py", "digest": "<64 hex>"}
    {"kind": "folder", "name": "project:data", "digest": "<64 hex>"}         the names in it, if it was listed
    {"kind": "folder", "name": "project:data/", "digest": "a folder"}        that it is there, if asked for
    {"kind": "distribution", "name": "imageio", "digest": "2.1 <hash>"}

Not here: how they are seen (audit.py), what is an input (findings.py), how they are named (naming.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.project import working_folder
from prepcache.keys.environment import Environment
from prepcache.keys.files.digest import Trust, digest_file, is_directory
from prepcache.keys.files.stamps import stamp_of
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation import context
from prepcache.keys.observation.audit import WAL
from prepcache.keys.observation.naming import Roots
from prepcache.keys.outdated import runs_as_written
from prepcache.protocol.observed import RANDOM

ABSENT = "absent"
FOLDER = "a folder"
"""Instead of a digest, of a folder that was asked for: that it is there, and not what is in it."""
CHANGED = "changed while it was in use"
OUTPUT = "output"
"""The kind of what the function made; in no artifact."""

Stamp = tuple[int, ...]
FOLDER_STAMP: Stamp = ()
_LISTING_DOMAIN = b"prepcache listing v1\0"


class Input(NamedTuple):
    """An input that a process saw, or an output that may have been told as an input before.

    Args:
        name: what leads other jobs to it; "" until it is told.
        path: of a file or folder, where it was found in this process.
        stamp: what was there when it was used first; None for nothing, and for a folder that was listed.
        is_read: it was not only named or asked for.
        folder: the working directory in which it was used by a relative name; None for an absolute one.
    """

    kind: str
    digest: str
    name: str = ""
    path: str | None = None
    stamp: Stamp | None = None
    is_read: bool = True
    folder: str | None = None

    @property
    def row(self) -> dict[str, str]:
        return {"kind": self.kind, "name": self.name, "digest": self.digest}


def still_true(
    observed: Iterable[Mapping[str, Any]],
    stat_cache: StatCache | None = None,
    roots: Roots | None = None,
    trust: Trust = "stat",
) -> str | None:
    """Whether what an artifact's function observed is as it was.

    Args:
        observed: as `Observer.taken` gave it.
        stat_cache: digests of files that are known by stamp.
        roots: those of this job.

    Returns:
        None if all is as it was, else the first name that is not. What cannot be told has changed.
    """
    roots = roots or Roots(cwd=working_folder())
    installed: Environment | None = None
    for row in observed:
        name, kind, digest = str(row.get("name", "")), row.get("kind"), row.get("digest")
        if kind == RANDOM:
            continue
        if kind == "distribution":
            installed = installed or Environment()
            if _distribution(name, installed) != digest:
                return name
            continue
        path = roots.path(name)
        if path is None or kind not in ("file", "module", "folder"):
            return name
        is_listed = kind == "folder" and digest != FOLDER
        context.depend_on((path,), is_listed=is_listed)
        now = listing(path) if is_listed else digest_now(path, stat_cache, trust)[0]
        if now != digest or (kind == "module" and not runs_as_written(path)):
            return name
    return None


def info_of(path: str) -> os.stat_result | None:
    """What a path leads to; None if to nothing that can be told, or that says anything."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return without_empty_log(path, info)


def without_empty_log(path: str, info: os.stat_result | None) -> os.stat_result | None:
    """What is there, but for the empty log of a database: its readers make one, and remove it."""
    return None if info is not None and not info.st_size and path.endswith(WAL) else info


def stamp_at(info: os.stat_result | None) -> Stamp | None:
    """The stamp of what is there; a folder's is the same whatever is in it."""
    if info is None:
        return None
    return FOLDER_STAMP if is_directory(info) else stamp_of(info)


def digest_now(path: str, stat_cache: StatCache | None, trust: Trust) -> tuple[str, Stamp | None]:
    """The digest and stamp of what is there."""
    info = info_of(path)
    if info is None:
        return ABSENT, None
    if is_directory(info):
        return FOLDER, FOLDER_STAMP
    try:
        digested = digest_file(path, stat_cache, trust)
    except UnkeyableError:
        return CHANGED, None
    return digested.digest.hex(), digested.stamp


def listing(path: str) -> str:
    """The digest of the names in a folder."""
    try:
        return digest_of_names(os.listdir(os.fsencode(path)))
    except OSError:
        return ABSENT


def digest_of_names(names: Iterable[bytes]) -> str:
    """The digest of names in a folder, in any order."""
    kept = sorted(name for name in names if name != b"__pycache__")
    return blake3(_LISTING_DOMAIN + b"\0".join(kept)).hexdigest()


def _distribution(name: str, installed: Environment) -> str | None:
    try:
        return installed.counted((), [name])[name]
    except UnkeyableError:
        return None
