"""The observer: what a function reads beside its item, over all of its calls, as rows for the artifact.

    {"kind": "file", "name": "project:vocab.txt", "digest": "<64 hex>"}     also "items:", "cwd:", "/..."
    {"kind": "module", "name": "project:plugins/fast.py", "digest": "<64 hex>"}
    {"kind": "folder", "name": "project:data", "digest": "<64 hex>"}         the names in it, if it was listed
    {"kind": "folder", "name": "project:data/", "digest": "a folder"}        that it is there, if asked for
    {"kind": "distribution", "name": "imageio", "digest": "2.1 <hash>"}

When an item is made, the facts of its watch become inputs or outputs. Inputs are appended to a log, which is
never changed: what differs from an earlier entry is another one, and a name with two digests has changed.

Invariants:
    1. A digest is that of the bytes that the function may have read: a file whose stamp is not the one that
       it had when it was used first, or a module that is not as its file says, gets a digest that nothing
       equals.
    2. What was to be opened, or was asked for, and was not there is an input too.
    3. An output is what was opened to be written before it was read, what lies in a folder that the function
       made, and what was only named or asked for and is another when the item is made. What was asked for,
       was not there, and appears without anybody being seen to make it, has changed.

NOTE [ What is loaded once ]
    What was read while a function's state was built counts for every data set that uses that state from then
    on, though nothing is read again:
      - for an item that loaded modules: for the data sets that count or meet one of these modules;
      - by the calls that changed what the function holds (keys/own_state.py): for the recipe that counts the
        state as it was before them;
      - where a recipe leaves something out (`untracked=`, a key of one's own): all that was read for others
        of its code.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prepcache.digests import RecipeDigest
from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.project import Place, Places
from prepcache.keys.code.source_files import runs_as_written
from prepcache.keys.environment import lately
from prepcache.keys.files.digest import Trust, is_directory, is_regular
from prepcache.keys.files.stamps import stamp_of
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.observation import audit, calls, context, unseen
from prepcache.keys.observation.context import (
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
    Notice,
    Watch,
)
from prepcache.keys.observation.inputs import (
    ABSENT,
    CHANGED,
    FOLDER_STAMP,
    Input,
    Joined,
    Stamp,
    digest_now,
    digest_of_names,
    info_of,
    row_of,
    stamp_at,
    without_empty_log,
)
from prepcache.keys.observation.naming import Roots
from prepcache.keys.recipes import Recipe
from prepcache.keys.restart import is_other_machine_code
from prepcache.protocol.places import cache_folder

_MODULE_SUFFIXES = (".py", ".so", ".pyd")
_NO_INPUTS = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"
_CACHE_FOLDER = f"{os.sep}__pycache__{os.sep}"
_STARTED = (
    "it starts processes ({programs}). Of the files that they read, only those on their command line are "
    "observed: change version= when others change"
)
_UNSEEN = (
    "it reads files that prepcache cannot observe ({size} for one item; in a C library, as "
    "cv2.imread does). Their edits would not be noticed: pass their paths in the item, or change "
    "version= with them"
)


class Seen(NamedTuple):
    """An input.

    Args:
        folder: the working directory in which it was used by a relative name; None for an absolute one.
        stamp: what was there when it was used first; None for nothing, and for a folder that was listed.
    """

    kind: str
    path: str
    folder: str | None
    stamp: Stamp | None
    digest: str


@dataclass(slots=True)
class _Use:
    """What one item did with a path.

    Args:
        stamp: what was there at first.
        folders: as of `Seen`, of each use.
        is_read: it was to be opened.
        is_asked: it was to be opened, or asked for.
        is_named: it was named, to a process, to a C library or in the code.
    """

    stamp: Stamp | None
    folders: dict[str | None, None] = field(default_factory=dict)
    is_read: bool = False
    is_asked: bool = False
    is_named: bool = False

    def is_made(self, now: Stamp | None) -> bool:
        """Whether the function made what is there now."""
        if now == self.stamp:
            return False
        return self.is_named if self.stamp is None else not self.is_read


class _Scope(NamedTuple):
    """What an observer is told, alike in all processes.

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

    def shares_code(self, other: _Scope) -> bool:
        """Whether a project file counts in both; where none counts, that is not known."""
        return not (self.known and other.known and self.known.keys().isdisjoint(other.known))


