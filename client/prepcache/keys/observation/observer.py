"""What facts mean: which files, folders and modules are inputs of a function, and which are its outputs.

    {"kind": "file", "name": "project:vocab.txt", "digest": "<64 hex>"}     also "items:", "cwd:", "/..."
    {"kind": "module", "name": "project:plugins/fast.py", "digest": "<64 hex>"}
    {"kind": "folder", "name": "project:data", "digest": "<64 hex>"}         the names in it, if it was listed
    {"kind": "folder", "name": "project:data/", "digest": "a folder"}        that it is there, if asked for
    {"kind": "distribution", "name": "imageio", "digest": "2.1 <hash>"}

Invariants:
    1. A digest is that of the bytes that the function may have read: a file whose stamp is not the one that
       it had when it was seen first, or a module's that is not the text that it was loaded from, gets a
       digest that nothing equals.
    2. What was to be opened, or was asked for, and was not there is an input too.
    3. An output is what was opened to be written before it was read, and all that lies in a folder that was
       not there before. What appears where nothing was, and nobody saw who made it, has changed.
    4. What was only named (to a process, to a C library, in the code) or asked for, and changed or appeared
       under its name while the item was made, is an output; else it is an input.

NOTE [ What is loaded once ]
    A module that an item imports, and what a cached function reads at its first call, no later item reads
    again, nor does another data set of this process. So what was read for an item that loaded modules, or
    filled a cache, counts for every data set of this process that counts one of these modules or caches.
    Of properties that keep what they gave it is not known when they are filled: mostly by the first item.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from prepcache.databases import file_under, is_empty_log, without_suffix
from prepcache.digests import RecipeDigest
from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import Finder, ImportGraph
from prepcache.keys.code.project import Place, Places
from prepcache.keys.code.source_files import runs_as_written
from prepcache.keys.code.source_files import stamp_of as stamp_of_source
from prepcache.keys.environment import lately
from prepcache.keys.files.digest import Trust, is_directory, is_regular, stamp_of
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation import audit, context, job_code, monitoring, questions, unseen
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
    Notice,
    Watch,
)
from prepcache.keys.observation.inputs import (
    ABSENT,
    CHANGED,
    FOLDER_STAMP,
    Input,
    Joined,
    digest_now,
    digest_of_names,
    info_of,
    listing,
    row_of,
    stamp_at,
)
from prepcache.keys.observation.job_code import is_file_of_job
from prepcache.keys.observation.naming import Roots
from prepcache.keys.recipes import Recipe
from prepcache.keys.restart import is_other_machine_code
from prepcache.protocol.places import cache_folder

_NO_INPUTS = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"
_MODULE_SUFFIXES = (".py", ".so", ".pyd")
_CACHE_FOLDER = f"{os.sep}__pycache__{os.sep}"
_arrived: dict[tuple[RecipeDigest, Roots], Observer] = {}
"""Observers that came from another process, by recipe."""
_loaded: list[tuple[set[str], list[Any], list[Fact]]] = []
"""The modules and caches that items loaded and filled, and what was read meanwhile."""
_STARTED = (
    "it starts processes ({programs}): what they read beside the files on their command line is not "
    "observed, so change version= when that changes"
)
_UNSEEN = (
    "it reads files in a way that Python does not tell of ({size} for one item; in a C library, as "
    "cv2.imread does): an edit of them would not be noticed, so pass their paths in the item, or change "
    "version= with them"
)
_USES = (NAMED, ASKED, READ)
"""What was done with a file, from the least that it may mean."""


@dataclass(slots=True)
class _Seen:
    """A file that is an input.

    Args:
        path: from the root.
        is_relative, is_absolute: by what kinds of names it was used.
        folder: the working directory when it was seen first.
        stamp: what was there when it was seen first; None for nothing.
        use: what was done with it, one of `_USES`.
        known: a digest, and a stamp that a later write could not have left as it is.
    """

    path: str
    is_relative: bool
    is_absolute: bool
    folder: str | None
    stamp: tuple[int, ...] | None
    use: str
    has_changed: bool = False
    known: tuple[str, tuple[int, ...]] | None = None

    def digest(
        self, info: os.stat_result | None, memo: StatCache | None, trust: Trust
    ) -> tuple[str, tuple[int, ...] | None]:
        """Its digest and stamp, from what is there. Each batch asks for those of all files seen so far."""
        if info is None:
            return ABSENT, None
        if self.known is not None and self.known[1] == stamp_at(info):
            return self.known
        digest, stamp, is_racy = digest_now(self.path, memo, trust)
        if stamp is not None and not is_racy and trust == "stat":
            self.known = digest, stamp
        return digest, stamp


class Observer:
    """Records what a function reads, over any number of items and threads.

    Args:
        recipe: what is counted by it already is no observation.
        root: the data set's `root=`.
        memo: digests of files that are known by stamp.
        trust: "content" reads every file, whatever the memo knows.

    Locking:
        None: items of dicts are set, and deques appended to, which is atomic; `taken` and `news` copy the one
        first, and empty the other an element at a time.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        root: str | os.PathLike[str] | None = None,
        memo: StatCache | None = None,
        trust: Trust = "stat",
    ) -> None:
        self._recipe_digest = recipe.digest
        self._roots = Roots.of(recipe, root)
        self._known, self._partly = recipe.reached, recipe.partly
        self._literals, self._named_in_code = recipe.literal_paths, recipe.named_files
        self._distributions = recipe.parts["environment"]["distributions"]
        self._is_narrowed = recipe.asked.get("environment") is not None
        self._trust = trust
        self._inherited: tuple[Observer, ...] = recipe.inherits
        self._given: tuple[_Seen, ...] = ()
        self._begin(memo)

    def _begin(self, memo: StatCache | None) -> None:
        self._memo = memo
        self._seen: dict[str, _Seen] = {}
        self._fresh: deque[_Seen] = deque()
        for seen in self._given:
            self._inherit(seen)
        self._outputs: dict[str, None] = {}
        self._folders_made: dict[str, None] = {}
        self._listed: dict[str, tuple[str | None, str]] = {}
        """The working directory of who listed a folder by a relative name, and the digest of its names."""
        self._told_folders = 0
        self._tops: dict[str, None] = {}
        self._modules: dict[str, None] = {}
        """Files of modules that were met, with all that they import."""
        self._met_loaded: set[int] = set()
        self._places = Places(lately().installed)
        self._ignored = (*_NO_INPUTS, os.path.join(cache_folder(os.environ), ""))
        self._code = job_code.JobCode(self._known, (*questions.CODES, questions.IMPORTS))
        self._function: Any = None
        self._is_new = True
        self._told: set[str] = set()
        self._reads = unseen.Reads()
        self.programs: dict[str, None] = {}
        """Of the processes that were started, in their order."""

    def __reduce__(self) -> Any:
        state = (self._recipe_digest, self._roots, self._known, self._partly, self._literals)
        return _of_this_process, (
            *state, self._named_in_code, self._distributions, self._is_narrowed, self._given_on(), self._trust
        )  # fmt: skip

    def new_notices(self) -> tuple[Notice, ...]:
        """What the user should be told, and was not found out before in this process."""
        found = []
        if self.programs and "started" not in self._told:
            found.append(Notice("started", _STARTED.format(programs=", ".join(list(self.programs)[:3]))))
        if self._reads.unseen_bytes and "unseen" not in self._told:
            size = self._reads.unseen_bytes
            found.append(Notice("unseen", _UNSEEN.format(size=f"{size:,} bytes")))
        self._told.update(one.topic for one in found)
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
        self._function = function if function is not None else self._function
        self._code.look(self._function)
        try:
            with monitoring.watched(self._code, watch):
                before = self._reads.begin()
                with context.begun(watch):
                    for path in self._named_in_code:
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

    # -- facts

    def _take(self, watch: Watch) -> None:
        """Takes in what a watch has seen, when its item is made."""
        facts = list(watch.facts.values())
        self.programs.update(dict.fromkeys(watch.programs))
        met: dict[str, tuple[Any, bool]] = {}
        for fact in facts:
            if not self._is_known(fact):
                self._take_fact(fact, watch, met)
        for path, (stamp, is_question) in met.items():
            self._settle(path, stamp, is_question)
        caches = self._code.filled()
        modules = {fact.full for fact in facts if fact.kind == MODULE and is_file_of_job(fact.full)}
        if self._is_new and self._code.keeps_in_instances:
            modules.update(self._known)
        self._is_new = False
        if caches or modules:
            _loaded.append((modules, caches, [one for one in facts if not watch.owns(one.full)]))

    def _is_known(self, fact: Fact) -> bool:
        """Whether a fact tells nothing new: a file that is an input already was read again, as it was."""
        if fact.kind != READ or fact.folder is not None or fact.info is None or self._folders_made:
            return False
        seen = self._seen.get(fact.path)  # none by a name that is not the shortest one
        if seen is None or seen.use != READ or not seen.is_absolute:
            return False
        return seen.stamp == stamp_at(fact.info)

    def _settle(self, path: str, stamp: Any, is_question: bool) -> None:
        """Tells inputs from outputs among what was met for one item, when that is made.

        Args:
            stamp: what was there when it was met first.
            is_question: whether it was to be opened, or was asked for, and not only named.
        """
        now = stamp_at(info_of(path))
        seen = self._seen.get(path)
        if now == stamp or self._is_output(path):
            return
        if stamp is None and is_question:  # somebody put it there, nobody saw who
            if seen is not None:
                self._note_changed(seen)
        elif seen is None or seen.use != READ:
            self._outputs[path] = None
            self._seen.pop(path, None)

    def _take_fact(self, fact: Fact, watch: Watch, met: dict[str, tuple[Any, bool]]) -> None:
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
            self._take_name(full, fact, watch)
        elif fact.kind == WRITTEN:
            seen = self._seen.get(full)
            if seen is None or seen.use != READ or (seen.stamp is None and fact.info is None):
                self._seen.pop(full, None)
                self._outputs[full] = None
        elif fact.kind == LISTED:
            self._take_listing(full, fact, watch)
        else:
            self._take_file(full, fact, watch, met)

    def _take_name(self, full: str, fact: Fact, watch: Watch) -> None:
        """Takes in that something gets another name, which is an output if the function made that. What was
        renamed counts by its new name, if that is read."""
        if fact.info is None:
            self._drop(full)
        if self._is_output(fact.other):
            self._outputs[full] = self._folders_made[full] = None
        elif fact.kind == LINKED:  # what lies there by another name can't be told apart
            watch.failure = watch.failure or "it links to a file or folder that it did not make"

    def _take_file(self, full: str, fact: Fact, watch: Watch, met: dict[str, tuple[Any, bool]]) -> None:
        info = None if fact.info is not None and is_empty_log(full, fact.info.st_size) else fact.info
        is_folder = info is not None and is_directory(info)
        if fact.kind == NAMED and is_folder and (inner := file_under(full)) is not None:
            full, info, is_folder = inner, info_of(inner), False  # LMDB is handed a folder
        if self._is_output(full) or watch.owns(full, by_links=full not in self._seen):
            return
        if fact.kind == NAMED and is_folder:
            return
        stamp = stamp_at(info)
        before = met.get(full, (stamp, True))
        met[full] = before[0], before[1] and fact.kind != NAMED
        if before == (None, False) and stamp is not None:  # it was named, and then it was there
            self._outputs[full] = None
            return
        known = self._seen.get(full)
        if known is not None and known.use != READ and before[0] not in (None, stamp):
            self._seen.pop(full)
            self._outputs[full] = None
        elif known is not None:
            names = known.is_absolute, known.is_relative
            known.is_absolute |= fact.folder is None or fact.folder != known.folder
            known.is_relative |= fact.folder is not None
            if names != (known.is_absolute, known.is_relative):
                self._fresh.append(known)
            known.use = max(known.use, fact.kind, key=_USES.index)
            if known.stamp != stamp:
                self._note_changed(known)
        elif (stamp is not None or fact.kind != NAMED) and self._is_input(full, info):
            self._see(full, fact.folder is not None, fact.folder, stamp, fact.kind)

    def _see(self, path: str, is_relative: bool, folder: str | None, stamp: Any, use: str = READ) -> None:
        seen = self._seen[path] = _Seen(path, is_relative, not is_relative, folder, stamp, use)
        self._fresh.append(seen)

    def _drop(self, path: str) -> None:
        """What was not there, and the function puts there now, is no input by its absence."""
        if (seen := self._seen.get(path)) is not None and (seen.stamp is None or seen.use != READ):
            del self._seen[path]

    def _is_output(self, path: str) -> bool:
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
        if path in self._modules:
            return
        self._modules[path] = None
        if self._places.of(path) is Place.SITE:
            self._count_distribution(path)
            return
        modules = {file: name for name, one in list(sys.modules.items()) if (file := file_of(one))}
        graph = ImportGraph(Finder(sys.path, self._places))
        if path.endswith(".py"):
            with contextlib.suppress(UnkeyableError):  # it can't be parsed: it counts, and imports nothing
                graph.add_file(modules.get(path, "__unknown__"), path)
        for one in dict.fromkeys((path, *graph.files.values())):
            self._modules[one] = None
            info = info_of(one)
            is_edited = is_new and self._is_edited(one, info)
            is_counted = one in self._known and one not in self._partly and not is_edited
            if info is None or is_counted or self._places.of(one) is not Place.PROJECT:
                continue
            if one not in self._seen:
                self._see(one, False, None, stamp_of(info))
        self._tops.update(dict.fromkeys(graph.top_levels))

    def _is_edited(self, path: str, info: os.stat_result | None) -> bool:
        """Whether a file that the recipe counts is another by now."""
        counted = self._known.get(path)
        return counted is not None and info is not None and stamp_of_source(info) != counted

    def _take_listing(self, full: str, fact: Fact, watch: Watch) -> None:
        if full in self._listed or self._is_output(full) or self._is_ignored(full):
            return
        if self._places.of(full + os.sep + "x") is Place.PROJECT and not watch.owns(full):
            digest = ABSENT if fact.other is None else digest_of_names(fact.other)
            self._listed[full] = fact.folder, digest

    def _note_changed(self, seen: _Seen) -> None:
        if not seen.has_changed:
            self._fresh.append(seen)
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
        if place is Place.SITE and path.endswith(_MODULE_SUFFIXES):
            self._count_distribution(path)
        return place is Place.PROJECT

    def _count_distribution(self, path: str) -> None:
        if not self._is_narrowed:
            self._tops.update(dict.fromkeys(self._places.tops_of(path)))

    # -- rows

    def taken(self) -> list[dict[str, str]]:
        """What was observed, with the digests of now, as `protocol.observed.in_order` has it."""
        self._take_loaded()
        joined = Joined()
        joined.add(self._tell(list(self._tops), list(self._listed.items()), list(self._seen.values())))
        return joined.rows()

    def news(self) -> list[Input]:
        """What was observed since the last call, for a `Joined` that looks after it from then on; and again
        distributions, and files whose stamps do not tell: young ones, and with `trust="content"` all.
        """
        self._take_loaded()
        folders = list(self._listed.items())
        told, self._told_folders = self._told_folders, len(folders)
        found = list(self._tell(list(self._tops), folders[told:], _drained(self._fresh)))
        files = {one.path for one in found if one.stamp is not None and one.row["digest"] != CHANGED}
        seen = [self._seen.get(path) for path in files if path is not None]
        self._fresh.extend(one for one in seen if one is not None and one.known is None)
        return found

    def _take_inherited(self) -> None:
        """What was read for data sets whose calls have changed what the function holds, and that counts as
        before: this data set's calls find it loaded, and do not read it again. See keys/own_state.py."""
        for other in self._inherited:
            other._take_inherited()
            for path, seen in list(other._seen.items()):
                if path not in self._seen and not self._is_output(path):
                    self._inherit(seen)
            for path, listed in list(other._listed.items()):
                self._listed.setdefault(path, listed)
            self._tops.update(other._tops)

    def _inherit(self, seen: _Seen) -> None:
        copy = self._seen[seen.path] = replace(seen)
        self._fresh.append(copy)

    def _given_on(self) -> tuple[_Seen, ...]:
        """What an observer in another process is to begin with: it gets the function as it is now."""
        self._take_inherited()
        return tuple(seen for other in self._inherited for seen in other._seen.values()) + self._given

    def _take_loaded(self) -> None:
        """See NOTE [ What is loaded once ]."""
        self._take_inherited()
        if _loaded:
            self._code.look(self._function)
        for number, (modules, caches, facts) in enumerate(list(_loaded)):
            if number in self._met_loaded:
                continue
            is_shared = any(path in self._known or path in self._modules for path in modules)
            if is_shared or self._code.has_cache(caches):
                self._met_loaded.add(number)
                met: dict[str, tuple[Any, bool]] = {}
                for fact in facts:
                    self._take_fact(fact, Watch(self), met)

    def _tell(
        self,
        tops: Iterable[str],
        folders: Iterable[tuple[str, tuple[str | None, str]]],
        files: Iterable[_Seen],
    ) -> Iterator[Input]:
        for name, digest in lately().observed(tops).items():
            if self._distributions.get(name) != digest:
                yield Input(row_of("distribution", name, digest))
        for path, (folder, then) in folders:
            digest = then if listing(path) == then else CHANGED
            for name in self._roots.names(path, folder is not None, False, folder):
                yield Input(row_of("folder", name, digest), path)
        for seen in files:
            if self._seen.get(seen.path) is not seen or self._is_output(seen.path):
                continue
            digest, stamp = seen.digest(info_of(seen.path), self._memo, self._trust)
            if seen.has_changed or stamp != seen.stamp:
                digest = CHANGED
            if seen.stamp == FOLDER_STAMP:
                for name in self._names_of(seen):  # by another name than its list
                    yield Input(row_of("folder", os.path.join(name, ""), digest), seen.path, stamp)
                continue
            kind = "module" if seen.path.endswith(_MODULE_SUFFIXES) else "file"
            is_other = kind == "module" and not runs_as_written(seen.path)
            if is_other or is_other_machine_code(seen.path):
                digest = CHANGED
            for name in self._names_of(seen):
                yield Input(row_of(kind, name, digest), seen.path, stamp)

    def _names_of(self, seen: _Seen) -> list[str]:
        is_literal = any(seen.path.startswith(literal) for literal in self._literals)
        names = self._roots.names(seen.path, seen.is_relative, is_literal, seen.folder)
        if seen.is_relative and seen.is_absolute:
            names = [*names, *self._roots.names(seen.path, False, is_literal)]
        return names


def _drained(queue: deque[Any]) -> list[Any]:
    """What was in it; another thread may add to it and empty it meanwhile."""
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(queue.popleft())
    return found


def file_of(module: Any) -> str | None:
    """The file of a loaded module, if it says one."""
    return getattr(module, "__dict__", {}).get("__file__")


def files_of_module(module: str) -> list[str]:
    """The files of a loaded module and of the packages it lies in."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return [path for name in names if (path := file_of(sys.modules.get(name))) is not None]


def _of_this_process(digest: RecipeDigest, roots: Roots, *state: Any) -> Observer:
    """The observer that stands here for a pickled one: what was seen once (a vocabulary that is loaded at
    the first call) counts for all that this process makes by that recipe."""
    if (found := _arrived.get((digest, roots))) is not None:
        found._trust = state[-1]
        return found
    made = Observer.__new__(Observer)
    made._recipe_digest, made._roots = digest, roots
    made._known, made._partly, made._literals, made._named_in_code, made._distributions, *flags = state
    made._is_narrowed, made._given, made._trust = flags
    made._inherited = ()
    made._begin(StatCache())
    return _arrived.setdefault((digest, roots), made)
