"""The environment part of a recipe: torch's default dtype, and installed distributions.

A distribution counts by name, version and the hash of its RECORD; one without a RECORD, or installed
editable, by the bytes of its code files. With it count its requirements, but tools of packaging.

Invariants:
    1. Nothing is imported to find out; torch is asked only if it is loaded.
    2. The same wheels in another folder give the same hash.
    3. A distribution that was installed again, or machine code that was built again, after this process had
       loaded it is refused: what runs is no longer on the disk. Edited source counts as it was loaded.
    4. What was read of distributions is kept per user, and used only if nobody else may write it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from urllib.parse import unquote, urlparse

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.forks import kept
from prepcache.keys.code.import_graph import SourceFile, read_source
from prepcache.keys.code.project import SELF_MODULES, SITE_NAMES, loaded_from, space_of
from prepcache.keys.files.stat_cache import Stamp, path_stamp, write_whole
from prepcache.protocol.places import cache_folder

ENVIRONMENT_VERSION = 4  # rises when what counts of an environment changes; joins the recipe
REPLACED = "reinstalled after it was loaded"

_MEMO_NAME = "distributions-v6.json"
_TOOLS = re.compile("setuptools|pip|wheel|packaging|pkg-resources|build|installer|types-.*|.*-stubs")
_CODE_SUFFIXES = (".py", ".so", ".pyd")
_NO_MODULES = (".dist-info", ".egg-info", ".data", "__pycache__")
_STATED = ("", "METADATA", "RECORD", "direct_url.json")
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE)
_REQUIREMENT = re.compile(r"^Requires-Dist:[ \t]*([\w.-]+)(?!.*\bextra\s*(?:==|in))", re.MULTILINE)
_FORKED = 0x40  # PF_FORKNOEXEC in linux/sched.h: it was forked and has executed no program of its own
seen_texts: dict[str, tuple[int, ...] | None] = {}
"""The stamps of source files when they were loaded, or when nothing was loaded from them yet, by path."""
_compared: dict[tuple[str, int], bool] = {}  # by metadata and their time: whether another state is loaded


@dataclass
class Distribution:
    """An installed distribution; `path`: its `.dist-info`; `record_hash`: of the files of its wheel."""

    path: str
    version: str
    requires: list[str]
    top_levels: list[str]
    editable_root: str | None
    record_hash: str | None

    def __post_init__(self) -> None:
        self.folder, base = os.path.split(self.path)
        stem, _, ending = base.rpartition(".")
        self.name = _normalised(stem.rpartition("-")[0] if ending == "dist-info" else stem.partition("-")[0])

    @kept
    def hash(self) -> str:
        if self.editable_root is not None:
            return _code_hash(self.editable_root, [""])
        return self.record_hash or _code_hash(self.folder, self.top_levels)


def _read(path: str) -> list[Any]:
    """The fields of a distribution, but for its path."""

    def text(name: str) -> str:
        with contextlib.suppress(OSError):
            return os.fsdecode(Path(path, name).read_bytes())
        return ""

    metadata, record = text("METADATA") or text("PKG-INFO") or text(""), text("RECORD")
    # Not what an installer compiles, or writes elsewhere.
    others = ("../", "/", os.path.basename(path) + "/")
    lines = [line for line in record.splitlines() if not line.startswith(others) and ".pyc," not in line]
    tops = {line.partition(",")[0].partition("/")[:2] for line in lines}
    modules = {top for top, mark in tops if mark and not top.endswith(_NO_MODULES)}
    modules |= {top.partition(".")[0] for top, mark in tops if not mark and top.endswith(_CODE_SUFFIXES)}
    if not record:  # as of Debian's packages and old eggs
        name = _normalised(os.path.basename(path).partition("-")[0]).replace("-", "_")
        modules = {*(text("top_level.txt") or name).split()}
    editable_root = None
    with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
        origin = json.loads(text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            editable_root = unquote(urlparse(origin["url"]).path)
    version = next(iter(_VERSION.findall(metadata)), "")
    record_hash = blake3(os.fsencode("\n".join(sorted(lines)))).hexdigest()[:32] if record else None
    requires = [*map(_normalised, _REQUIREMENT.findall(metadata))]
    return [version, requires, sorted(modules), editable_root, record_hash]


class Environment:
    """The distributions that `sys.path` offers, at one time."""

    def __init__(self, search: Iterable[str] | None = None) -> None:
        self.distributions: dict[str, Distribution] = {}
        self.installed: dict[str, set[str]] = {}
        memo_path = os.path.join(cache_folder(os.environ), _MEMO_NAME)
        memo, new = _memoised(memo_path), dict[str, Any]()
        for path in _metadata_in(dict.fromkeys(sys.path if search is None else search)):
            stamps = [list(path_stamp(os.path.join(path, part) if part else path) or ()) for part in _STATED]
            if not (stamps[1] or path.endswith(".egg-info")):
                continue  # it is a rest of what was removed
            if (known := memo.get(path)) is None or known[0] != stamps:
                known = new[path] = [stamps, _read(path)]
            one = Distribution(path, *known[1])
            self.installed.setdefault(one.folder, set()).update(one.top_levels)
            self.distributions.setdefault(one.name, one)  # an earlier folder wins, as it does for imports
        if new:
            memo |= new
            _save(memo_path, memo)

    def counted(self, top_levels: Iterable[str], only: Iterable[str] | None = None) -> dict[str, str]:
        """The distributions that count, by name: those of top-level modules, or `only` those named."""
        found = {}
        for name in sorted(self.owning(top_levels) if only is None else {*map(_normalised, only)}):
            if name not in self.distributions:
                raise UnkeyableError(f"environment= names {name!r}, which is not installed; leave it out")
            if (state := self.state(name)) == REPLACED:
                raise _outdated(f"{name} was reinstalled", self.distributions[name].path)
            found[name] = state
        return found

    def owning(self, top_levels: Iterable[str]) -> set[str]:
        """The distributions of modules, and what these require."""
        found, tops = set[str](), {*top_levels}
        queue = [name for name, one in self.distributions.items() if not tops.isdisjoint(one.top_levels)]
        while queue:
            name = queue.pop()
            if name not in found and name in self.distributions and name not in SELF_MODULES:
                found.add(name)
                queue += [one for one in self.distributions[name].requires if not _TOOLS.fullmatch(one)]
        return found

    def state(self, name: str) -> str:
        """Version and hash of a distribution; `REPLACED` if it was installed again after it was loaded."""
        one = self.distributions[name]
        is_replaced = one.editable_root is None and _is_replaced(one)  # else its files count
        return REPLACED if is_replaced else f"{one.version} {one.hash}"


@lru_cache(maxsize=1)
def _offered(search: tuple[str, ...], stamps: tuple[Stamp | None, ...]) -> Environment:
    return Environment(search)


def lately() -> Environment:
    """What `sys.path` offers; kept as long as nothing is installed in its folders."""
    search = tuple(sys.path)
    return _offered(search, tuple(path_stamp(folder or ".") for folder in search))


def differing(counted: Mapping[str, str]) -> list[str]:
    now = lately()
    known = [now.distributions[name] for name in sorted(counted.keys() & now.distributions.keys())]
    loaded = [one.name for one in known if not sys.modules.keys().isdisjoint(one.top_levels)]
    return [name for name in loaded if now.state(name) != counted[name]]


def default_dtype() -> str:
    """torch's default dtype, and a default device other than the CPU, without loading torch."""
    torch: Any = sys.modules.get("torch")
    dtype = torch.get_default_dtype() if hasattr(torch, "get_default_dtype") else "torch.float32"
    device = torch.get_default_device() if hasattr(torch, "get_default_device") else None
    return str(dtype) if device is None or device.type == "cpu" else f"{dtype} on {device}"