class Observer:
    """Records what a function reads, over any number of items and threads.

    Args:
        recipe: what is counted by it already is no observation.
        root: the data set's `root=`.
        stat_cache: digests of files that are known by stamp.
        trust: "content" reads every file, whatever the stat cache knows.

    Locking:
        None: entries are appended and items of dicts are set, which is atomic. A log is marked as told after
        what is in it was.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        root: str | os.PathLike[str] | None = None,
        stat_cache: StatCache | None = None,
        trust: Trust = "stat",
    ) -> None:
        scope = _Scope(
            recipe.digest,
            Roots.of(recipe, root),
            recipe.reached,
            recipe.partly,
            recipe.literal_paths,
            recipe.named_files,
            recipe.parts["environment"]["distributions"],
            recipe.asked.get("environment") is not None,
            recipe.leaves_out,
        )
        self._begin(scope, stat_cache, trust, inherited=[one for one in recipe.inherits if one is not None])

    def _begin(
        self,
        scope: _Scope,
        stat_cache: StatCache | None,
        trust: Trust,
        given: Sequence[Seen] = (),
        inherited: Sequence[Observer] = (),
    ) -> None:
        self._scope, self._stat_cache, self._trust = scope, stat_cache, trust
        self._given, self._inherited = given, inherited
        self._log: list[Seen] = []
        self._known: dict[tuple[str, str | None], Stamp | str | None] = {}
        """The stamps of what is in the log, or `CHANGED`, by path and working directory."""
        self._listed: dict[str, None] = {}
        self._outputs: dict[str, None] = {}
        self._modules: dict[str, None] = {}
        """Files of modules that were met, with all that they import."""
        self._top_levels: dict[str, None] = {}
        self._places = Places(lately().installed)
        self._ignored = (*_NO_INPUTS, os.path.join(cache_folder(os.environ), ""))
        self._told: dict[int, int] = {}
        self._joined, self._in_joined = Joined(), dict[int, int]()
        self._code = calls.JobCode(scope.known)
        self._said: set[str] = set()
        self._reads = unseen.Reads()
        self._programs: dict[str, None] = {}

    def __reduce__(self) -> Any:
        """Begins elsewhere with what its function's state was built from: it gets the function as it is."""
        given = [*self._given, *(seen for one in self._inherited for log in one._logs() for seen in log)]
        return _of_this_process, (self._scope, self._trust, given)

    def new_notices(self) -> tuple[Notice, ...]:
        """What the user should be told, and was not found out before in this process."""
        found = []
        if self._programs and "started" not in self._said:
            found.append(Notice("started", _STARTED.format(programs=", ".join(list(self._programs)[:3]))))
        if self._reads.unseen_bytes and "unseen" not in self._said:
            found.append(Notice("unseen", _UNSEEN.format(size=f"{self._reads.unseen_bytes:,} bytes")))
        self._said.update(one.topic for one in found)
        return tuple(found)

    @contextlib.contextmanager
    def watching(
        self, item_paths: Iterable[str | os.PathLike[str]] = (), function: Any = None
    ) -> Iterator[Watch]:
        """Watches this thread, and what works for it, while the function works on one item.

        Args:
            item_paths: files and folders of the item; they count by the item digest.
            function: whose code is looked at, beside that of the files that the recipe counts.

        Returns:
            the watch, whose `failure` says, when it has ended, whether it may have missed anything.
        """
        watch = Watch(self, context.absolute(item_paths))
        audit.install()
        self._code.look(function)
        try:
            with calls.heard(self._code, watch):
                before = self._reads.begin()
                with context.begun(watch):
                    for path in self._scope.named_in_code:
                        context.note(NAMED, path)
                    yield watch
                self._reads.end(watch, before)
        finally:
            try:
                self._take(watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, something may not have been counted
                watch.failure = watch.failure or type(error).__name__

    def has_listed(self, path: str) -> bool:
        """Whether the names in a folder are known, by an absolute path."""
        return path in self._listed

    # -- what facts mean

    def _take(self, watch: Watch) -> None:
        """Takes in what a watch has seen, when its item is made."""
        _used[self] = None
        self._programs.update(dict.fromkeys(watch.programs))
        facts = list(watch.facts.values())
        uses: dict[str, _Use] = {}
        for fact in facts:
            is_known = fact.kind == READ and not self._outputs and fact.info is not None
            if not is_known or self._known.get((fact.path, fact.folder)) != stamp_at(fact.info):
                self._take_fact(fact, watch, uses)
        for path, use in uses.items():
            self._settle(path, use)
        modules = {fact.full for fact in facts if fact.kind == MODULE and calls.is_file_of_job(fact.full)}
        if modules:
            paths = {fact.full for fact in facts if not watch.owns(fact.full)}
            read = [one for one in self._log if one.path in paths and one.kind != "module"]
            _loads.append((modules, read))

    def _take_fact(self, fact: Fact, watch: Watch, uses: dict[str, _Use]) -> None:
        if fact.kind == MODULE_NAME:
            for path in _files_of_module(fact.path):
                self._take_module(path)
            return
        full = fact.full
        use = uses.get(full)
        if fact.kind == MODULE:
            self._take_module(full)
        elif fact.kind == LISTED:
            self._take_listing(full, fact, watch)
        elif fact.kind == FOLDER_MADE:
            if fact.info is None or (use is not None and use.stamp is None):  # others may have been first
                self._put_out(full, uses)
        elif fact.kind == WRITTEN:
            if use is None or not use.is_read or use.stamp is None:
                self._put_out(full, uses)
        elif fact.kind in (RENAMED, LINKED):
            uses.pop(full, None)
            former = uses.get(fact.other)
            if self._is_output(fact.other) or (former is not None and former.stamp is None):
                self._put_out(full, uses)
            elif fact.kind == LINKED:  # what lies there by another name can't be told apart
                watch.failure = watch.failure or "it links to a file or folder that it did not make"
        elif not self._is_output(full) and not watch.owns(full) and self._is_input(full, fact.info):
            self._take_use(full, fact, uses)

    def _take_use(self, full: str, fact: Fact, uses: dict[str, _Use]) -> None:
        now = stamp_at(without_empty_log(full, fact.info))
        use = uses.setdefault(full, _Use(now))
        if use.is_made(now):
            self._put_out(full, uses)
            return
        use.folders[fact.folder] = None
        use.is_read |= fact.kind == READ
        use.is_asked |= fact.kind != NAMED
        use.is_named |= fact.kind == NAMED

    def _settle(self, path: str, use: _Use) -> None:
        """Notes a path that an item used as an input, or as an output, when the item is made."""
        now = stamp_at(info_of(path))
        if use.is_made(now):
            self._outputs[path] = None
            return
        if not use.is_asked and now in (None, FOLDER_STAMP):
            return  # it was only named
        is_module = path.endswith(_MODULE_SUFFIXES)
        kind = "folder" if use.stamp == FOLDER_STAMP else "module" if is_module else "file"
        digest = ""
        for folder in use.folders:
            before = self._known.get((path, folder), _NEVER)
            if before == CHANGED or before == use.stamp == now:
                continue
            if not digest:
                digest, stamp = digest_now(path, self._stat_cache, self._trust)
                is_other = is_module and not runs_as_written(path)
                if stamp != use.stamp or is_other or is_other_machine_code(path):
                    digest = CHANGED
            told = digest if before == _NEVER else CHANGED
            self._log.append(Seen(kind, path, folder, use.stamp, told))
            self._known[path, folder] = CHANGED if told == CHANGED else use.stamp

    def _put_out(self, path: str, uses: dict[str, _Use]) -> None:
        """Notes an output."""
        uses.pop(path, None)
        self._outputs[path] = None

    def _is_output(self, path: str) -> bool:
        """Whether the function made a file, or a folder that it lies in."""
        path = path.removesuffix(audit.WAL)
        while self._outputs and path not in self._outputs:
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above
        return bool(self._outputs)

    def _take_module(self, path: str) -> None:
        """A module that was loaded, or asked for by its name: it counts with all that it imports."""
        if path in self._modules:
            return
        self._modules[path] = None
        if self._places.of(path) is Place.SITE:
            self._count_distribution(path)
            return
        graph = ImportGraph(self._places)
        if path.endswith(".py"):
            names = {_file_of(one): name for name, one in list(sys.modules.items())}
            with contextlib.suppress(UnkeyableError):  # it can't be parsed: it counts, and imports nothing
                graph.add_file(names.get(path, "__unknown__"), path)
        for one in dict.fromkeys((path, *graph.files.values())):
            self._modules[one] = None
            info = info_of(one)
            if info is not None and self._is_input(one, info):
                self._settle(one, _Use(stamp_of(info), {None: None}, is_read=True, is_asked=True))
        self._top_levels.update(dict.fromkeys(graph.top_levels))

    def _take_listing(self, full: str, fact: Fact, watch: Watch) -> None:
        if full in self._listed or self._is_output(full) or self._is_ignored(full) or watch.owns(full):
            return
        if self._places.of(full + os.sep + "x") is Place.PROJECT:
            self._listed[full] = None
            digest = ABSENT if fact.other is None else digest_of_names(fact.other)
            self._log.append(Seen("folder", full, fact.folder, None, digest))

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
        counted = None if path in self._scope.partly else self._scope.known.get(path)
        is_edited = counted is not None and info is not None and stamp_of(info) != counted
        is_counted = path in self._scope.known and path not in self._scope.partly and not is_edited
        if is_counted or self._is_ignored(path):
            return False
        place = self._places.of(path)
        if place is Place.SITE and path.endswith(_MODULE_SUFFIXES):
            self._count_distribution(path)
        return place is Place.PROJECT

    def _count_distribution(self, path: str) -> None:
        if not self._scope.is_narrowed:
            self._top_levels.update(dict.fromkeys(self._places.tops_of(path)))

    # -- rows

    def taken(self) -> list[dict[str, str]]:
        """What was observed, as `protocol.observed.in_order` has it."""
        self._joined.add(self._inputs(self._in_joined))
        return self._joined.rows()

    def news(self) -> list[Input]:
        """What was observed since the last call, for a `Joined` that looks after it from then on; and again
        distributions."""
        return list(self._inputs(self._told))

    def _sources(self) -> Iterator[Observer]:
        """Those whose function's state this one uses; see NOTE [ What is loaded once ]."""
        for other in self._inherited:
            yield other
            yield from other._sources()
        for other in list(_used) if self._scope.leaves_out else ():
            if other is not self and self._scope.shares_code(other._scope):
                yield other

    def _logs(self) -> Iterator[Sequence[Seen]]:
        """The logs of what counts for this data set."""
        yield self._given
        for source in self._sources():
            yield source._log
        for modules, log in _loads:
            if any(path in self._scope.known or path in self._modules for path in modules):
                for path in modules:
                    self._take_module(path)
                yield log
        yield self._log

    def _inputs(self, told: dict[int, int]) -> Iterator[Input]:
        """The inputs that were not told before.

        Args:
            told: of each log, by its address, how many of its entries were.
        """
        logs = list(self._logs())
        top_levels = {name for one in (self, *self._sources()) for name in list(one._top_levels)}
        for name, digest in lately().observed(top_levels).items():
            if self._scope.distributions.get(name) != digest:
                yield Input(row_of("distribution", name, digest))
        for log in logs:
            begin = told.get(id(log), 0)
            new = log[begin:]
            for seen in new:
                for name in self._names_of(seen):
                    yield Input(row_of(seen.kind, name, seen.digest), seen.path, seen.stamp)
            told[id(log)] = begin + len(new)

    def _names_of(self, seen: Seen) -> list[str]:
        is_literal = any(seen.path.startswith(literal) for literal in self._scope.literals)
        names = self._scope.roots.names(seen.path, seen.folder, is_literal)
        is_asked = seen.stamp == FOLDER_STAMP  # by another name than its list
        return [os.path.join(name, "") for name in names] if is_asked else names


_NEVER: Stamp = (-1,)
"""The stamp of nothing."""
_used: dict[Observer, None] = {}
"""Observers that have watched an item in this process."""
_loads: list[tuple[set[str], list[Seen]]] = []
"""The modules that items loaded, and what was read meanwhile."""
_arrived: dict[tuple[RecipeDigest, Roots], Observer] = {}
"""Observers that came from another process, by recipe."""


def _of_this_process(scope: _Scope, trust: Trust, given: list[Seen]) -> Observer:
    """The observer that stands here for a pickled one: what was seen once (a vocabulary that is loaded at
    the first call) counts for all that this process makes by that recipe."""
    if (found := _arrived.get((scope.digest, scope.roots))) is not None:
        found._trust = trust
        return found
    made = Observer.__new__(Observer)
    made._begin(scope, user_stat_cache(), trust, given)
    return _arrived.setdefault((scope.digest, scope.roots), made)


def _file_of(module: Any) -> str | None:
    """The file of a loaded module, if it says one."""
    return getattr(module, "__dict__", {}).get("__file__")


def _files_of_module(module: str) -> list[str]:
    """The files of a loaded module and of the packages it lies in; of a package, also those of all loaded
    modules in it: of "a.b.C" hydra imports `a`, and gets the rest by attributes."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    if hasattr(sys.modules.get(module), "__path__"):
        names += [name for name in list(sys.modules) if name.startswith(module + ".")]
    return [path for name in names if (path := _file_of(sys.modules.get(name))) is not None]
