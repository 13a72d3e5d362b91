"""What the facts of a watch mean: inputs, as entries of a log that only grows, and outputs of the function.

What differs from an earlier entry is another entry, and a name with two digests has changed for good.

Invariants:
    1. A digest is that of the bytes that the function may have read: a file whose stamp is not the one that
       it had when it was used first, or a module that is not as its file says, gets a digest that nothing
       equals.
    2. What was to be opened, or was asked for, and was not there is an input too.
    3. An output is what was opened to be written before it was read (unless that kept what was there, and the
       item reads it), what lies in a folder that the function made, what was handed to a process or to C,
       was not read before, and is another when the item is made, and what was not read and is gone then. It
       takes back what other items only named or asked for. What else is another has changed, unless the code
       only names it (C code may write it): nobody was seen to make it.

Not here: how inputs are named, and told to others (observer.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prepcache.digests import RecipeDigest
from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.labels import space_of
from prepcache.keys.code.project import Place, Places
from prepcache.keys.environment import lately
from prepcache.keys.files.digest import Trust, is_directory, is_regular
from prepcache.keys.files.stamps import stamp_of
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation.audit import WAL
from prepcache.keys.observation.context import (
    ASKED,
    FOLDER_MADE,
    KEPT,
    LISTED,
    MODULE,
    MODULE_NAME,
    NAMED,
    READ,
    RENAMED,
    TOUCHED,
    WRITTEN,
    Fact,
    Watch,
    is_file_of_job,
)
from prepcache.keys.observation.inputs import (
    ABSENT,
    CHANGED,
    FOLDER_STAMP,
    OUTPUT,
    Input,
    Stamp,
    digest_now,
    digest_of_names,
    info_of,
    stamp_at,
    without_empty_log,
)
from prepcache.keys.observation.naming import Roots
from prepcache.keys.outdated import is_other_machine_code, runs_as_written
from prepcache.protocol.places import cache_folder

_MODULE_SUFFIXES = (".py", ".so", ".pyd")
_NO_INPUTS = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"
_NO_FILE = (None, FOLDER_STAMP)
_CACHE_FOLDER = f"{os.sep}__pycache__{os.sep}"
loads: list[tuple[set[str], list[Input]]] = []
"""The modules that items of this process loaded, and what was read meanwhile."""


class Scope(NamedTuple):
    """What of a recipe tells inputs apart, alike in all processes.

    Args:
        known: project files that the recipe counts, and their stamps.
        partly: those of which only some definitions count.
        literals: absolute paths that stand in the code.
        named_in_code: files that are there under paths that stand in the code.
        distributions: those that count.
        is_narrowed: whether these were named.
        leaves_out: whether the recipe leaves out some of what the code reaches.
    """

    digest: RecipeDigest
    roots: Roots
    known: Mapping[str, tuple[int, ...] | None]
    partly: frozenset[str]
    literals: frozenset[str]
    named_in_code: frozenset[str]
    distributions: Mapping[str, str]
    is_narrowed: bool
    leaves_out: bool

    def shares_code(self, other: Scope) -> bool:
        """Whether a project file counts in both; where none counts, that is not known."""
        return not (self.known and other.known and self.known.keys().isdisjoint(other.known))


@dataclass(slots=True)
class _Use:
    """What one item did with a path.

    Args:
        stamp: what was there at first.
        folders: as of `Input`, of each use.
        kinds: of its facts: READ, ASKED, NAMED (to a process or a C library), LITERAL (in the code), TOUCHED.
    """

    stamp: Stamp | None
    folders: dict[str | None, None] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)

    def is_made(self, now: Stamp | None) -> bool:
        """Whether the function made what is there now."""
        if now == self.stamp:
            return False
        if self.stamp is None:
            return NAMED in self.kinds
        return READ not in self.kinds and (now is None or NAMED in self.kinds or ASKED not in self.kinds)

    def see(self, now: Stamp | None) -> None:
        """Follows the stamp of what was touched and not read: its bytes may be the same."""
        if TOUCHED in self.kinds and READ not in self.kinds:
            self.stamp = now


class Findings:
    """The inputs and outputs of a function so far, over any number of items and threads.

    Locking:
        None: entries are appended and items of dicts are set, which is atomic.
    """

    def __init__(self, scope: Scope, stat_cache: StatCache | None, trust: Trust) -> None:
        self._scope, self._stat_cache, self.trust = scope, stat_cache, trust
        self.log: list[Input] = []
        self.modules: dict[str, None] = {}
        """Files of modules that were met, with all that they import."""
        self.top_levels: dict[str, None] = {}
        """Modules of distributions that were met."""
        self._last: dict[str, dict[str | None, Input]] = {}
        """The last entry of the log by path and working directory."""
        self._listed: dict[tuple[str, str | None], Input] = {}
        """The same, of the names in folders."""
        self._outputs: dict[str, None] = {}
        self._places = Places(lately().installed)
        self._ignored = (*_NO_INPUTS, os.path.join(cache_folder(os.environ), ""))

    def take(self, watch: Watch) -> None:
        """Takes in what a watch has seen, when its item is made."""
        facts = list(watch.facts.values())
        uses: dict[str, _Use] = {}
        for fact in facts:
            last = self._last.get(fact.path, {}).get(fact.folder) if fact.kind == READ else None
            is_known = last is not None and last.is_read and last.stamp == stamp_at(fact.info)
            if not is_known or fact.info is None or self._outputs:
                self._take_fact(fact, watch, uses)
        for path, use in uses.items():
            self._settle(path, use)
        modules = {fact.full for fact in facts if fact.kind == MODULE and is_file_of_job(fact.full)}
        if modules:
            paths = {fact.full for fact in facts if not watch.owns(fact.full)}
            read = [one for one in self.log if one.path in paths and one.kind != "module"]
            if (modules, read) not in loads:
                loads.append((modules, read))

    def _take_fact(self, fact: Fact, watch: Watch, uses: dict[str, _Use]) -> None:
        if fact.kind == MODULE_NAME:
            for path in _files_of_module(fact.path):
                self.take_module(path)
            for path in _files_awaited(fact.path):
                info = info_of(path)
                if self._is_input(path, info):
                    self._settle(path, _Use(stamp_at(info), {None: None}, {READ}))
            return
        full = fact.full
        use = uses.get(full)
        if fact.kind == MODULE:
            self.take_module(full)
        elif fact.kind == LISTED:
            self._take_listing(full, fact, watch)
        elif fact.kind == FOLDER_MADE:
            if fact.info is None or (use is not None and use.stamp is None):  # others may have been first
                self._put_out(full, uses)
        elif fact.kind == KEPT and fact.info is not None and (READ, *fact[1:3]) in watch.facts:
            pass  # locked, touched, or not made because it was there
        elif fact.kind in (WRITTEN, KEPT):
            if use is None or READ not in use.kinds or use.stamp is None:
                self._put_out(full, uses)
        elif fact.kind == RENAMED:
            uses.pop(full, None)
            former = uses.get(fact.other)
            if self._is_output(fact.other) or (former is not None and former.stamp is None):
                self._put_out(full, uses)
        elif not self._is_output(full) and not watch.owns(full) and self._is_input(full, fact.info):
            self._take_use(full, fact, uses)

    def _take_use(self, full: str, fact: Fact, uses: dict[str, _Use]) -> None:
        now = stamp_at(without_empty_log(full, fact.info))
        if fact.kind == TOUCHED and now is None:
            return
        use = uses.setdefault(full, _Use(now))
        use.see(now)
        if now != use.stamp:
            if use.is_made(now) and (now is None or NAMED in use.kinds):
                self._put_out(full, uses)
                return
            use.kinds.add(READ)  # who changed it was not seen: it stays an input, which has changed
        use.folders[fact.folder] = None
        use.kinds.add(fact.kind)

    def _settle(self, path: str, use: _Use) -> None:
        """Notes a path that an item used as an input, or as an output, when the item is made."""
        now = stamp_at(info_of(path))
        use.see(now)
        if use.is_made(now):
            self._put_out(path, {path: use})
            return
        if use.kinds == {TOUCHED} or (ASKED not in use.kinds and READ not in use.kinds and now in _NO_FILE):
            return
        is_module = path.endswith(_MODULE_SUFFIXES)
        kind = "folder" if use.stamp == FOLDER_STAMP else "module" if is_module else "file"
        entries, digest = self._last.setdefault(path, {}), ""
        is_read = READ in use.kinds
        for folder in use.folders:
            last = entries.get(folder)
            is_known = last is not None and (last.digest == CHANGED or last.stamp == use.stamp == now)
            if is_known and last is not None and last.is_read >= is_read:
                continue
            if not digest:
                digest, stamp = digest_now(path, self._stat_cache, self.trust)
                is_other = is_module and not runs_as_written(path)
                if stamp != use.stamp or is_other or is_other_machine_code(path):
                    digest = CHANGED
            entry = Input(kind, digest, "", path, use.stamp, is_read, folder)
            if last is not None:
                is_equal = last.stamp == use.stamp or (TOUCHED in use.kinds and last.digest == digest)
                is_first = is_equal and last.digest != CHANGED
                entry = entry._replace(
                    digest=digest if is_first else CHANGED, is_read=is_read or last.is_read
                )
            entries[folder] = entry
            if last is None or last._replace(stamp=entry.stamp) != entry:
                self.log.append(entry)

    def _put_out(self, path: str, uses: dict[str, _Use]) -> None:
        """Notes an output; it may be an input of another item by its name alone."""
        use = uses.pop(path, None)
        if use is not None or path in self._last:
            self.log.append(Input(OUTPUT, "", path=path))
        self._outputs[path] = None

    def _is_output(self, path: str) -> bool:
        """Whether the function made a file, or a folder that it lies in."""
        path = path.removesuffix(WAL)
        while self._outputs and path not in self._outputs:
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above
        return bool(self._outputs)

    def take_module(self, path: str) -> None:
        """A module that was loaded, or asked for by its name: it counts with all that it imports."""
        if path in self.modules:
            return
        self.modules[path] = None
        if self._places.of(path) is Place.SITE:
            self._count_distribution(path)
            return
        graph = ImportGraph(self._places)
        if path.endswith(".py"):
            names = {_file_of(one): name for name, one in list(sys.modules.items())}
            with contextlib.suppress(UnkeyableError):  # it can't be parsed: it counts, and imports nothing
                graph.add_file(names.get(path, "__unknown__"), path)
        for one in dict.fromkeys((path, *graph.files.values())):
            self.modules[one] = None
            info = info_of(one)
            if info is not None and self._is_input(one, info):
                self._settle(one, _Use(stamp_of(info), {None: None}, {READ}))
        self.top_levels.update(dict.fromkeys(graph.top_levels))

    def _take_listing(self, full: str, fact: Fact, watch: Watch) -> None:
        if self._is_output(full) or self._is_ignored(full) or watch.owns(full):
            return
        if self._places.of(full + os.sep + "x") is Place.PROJECT:
            digest = ABSENT if fact.other is None else digest_of_names(fact.other)
            entry = Input("folder", digest, path=full, folder=fact.folder)
            if self._listed.get((full, fact.folder)) != entry:
                self._listed[full, fact.folder] = entry
                self.log.append(entry)

    def _is_ignored(self, path: str) -> bool:
        """Whether a path leads to what says nothing: of the system, or what Python keeps of a source."""
        is_of_system = path.startswith(self._ignored) and not path.startswith(_SHARED_MEMORY)
        return is_of_system or _CACHE_FOLDER in path

    def _is_input(self, path: str, info: os.stat_result | None) -> bool:
        """Whether what was used by its name counts. A library's file counts by its distribution."""
        if info is not None:
            if is_directory(info):
                path = os.path.join(path, "x")  # as what is in it
            elif not is_regular(info):
                return False  # a device, a pipe, a socket
        known, is_whole = self._scope.known, path not in self._scope.partly
        is_edited = info is not None and known.get(path) not in (None, stamp_of(info))
        if (path in known and is_whole and not is_edited) or self._is_ignored(path):
            return False
        place = self._places.of(path)
        if place is Place.SITE and path.endswith(_MODULE_SUFFIXES):
            self._count_distribution(path)
        return place is Place.PROJECT

    def _count_distribution(self, path: str) -> None:
        if not self._scope.is_narrowed:
            self.top_levels.update(dict.fromkeys(self._places.tops_of(path)))


def _file_of(module: Any) -> str | None:
    """The file of a loaded module, if it says one."""
    return space_of(module).get("__file__")


def _files_of_module(module: str) -> list[str]:
    """The files of a loaded module and of the packages it lies in; of a package, also those of all loaded
    modules in it: of "a.b.C" hydra imports `a`, and gets the rest by attributes."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    if hasattr(sys.modules.get(module), "__path__"):
        names += [name for name in list(sys.modules) if name.startswith(module + ".")]
    return [path for name in names if (path := _file_of(sys.modules.get(name))) is not None]


def _files_awaited(module: str) -> list[str]:
    """Where a module that is not loaded would be found; of several in a dotted name, the outermost."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    missing = next((name for name in names if sys.modules.get(name) is None), None)
    if missing is None:
        return []
    above, _, last = missing.rpartition(".")
    folders = getattr(sys.modules[above], "__path__", ()) if above else sys.path
    return [
        os.path.join(os.path.abspath(folder), *ending)
        for folder in folders
        for ending in ((f"{last}.py",), (last, "__init__.py"))
    ]