def _metadata_in(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        # An .egg-info beside a project's sources says that it was installed from there.
        endings = (".dist-info", ".egg-info") if os.path.basename(folder) in SITE_NAMES else (".dist-info",)
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(folder or "."))
            yield from (os.path.join(folder, name) for name in names if name.endswith(endings))


@lru_cache(maxsize=8)
def _memoised(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, TypeError), open(path, "rb") as file:
        info = os.fstat(file.fileno())
        if info.st_uid == os.geteuid() and not info.st_mode & 0o022:
            return dict(json.load(file))
    return {}


def _save(path: str, memo: dict[str, Any]) -> None:
    there = {one: row for one, row in [*memo.items()] if os.path.exists(one)}
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_whole(Path(path), json.dumps(there, separators=(",", ":")).encode())


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _code_hash(folder: str, tops: Collection[str]) -> str:
    """Of the code files of modules in a folder ("" for all), without hidden folders and environments."""
    names = [f"{top}.py" for top in tops]
    for base, folders, files in (step for top in tops for step in os.walk(os.path.join(folder, top))):
        shown = [name for name in folders if not name.startswith((".", "__pycache__"))]
        folders[:] = [name for name in shown if not os.path.exists(os.path.join(base, name, "pyvenv.cfg"))]
        names += [os.path.relpath(os.path.join(base, f), folder) for f in files if f.endswith(_CODE_SUFFIXES)]
    hasher = blake3()
    for name in sorted(names):
        with contextlib.suppress(OSError):
            data = Path(folder, name).read_bytes()
            hasher.update(b"%d:%s\0%d:" % (len(os.fsencode(name)), os.fsencode(name), len(data)))
            hasher.update(data)
    return hasher.hexdigest()[:32]


