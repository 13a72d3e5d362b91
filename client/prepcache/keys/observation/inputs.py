"""Observed inputs as rows: put together from several processes, and whether they are as they were.

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
from prepcache.protocol.observed import RANDOM, in_order

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
    """An input that a process saw, or an output, by its path, that may have been told as an input before.

    Args:
        path: of what was used by its name.
        stamp: what was there then; None for nothing, and for a folder that was listed.
        is_read: it was not only named or asked for.
    """

    row: dict[str, str]
    path: str | None = None
    stamp: Stamp | None = None
    is_read: bool = True

    @property
    def is_as_it_was(self) -> bool:
        """Whether it can still be what it was when it was told."""
        if self.path is None or self.row["digest"] == CHANGED:
            return True
        if self.row["kind"] == "folder" and self.stamp is None:
            return listing(self.path) == self.row["digest"]
        return stamp_at(info_of(self.path)) == self.stamp


class Joined:
    """What several processes saw, for the one that commits what they made.

    Each tells of an input once: of many files with each item, lists of all would cost more than the items.

    Invariants:
        1. An input that was two things has changed, for good: told so, or found so when rows are asked for.
        2. What was named or asked for, and never read, is no input once the function made it.
    """

    def __init__(self) -> None:
        self._told: dict[str, Input] = {}
        self._outputs: dict[str | None, None] = {}

    def add(self, told: Iterable[Input]) -> None:
        for one in told:
            if one.row["kind"] == OUTPUT:
                self._outputs[one.path] = None
                continue
            before = self._told.setdefault(one.row["name"], one)
            row = one.row if before.row == one.row else {**one.row, "digest": CHANGED}
            self._told[one.row["name"]] = one._replace(row=row, is_read=one.is_read or before.is_read)

    def rows(self) -> list[dict[str, str]]:
        """All of it, as `protocol.observed.in_order` has it."""
        for name, one in list(self._told.items()):
            if not one.is_as_it_was:
                self._told[name] = one._replace(row={**one.row, "digest": CHANGED})
        inputs = {n: one.row for n, one in self._told.items() if one.is_read or one.path not in self._outputs}
        return in_order(inputs)


def row_of(kind: str, name: str, digest: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "digest": digest}


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
        name, kind = str(row.get("name", "")), row.get("kind")
        if kind == RANDOM:
            continue
        if kind == "distribution":
            installed = installed or Environment()
            if _distribution(name, installed) != row.get("digest"):
                return name
            continue
        path = roots.path(name)
        if path is None or kind not in ("file", "module", "folder"):
            return name
        is_listed = kind == "folder" and row.get("digest") != FOLDER
        context.depend_on((path,), is_listed=is_listed)
        if is_listed:
            if listing(path) != row.get("digest"):
                return name
            continue
        digest = digest_now(path, stat_cache, trust)[0]
        if digest != row.get("digest") or (kind == "module" and not runs_as_written(path)):
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
