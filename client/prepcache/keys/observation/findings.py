"""What facts mean: which files, folders and modules are inputs of a function, and which are its outputs.

Invariants:
    1. A digest is that of the bytes that the function may have read: a file whose stamp is not the one that
       it had when it was seen first, or a module's that is not the text that it was loaded from, gets a
       digest that nothing equals.
    2. What was to be opened, or was asked for, and was not there is an input too.
    3. An output is what was opened to be written before it was read, and all that lies in a folder that was
       not there before. What appears where nothing was, and nobody saw who made it, has changed.
    4. What was only named (to a process, to a C library, in the code) or asked for, and changed or appeared
       under its name while the item was made, is an output; else it is an input.

Not here: how they are named and told to others (observer.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prepcache.databases import file_under, is_empty_log, without_suffix
from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import Finder, ImportGraph
from prepcache.keys.code.project import Place, Places
from prepcache.keys.environment import lately
from prepcache.keys.files.digest import Trust, is_directory, is_regular, stamp_of
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation.context import (
    ASKED,
    FOLDER_MADE,
    LINKED,
    LISTED,
    MODULE,
    MODULE_NAME,
    NAMED,
    READ,
    RENAMED,
    WRITTEN,
    Fact,
    Watch,
)
from prepcache.keys.observation.inputs import ABSENT, digest_now, digest_of_names, info_of, stamp_at
from prepcache.protocol.places import cache_folder

_NO_INPUTS = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"
MODULE_SUFFIXES = (".py", ".so", ".pyd")
_CACHE_FOLDER = f"{os.sep}__pycache__{os.sep}"
_USES = (NAMED, ASKED, READ)
"""What was done with a file, from the least that it may mean."""
Met = dict[str, tuple[Any, bool]]
"""Of what was met for one item: what was there then, and whether it was to be opened or asked for."""


@dataclass(slots=True)
class Seen:
    """A file that is an input.

    Args:
        path: from the root.
        folders: the working directories in which it was used by a relative name; None for an absolute one.
        stamp: what was there when it was seen first; None for nothing.
        use: what was done with it, one of `_USES`.
        known: a digest, and a stamp that a later write could not have left as it is.
    """

    path: str
    folders: dict[str | None, None]
    stamp: tuple[int, ...] | None
    use: str
    has_changed: bool = False
    known: tuple[str, tuple[int, ...]] | None = None

    def digest(
        self, info: os.stat_result | None, stat_cache: StatCache | None, trust: Trust
    ) -> tuple[str, tuple[int, ...] | None]:
        """Its digest and stamp, from what is there. Each batch asks for those of all files seen so far."""
        if info is None:
            return ABSENT, None
        if self.known is not None and self.known[1] == stamp_at(info):
            return self.known
        digest, stamp, is_racy = digest_now(self.path, stat_cache, trust)
        if stamp is not None and not is_racy and trust == "stat":
            self.known = digest, stamp
        return digest, stamp


class Findings:
    """The inputs and outputs of a function so far, over any number of items and threads.

    Args:
        known: project files that the recipe counts, and their stamps.
        partly: those of which only some definitions count.
        is_narrowed: whether the recipe names its distributions.

    Locking:
        None: items of dicts are set, and deques appended to, which is atomic.
    """

    def __init__(
        self, known: Mapping[str, tuple[int, ...] | None], partly: frozenset[str], *, is_narrowed: bool
    ) -> None:
        self._known, self._partly, self._is_narrowed = known, partly, is_narrowed
        self.seen: dict[str, Seen] = {}
        self.fresh: deque[Seen] = deque()
        """What was seen, or is known otherwise, since somebody emptied it."""
        self.listed: dict[str, tuple[str | None, str]] = {}
        """The working directory of who listed a folder by a relative name, and the digest of its names."""
        self.top_levels: dict[str, None] = {}
        self.modules: dict[str, None] = {}
        """Files of modules that were met, with all that they import."""
        self._outputs: dict[str, None] = {}
        self._folders_made: dict[str, None] = {}
        self._places = Places(lately().installed)
        self._ignored = (*_NO_INPUTS, os.path.join(cache_folder(os.environ), ""))

    def take(self, facts: list[Fact], watch: Watch) -> None:
        """Takes in what a watch has seen, when its item is made."""
        met = self.take_again(facts, watch)
        for path, (stamp, is_question) in met.items():
            self._settle(path, stamp, is_question)

    def take_again(self, facts: list[Fact], watch: Watch) -> Met:
        """Takes in what was seen for an item that is long made, as another data set's."""
        met: Met = {}
        for fact in facts:
            if not self._is_known(fact):
                self._take_fact(fact, watch, met)
        return met

    def inherit(self, other: Findings) -> None:
        """Takes over what was found for another data set."""
        for path, seen in list(other.seen.items()):
            if path not in self.seen and not self.is_output(path):
                self.see_again(seen)
        for path, listed in list(other.listed.items()):
            self.listed.setdefault(path, listed)
        self.top_levels.update(other.top_levels)

    def see_again(self, seen: Seen) -> None:
        copy = self.seen[seen.path] = replace(seen, folders=dict(seen.folders))
        self.fresh.append(copy)

    def _is_known(self, fact: Fact) -> bool:
        """Whether a fact tells nothing new: a file that is an input already was read again, as it was."""
        if fact.kind != READ or fact.folder is not None or fact.info is None or self._folders_made:
            return False
        seen = self.seen.get(fact.path)  # none by a name that is not the shortest one
        if seen is None or seen.use != READ or None not in seen.folders:
            return False
        return seen.stamp == stamp_at(fact.info)

    def _settle(self, path: str, stamp: Any, is_question: bool) -> None:
        """Tells inputs from outputs among what was met for one item, when that is made.

        Args:
            stamp: what was there when it was met first.
            is_question: whether it was to be opened, or was asked for, and not only named.
        """
        now = stamp_at(info_of(path))
        seen = self.seen.get(path)
        if now == stamp or self.is_output(path):
            return
        if stamp is None and is_question:  # somebody put it there, nobody saw who
            if seen is not None:
                self._note_changed(seen)
        elif seen is None or seen.use != READ:
            self._outputs[path] = None
            self.seen.pop(path, None)

    def _take_fact(self, fact: Fact, watch: Watch, met: Met) -> None:
        if fact.kind == MODULE_NAME:
            for path in files_of_module(fact.path):
                self._take_module(path, is_new=False)
            return
        full = fact.full
        if fact.kind == MODULE:
            self._take_module(full, is_new=True)
        elif fact.kind == FOLDER_MADE:
            if fact.info is None or met.get(full, fact)[0] is None:  # others may have been first
                self._folders_made[full] = self._folders_made[os.path.realpath(full)] = None
                self._drop(full)
        elif fact.kind in (RENAMED, LINKED):
            met.pop(full, None)
            self._take_name(full, fact, watch, met)
        elif fact.kind == WRITTEN:
            seen = self.seen.get(full)
            if seen is None or seen.use != READ or (seen.stamp is None and fact.info is None):
                self.seen.pop(full, None)
                self._outputs[full] = None
        elif fact.kind == LISTED:
            self._take_listing(full, fact, watch)
        else:
            self._take_file(full, fact, watch, met)

    def _take_name(self, full: str, fact: Fact, watch: Watch, met: Met) -> None:
        """Takes in that something gets another name, which is an output if the function made that. What was
        renamed counts by its new name, if that is read."""
        if fact.info is None:
            self._drop(full)
        was_not_there = fact.other in met and met[fact.other][0] is None
        if was_not_there or self.is_output(fact.other):
            self._outputs[full] = self._folders_made[full] = None
        elif fact.kind == LINKED:  # what lies there by another name can't be told apart
            watch.failure = watch.failure or "it links to a file or folder that it did not make"

    def _take_file(self, full: str, fact: Fact, watch: Watch, met: Met) -> None:
        info = None if fact.info is not None and is_empty_log(full, fact.info.st_size) else fact.info
        is_folder = info is not None and is_directory(info)
        if fact.kind == NAMED and is_folder and (inner := file_under(full)) is not None:
            full, info, is_folder = inner, info_of(inner), False  # LMDB is handed a folder
        if self.is_output(full) or watch.owns(full, by_links=full not in self.seen):
            return
        if fact.kind == NAMED and is_folder:
            return
        stamp = stamp_at(info)
        before = met.get(full, (stamp, True))
        met[full] = before[0], before[1] and fact.kind != NAMED
        if before == (None, False) and stamp is not None:  # it was named, and then it was there
            self._outputs[full] = None
            return
        known = self.seen.get(full)
        if known is not None and known.use != READ and before[0] not in (None, stamp):
            self.seen.pop(full)
            self._outputs[full] = None
        elif known is not None:
            if fact.folder not in known.folders:
                known.folders[fact.folder] = None
                self.fresh.append(known)
            known.use = max(known.use, fact.kind, key=_USES.index)
            if known.stamp != stamp:
                self._note_changed(known)
        elif (stamp is not None or fact.kind != NAMED) and self._is_input(full, info):
            self._see(full, fact.folder, stamp, fact.kind)

    def _see(self, path: str, folder: str | None, stamp: Any, use: str = READ) -> None:
        seen = self.seen[path] = Seen(path, {folder: None}, stamp, use)
        self.fresh.append(seen)

    def _drop(self, path: str) -> None:
        """What was not there, and the function puts there now, is no input by its absence."""
        if (seen := self.seen.get(path)) is not None and (seen.stamp is None or seen.use != READ):
            del self.seen[path]

    def is_output(self, path: str) -> bool:
        """Whether the function made a file: by its name, or by a folder of its own."""
        return path in self._outputs or without_suffix(path) in self._outputs or self._is_within_own(path)

    def _is_within_own(self, path: str) -> bool:
        """Whether a path is, or lies in, a folder that the function made."""
        while self._folders_made and path not in self._folders_made:
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above
        return bool(self._folders_made)

    def _take_module(self, path: str, *, is_new: bool) -> None:
        """A module that was loaded, or asked for by its name: it counts with all that it imports.

        Args:
            is_new: whether it was loaded now, from what its file says now.
        """
        if path in self.modules:
            return
        self.modules[path] = None
        if self._places.of(path) is Place.SITE:
            self._count_distribution(path)
            return
        modules = {file: name for name, one in list(sys.modules.items()) if (file := file_of(one))}
        graph = ImportGraph(Finder(sys.path, self._places))
        if path.endswith(".py"):
            with contextlib.suppress(UnkeyableError):  # it can't be parsed: it counts, and imports nothing
                graph.add_file(modules.get(path, "__unknown__"), path)
        for one in dict.fromkeys((path, *graph.files.values())):
            self.modules[one] = None
            info = info_of(one)
            is_edited = is_new and self._is_edited(one, info)
            is_counted = one in self._known and one not in self._partly and not is_edited
            if info is None or is_counted or self._places.of(one) is not Place.PROJECT:
                continue
            if one not in self.seen:
                self._see(one, None, stamp_of(info))
        self.top_levels.update(dict.fromkeys(graph.top_levels))

    def _is_edited(self, path: str, info: os.stat_result | None) -> bool:
        """Whether a file that the recipe counts is another by now."""
        counted = self._known.get(path)
        return counted is not None and info is not None and stamp_of(info) != counted

    def _take_listing(self, full: str, fact: Fact, watch: Watch) -> None:
        if full in self.listed or self.is_output(full) or self._is_ignored(full):
            return
        if self._places.of(full + os.sep + "x") is Place.PROJECT and not watch.owns(full):
            digest = ABSENT if fact.other is None else digest_of_names(fact.other)
            self.listed[full] = fact.folder, digest

    def _note_changed(self, seen: Seen) -> None:
        if not seen.has_changed:
            self.fresh.append(seen)
        seen.has_changed = True

    def _is_ignored(self, path: str) -> bool:
        """Whether a path leads to what says nothing: of the system, or what Python keeps of a source."""
        is_of_system = path.startswith(self._ignored) and not path.startswith(_SHARED_MEMORY)
        return is_of_system or _CACHE_FOLDER in path

    def _is_input(self, path: str, info: os.stat_result | None) -> bool:
        """Whether what was used by its name counts. A library's file counts by its distribution."""
        if info is not None and is_directory(info):
            path = os.path.join(path, "x")  # as what is in it
        is_counted = path in self._known and path not in self._partly and not self._is_edited(path, info)
        if is_counted or self._is_ignored(path):
            return False
        if info is not None and not (is_regular(info) or is_directory(info)):
            return False  # a device, a pipe, a socket
        place = self._places.of(path)
        if place is Place.SITE and path.endswith(MODULE_SUFFIXES):
            self._count_distribution(path)
        return place is Place.PROJECT

    def _count_distribution(self, path: str) -> None:
        if not self._is_narrowed:
            self.top_levels.update(dict.fromkeys(self._places.tops_of(path)))


def file_of(module: Any) -> str | None:
    """The file of a loaded module, if it says one."""
    return getattr(module, "__dict__", {}).get("__file__")


def files_of_module(module: str) -> list[str]:
    """The files of a loaded module and of the packages it lies in; of a package, also those of all loaded
    modules in it: of "a.b.C" hydra imports `a`, and gets the rest by attributes."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    if hasattr(sys.modules.get(module), "__path__"):
        names += [name for name in list(sys.modules) if name.startswith(module + ".")]
    return [path for name in names if (path := file_of(sys.modules.get(name))) is not None]
