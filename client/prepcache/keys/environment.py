"""The environment part of a recipe: Python, format versions, torch's default dtype, distributions.

A distribution counts by name, version and the hash of its RECORD, which holds the hash of every file that
was installed; with it count, transitively, those of its requirements that are installed. One installed
editable counts by its files.

Invariants:
    1. What an installer writes for itself (INSTALLER, direct_url.json, bytecode, scripts that hold the
       environment's path) is not in the hash: the same wheels in another folder give the same recipe.
    2. Nothing is imported to find out; torch is asked only if it is loaded.
    3. What was installed again after this process had loaded it is refused (restart.py).
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlparse

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.project import SELF_MODULES
from prepcache.keys.code.source_files import stamp_of
from prepcache.keys.restart import check_distribution
from prepcache.protocol.places import cache_folder

ENVIRONMENT_VERSION = 1
"""Rises when what counts of an environment changes; joins the recipe."""

REPLACED = "installed again after it was loaded"
_OWN_ENTRIES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
_CODE_SUFFIXES = (".py", ".so", ".pyd")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution. `path` is where its metadata is, `requires` are normalised names.

    `record` is the hash of its RECORD; empty where there is none, then its files count by their bytes.
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

    def check(self) -> None:
        """Refuses what was installed again after this process had loaded it; an editable one counts by its
        files, as they are."""
        if self.editable_root is None:
            check_distribution(self.name, self.path, self.folder, self.top_levels)


def normalised(name: str) -> str:
    """The form of a distribution's name under which all spellings are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Environment:
    """The distributions that `sys.path` offers. Lives for one fingerprint; what it reads is kept per user."""

    def __init__(self, search: Iterable[str] | None = None) -> None:
        self._hashes: dict[str, str] = {}
        self.distributions: dict[str, Distribution] = {}
        self.installed: dict[str, set[str]] = {}
        """Folder on the path to the top-level modules that distributions installed there."""
        self._owners: dict[str, list[str]] = {}
        for folder, distribution in _installed(tuple(dict.fromkeys(sys.path if search is None else search))):
            self.installed.setdefault(folder, set()).update(distribution.top_levels)
            name = normalised(distribution.name)
            if name in self.distributions:
                continue  # an earlier folder on the path wins, as it does for imports
            self.distributions[name] = distribution
            for top in distribution.top_levels:
                self._owners.setdefault(top, []).append(name)

    def counted(self, top_levels: Iterable[str], only: Iterable[str] | None = None) -> dict[str, str]:
        """The distributions that count, by what they are.

        Args:
            top_levels: the top-level modules that the counted files import.
            only: the distributions that count instead, by name: just these.

        Returns:
            Name to "version record-hash".

        Raises:
            UnkeyableError: if `only` names what is not installed, or one was installed again after this
                process had loaded it.
        """
        if only is None:
            names = self._with_requirements(n for top in top_levels for n in self._owners.get(top, ()))
        else:
            names = {normalised(name) for name in only}
            for name in names - set(self.distributions):
                raise UnkeyableError(f"environment names {name!r}, which is not installed; leave it out")
        counted: dict[str, str] = {}
        for name in sorted(names):
            distribution = self.distributions[name]
            distribution.check()
            counted[name] = f"{distribution.version} {self._hash(distribution)}"
        return counted

    def observed(self, top_levels: Iterable[str]) -> dict[str, str]:
        """As `counted`; what was installed again after this process had loaded it counts as `REPLACED`."""
        found: dict[str, str] = {}
        for name in sorted(
            self._with_requirements(n for top in top_levels for n in self._owners.get(top, ()))
        ):
            try:
                found |= self.counted((), [name])
            except UnkeyableError:
                found[name] = REPLACED
        return found

    def _with_requirements(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        queue = list(names)
        while queue:
            name = queue.pop()
            if name not in found and name in self.distributions and name not in SELF_MODULES:
                found.add(name)
                queue.extend(self.distributions[name].requires)
        return found

    def _hash(self, distribution: Distribution) -> str:
        if distribution.editable_root is None and distribution.record:
            return distribution.record
        name = distribution.name
        if name not in self._hashes:
            self._hashes[name] = _hash_of_files(distribution)
        return self._hashes[name]


_latest: tuple[Any, Environment] | None = None


def lately() -> Environment:
    """What `sys.path` offered when this was last asked, as long as nothing is installed in its folders.

    For who asks again and again while a function runs: to read it takes milliseconds, and to hash what is
    installed from its sources, or has no RECORD, far more.
    """
    global _latest
    search = tuple(sys.path)
    state = search, [_stamp(folder or ".") for folder in search]
    if _latest is None or _latest[0] != state:
        _latest = state, Environment(search)
    return _latest[1]


def differing(counted: Mapping[str, str]) -> list[str]:
    """The names of the distributions that this process has loaded, and that are not as a recipe says, or were
    installed again since.

    Args:
        counted: those of the recipe, as `Environment.counted` gives them.
    """
    now = lately()
    found = []
    for name in counted.keys() & now.distributions.keys():
        distribution = now.distributions[name]
        is_loaded = not sys.modules.keys().isdisjoint(distribution.top_levels)
        try:
            if is_loaded and now.counted((), [name])[name] != counted[name]:
                found.append(name)
        except UnkeyableError:
            found.append(name)
    return sorted(found)


def default_dtype() -> str:
    """torch's default dtype, without loading torch: where it is not loaded, what it starts with.

    A default device other than the CPU is said beside it.
    """
    torch = sys.modules.get("torch")
    get: Any = getattr(torch, "get_default_dtype", None)
    get_device: Any = getattr(torch, "get_default_device", None)
    if get_device is not None and get_device().type != "cpu":
        return f"{get()} on {get_device()}"
    return str(get()) if get is not None else "torch.float32"


def python_version() -> str:
    return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"


@lru_cache(maxsize=8)
def _memoised(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = json.load(file)
        return dict(data)
    except (OSError, ValueError, TypeError):
        return {}


def _installed(folders: tuple[str, ...]) -> list[tuple[str, Distribution]]:
    memo_path = os.path.join(cache_folder(os.environ), f"distributions-v{ENVIRONMENT_VERSION}.json")
    memo = _memoised(memo_path)
    found: list[tuple[str, Distribution]] = []
    is_stale = False
    for folder in folders:
        is_site = os.path.basename(folder) in ("site-packages", "dist-packages")
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            # An .egg-info beside a project's sources says that it was installed from there.
            if not name.endswith((".dist-info", ".egg-info") if is_site else ".dist-info"):
                continue
            path = os.path.join(folder, name)
            stamps = [_stamp(os.path.join(path, part)) for part in ("RECORD", "METADATA", "direct_url.json")]
            if stamps[1] is None:
                stamps = [_stamp(path), _stamp(os.path.join(path, "PKG-INFO")), None]
            row = memo.get(path)
            distribution = None
            if row is not None and row[0] == stamps:
                with contextlib.suppress(TypeError, KeyError):
                    distribution = _from_row(row[1])
            if distribution is None:
                distribution = _read(path)
                if distribution is None:
                    continue
                memo[path] = [stamps, asdict(distribution)]
                is_stale = True
            found.append((folder, distribution))
    if is_stale:
        _save(memo_path, memo)
    return found


def _from_row(row: dict[str, Any]) -> Distribution:
    return Distribution(**{**row, "top_levels": tuple(row["top_levels"]), "requires": tuple(row["requires"])})


def _stamp(path: str) -> list[int] | None:
    try:
        return list(stamp_of(os.stat(path)))
    except OSError:
        return None


def _text(*parts: str) -> str | None:
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except (OSError, IsADirectoryError):
        return None


def _read(path: str) -> Distribution | None:
    """Reads one `.dist-info` or `.egg-info`; None if it names no distribution."""
    metadata = _text(path, "METADATA") or _text(path, "PKG-INFO") or _text(path)
    if metadata is None:
        return None
    fields: dict[str, str] = {}
    requires: list[str] = []
    for line in metadata.splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        if key == "Requires-Dist" and not re.search(r"\bextra\s*(==|in)", value):
            match = _REQUIREMENT.match(value)
            if match is not None:
                requires.append(normalised(match[1]))
        fields.setdefault(key, value.strip())
    if "Name" not in fields:
        return None
    record = _text(path, "RECORD")
    rows = [row for row in csv.reader(io.StringIO(record)) if row] if record is not None else None
    editable_root = _editable_root(_text(path, "direct_url.json"))
    if rows is not None:
        tops, digest = _top_levels(row[0] for row in rows), _record_hash(rows)
    else:  # Debian's packages and old eggs have no RECORD
        named = (_text(path, "top_level.txt") or fields["Name"].replace("-", "_")).split()
        tops, digest = tuple(sorted(named)), ""
    return Distribution(
        name=fields["Name"],
        version=fields.get("Version", ""),
        record=digest,
        top_levels=tops,
        requires=tuple(sorted(set(requires))),
        path=path,
        editable_root=editable_root,
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
        first = name.split("/", 1)[0]
        if "/" in name:
            if not first.endswith((".dist-info", ".egg-info", ".data")) and first != "__pycache__":
                tops.add(first)
        else:
            tops.add(first.split(".", 1)[0])
    return tuple(sorted(tops))


def _editable_root(direct_url: str | None) -> str | None:
    if direct_url is None:
        return None
    try:
        data = json.loads(direct_url)
        if not data.get("dir_info", {}).get("editable"):
            return None
        return unquote(urlparse(data["url"]).path)
    except (ValueError, KeyError, AttributeError):
        return None


def _hash_of_files(distribution: Distribution) -> str:
    if distribution.editable_root is not None:
        return _files_hash(distribution.editable_root)
    names = [n for top in distribution.top_levels for n in _files_under(distribution.folder, top)]
    return _bytes_hash(distribution.folder, names)


def _files_under(folder: str, top: str) -> list[str]:
    if os.path.isfile(os.path.join(folder, f"{top}.py")):
        return [f"{top}.py"]
    found = []
    for base, _, files in os.walk(os.path.join(folder, top)):
        found += [os.path.relpath(os.path.join(base, f), folder) for f in files if f.endswith(_CODE_SUFFIXES)]
    return sorted(found)


def _files_hash(root: str) -> str:
    """The hash of an editable distribution: its code files, hidden folders and environments left out."""
    names = []
    for base, folders, files in os.walk(root):
        folders[:] = sorted(
            f
            for f in folders
            if not f.startswith(".")
            and f != "__pycache__"
            and not os.path.exists(os.path.join(base, f, "pyvenv.cfg"))
        )
        names += [os.path.relpath(os.path.join(base, f), root) for f in files if f.endswith(_CODE_SUFFIXES)]
    return _bytes_hash(root, sorted(names))


def _bytes_hash(folder: str, names: Iterable[str]) -> str:
    hasher = blake3()
    for name in names:
        with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as file:
            data = file.read()
            hasher.update(b"%d:%s\0%d:" % (len(os.fsencode(name)), os.fsencode(name), len(data)))
            hasher.update(data)
    return hasher.hexdigest()[:32]


def _save(path: str, memo: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=os.path.dirname(path), prefix=".tmp-", delete=False
        ) as file:
            json.dump({p: row for p, row in memo.items() if os.path.exists(p)}, file, separators=(",", ":"))
        os.replace(file.name, path)
