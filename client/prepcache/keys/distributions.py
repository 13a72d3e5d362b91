"""Installed distributions, as `importlib.metadata` finds them. What is read of one is kept per user.

A distribution counts by the hash of its RECORD, which holds the hash of every file that was installed. One
without a RECORD, or installed editable, counts by the bytes of its code files.

Invariants:
    1. What an installer writes for itself (INSTALLER, direct_url.json, bytecode, scripts that hold the
       environment's path) is not in a hash: the same wheels in another folder give the same hash.
    2. What is kept is used only if the file is this user's own and nobody else may write to it.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from blake3 import blake3

from prepcache.keys.files.stamps import path_stamp
from prepcache.protocol.places import cache_folder

MEMO_VERSION = 2
_OWN_ENTRIES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
_CODE_SUFFIXES = (".py", ".so", ".pyd")
_SITE_NAMES = ("site-packages", "dist-packages")
_STATED = ("", "METADATA", "PKG-INFO", "RECORD", "direct_url.json")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_OF_EXTRA = re.compile(r"\bextra\s*(==|in)")


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution. `path` is where its metadata is, `requires` are normalised names.

    `record` is the hash of its RECORD; empty where there is none.
    """

    name: str
    version: str
    record: str
    top_levels: tuple[str, ...]
    requires: tuple[str, ...]
    path: str
    editable_root: str | None = None

    @property
    def folder(self) -> str:
        """Where its modules are."""
        return os.path.dirname(self.path)

    def hash(self) -> str:
        """The hash of what was installed."""
        if self.editable_root is not None:
            return _bytes_hash(self.editable_root, _code_files(self.editable_root))
        return self.record or _bytes_hash(self.folder, self._modules())

    def _modules(self) -> Iterator[str]:
        for top in self.top_levels:
            if os.path.isfile(os.path.join(self.folder, f"{top}.py")):
                yield f"{top}.py"
            else:
                yield from (os.path.join(top, name) for name in _code_files(os.path.join(self.folder, top)))


def normalised(name: str) -> str:
    """The form of a distribution's name under which all spellings are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_in(folders: Iterable[str]) -> list[Distribution]:
    """The distributions whose metadata lies in folders, in their order."""
    memo_path = os.path.join(cache_folder(os.environ), f"distributions-v{MEMO_VERSION}.json")
    memo = _memoised(memo_path)
    found: list[Distribution] = []
    is_stale = False
    for path in (path for folder in folders for path in _metadata_in(folder)):
        stated = [path_stamp(os.path.join(path, part) if part else path) for part in _STATED]
        stamps = [stamp and list(stamp) for stamp in stated]
        distribution = _from_row(memo[path][1]) if path in memo and memo[path][0] == stamps else None
        if distribution is None:
            distribution = _read(path)
            if distribution is None:
                continue
            memo[path] = [stamps, asdict(distribution)]
            is_stale = True
        found.append(distribution)
    if is_stale:
        _save(memo_path, memo)
    return found


def _metadata_in(folder: str) -> Iterator[str]:
    # An .egg-info beside a project's sources says that it was installed from there.
    is_site = os.path.basename(folder) in _SITE_NAMES
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder or ".")):
            if name.endswith((".dist-info", ".egg-info") if is_site else ".dist-info"):
                yield os.path.join(folder, name)


def _read(path: str) -> Distribution | None:
    """Reads one `.dist-info` or `.egg-info`; None if it names no distribution."""
    distribution = PathDistribution(Path(path))
    try:
        metadata: Any = distribution.metadata
        name, version = metadata["Name"], metadata["Version"]
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None
    if not name:
        return None
    requires = [line for line in metadata.get_all("Requires-Dist") or () if not _OF_EXTRA.search(line)]
    named = (match[1] for line in requires if (match := _REQUIREMENT.match(line)) is not None)
    record = distribution.read_text("RECORD")
    if record is not None:
        rows = [row for row in csv.reader(record.splitlines()) if row]
        tops, digest = _top_levels(row[0] for row in rows), _record_hash(rows)
    else:  # Debian's packages and old eggs have no RECORD
        tops = tuple(sorted((distribution.read_text("top_level.txt") or name.replace("-", "_")).split()))
        digest = ""
    return Distribution(
        name=name,
        version=version or "",
        record=digest,
        top_levels=tops,
        requires=tuple(sorted(set(map(normalised, named)))),
        path=path,
        editable_root=_editable_root(distribution.read_text("direct_url.json")),
    )


def _record_hash(rows: list[list[str]]) -> str:
    counted = []
    for row in rows:
        name = row[0]
        if name.startswith(("..", "/")) or name.endswith(".pyc"):
            continue
        if os.path.dirname(name).endswith(".dist-info") and os.path.basename(name) in _OWN_ENTRIES:
            continue
        counted.append("\0".join(row[:2]))
    return blake3("\n".join(sorted(counted)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _top_levels(names: Iterable[str]) -> tuple[str, ...]:
    tops: set[str] = set()
    for name in names:
        if not name.endswith(_CODE_SUFFIXES) or name.startswith(".."):
            continue
        first, is_within, _ = name.partition("/")
        if not is_within:
            tops.add(first.partition(".")[0])
        elif not first.endswith((".dist-info", ".egg-info", ".data")) and first != "__pycache__":
            tops.add(first)
    return tuple(sorted(tops))


def _editable_root(direct_url: str | None) -> str | None:
    with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
        data = json.loads(direct_url or "{}")
        if data.get("dir_info", {}).get("editable"):
            return unquote(urlparse(data["url"]).path)
    return None


def _code_files(root: str) -> list[str]:
    """The code files under a folder, relative to it; hidden folders and environments are left out."""
    names = []
    for base, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name != "__pycache__"
            and not os.path.exists(os.path.join(base, name, "pyvenv.cfg"))
        ]
        names += [os.path.relpath(os.path.join(base, f), root) for f in files if f.endswith(_CODE_SUFFIXES)]
    return sorted(names)


def _bytes_hash(folder: str, names: Iterable[str]) -> str:
    hasher = blake3()
    for name in names:
        with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as file:
            data = file.read()
            hasher.update(b"%d:%s\0%d:" % (len(os.fsencode(name)), os.fsencode(name), len(data)))
            hasher.update(data)
    return hasher.hexdigest()[:32]


@lru_cache(maxsize=8)
def _memoised(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            is_own = info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            return dict(json.load(file)) if is_own else {}
    except (OSError, ValueError, TypeError):
        return {}


def _from_row(row: Any) -> Distribution | None:
    with contextlib.suppress(TypeError, KeyError):
        lists = {key: tuple(row[key]) for key in ("top_levels", "requires")}
        return Distribution(**{**row, **lists})
    return None


def _save(path: str, memo: dict[str, Any]) -> None:
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".tmp-", delete=False) as file:
            json.dump({p: row for p, row in memo.items() if os.path.exists(p)}, file, separators=(",", ":"))
        os.replace(file.name, path)