def _is_replaced(one: Distribution) -> bool:
    *_, installed_ns = path_stamp(one.path) or (sys.maxsize,)
    if installed_ns < started_ns():
        return False
    state = one.path, installed_ns
    if state not in _compared:
        loaded = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] in one.top_levels]
        files = {str(space_of(module).get("__file__")) for module in loaded}
        own = [file for file in files if file.startswith(one.folder + os.sep)]
        if not own:
            return False  # what is loaded later is what was installed
        _compared[state] = not all(runs_as_written(file, is_library=True) for file in own)
    return _compared[state]


def check_rebuilt(path: str) -> None:
    """Refuses an extension module, or a library of `ctypes`, that was built again after it was loaded."""
    if _is_other_machine_code(path):
        raise _outdated(f"{path} was rebuilt", path)


def _outdated(what: str, path: str) -> UnkeyableError:
    why = f"{what} after this process had loaded it, so what runs is not what is on the disk"
    return UnkeyableError(f"{why}: restart the kernel, or the process", path=path)


def _is_other_machine_code(path: str) -> bool:
    if not re.search(r"\.so(\.|$)", os.path.basename(path)):
        return False
    real = os.path.realpath(path)
    try:
        info = os.stat(real)
        if info.st_ctime_ns < started_ns():
            return False
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            mapped = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    except OSError:  # no Linux, or the file is gone
        return False
    if any(row[4] == str(info.st_ino) for row in mapped):
        return False
    # An installer may have moved the old file before it removed it: of that the folder says nothing.
    gone = f"{os.sep}{os.path.basename(real)} (deleted)"
    return bool(loaded_from(path)) or any(row[-1].endswith(gone) for row in mapped)


def may_be_older(path: str, stamp: Stamp) -> bool:
    """Whether a file changed since the process began and may have been loaded before that."""
    return max(stamp[3:]) > started_ns() and seen_texts.get(path) != stamp


def runs_as_written(path: str, *, is_library: bool = False) -> bool:
    """Whether what this process has loaded from a file, if anything, is what the file holds now."""
    if not path.endswith(".py"):
        return not _is_other_machine_code(path)
    modules = [one for one in loaded_from(path) if type(one) is ModuleType]
    if not modules:
        return True
    try:
        source = read_source(path, path)
    except UnkeyableError:
        return False
    is_older = not is_library and may_be_older(path, source.stamp)
    return not is_older and all(_is_as_written(one, source) for one in modules)


def _is_as_written(module: ModuleType, source: SourceFile) -> bool:
    """Whether a module holds what a text says, as far as functions, numbers and texts show."""
    for name, value in list(vars(module).items()):
        for one in vars(value).values() if isinstance(value, type) else (value,):
            is_method = isinstance(one, staticmethod | classmethod)
            inner = one.__func__ if is_method else one.fget if isinstance(one, property) else one
            code = inner.__code__ if isinstance(inner, FunctionType) else None
            if code is not None and code.co_filename == source.path and not source.makes(code):
                return False
        is_fixed = isinstance(source.literals.get(name), int | float | complex | str | bytes)
        if is_fixed and not source.says(name, value):
            return False
    return True


@lru_cache(maxsize=1)
def started_ns() -> int:
    """When the process began whose modules these are, in ns since the epoch; 0 if unknown."""
    try:
        pid, flags = "self", _FORKED
        while flags & _FORKED and pid != "1":
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            pid, flags, ticks = fields[1], int(fields[6]), int(fields[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):  # no Linux
        return 0
    return time.time_ns() - age_ns - 10_000_000  # the clock of ticks is this coarse
