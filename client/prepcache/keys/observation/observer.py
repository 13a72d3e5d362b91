"""The observer: what a function reads beside its item, over all of its calls, as a log of inputs.

When an item is made, the facts of its watch become entries of the process's log, which only grows. A name
with two digests has changed for good.

Invariants:
    1. A digest is that of the bytes that the function may have read: a file whose stamp is not the one that
       it had when it was used first, or a module that may not be as its file says, gets a digest that nothing
       equals.
    2. What was to be opened, or was asked for, and was not there is an input too.
    3. An output (`_is_made`) takes back what other items only named or asked for. What else is another when
       the item is made has changed: nobody was seen to make it.

NOTE [ What is loaded once ]
    What was read while a function's state was built counts for every data set that uses that state from then
    on, though nothing is read again:
      - for an item that loaded modules: for the data sets that count or meet one of these modules;
      - for a recipe that counts a state as it was before calls (fill/recipe_guard.py): all of that recipe's;
      - where a recipe leaves something out (`untracked=`, a key of one's own): all that was read for others
        of its code.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NamedTuple

from prepcache.digests import RecipeDigest
from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.project import Place, Places, loaded_from, space_of
from prepcache.keys.environment import lately, may_be_older, runs_as_written, seen_texts
from prepcache.keys.files.digest import Trust
from prepcache.keys.files.stat_cache import StatCache, stamp_of, user_stat_cache
from prepcache.keys.observation import calls, inputs, watches
from prepcache.keys.observation.inputs import CHANGED, FOLDER_STAMP, OUTPUT, Input, Roots, Stamp, stamp_at
from prepcache.keys.observation.watches import STATE, WAL, Fact, Kind, Watch, info_of, is_file_of_job
from prepcache.keys.recipes import Recipe
from prepcache.protocol.places import cache_folder
from prepcache.protocol.wire import in_order

_STARTED = (
    "it starts processes ({programs}). Of the files that they read, only those on their command line are "
    "observed: change version= when others change"
)
_UNSEEN = (
    "it reads files that prepcache cannot observe ({size:,} bytes for one item; in a C library, as "
    "cv2.imread does). Their edits would not be noticed: pass their paths in the item, or change "
    "version= with them"
)
_KEEPS = "it may use processes that an earlier call has started, and what they read is not seen"
_CACHE_FOLDER = f"{os.sep}__pycache__{os.sep}"
_NOTHING = Input(OUTPUT, "")  # by which whoever meets one of the modules that an item loaded meets all


class Observer:
    """Records what a function reads beside what its recipe counts, over any number of items and threads.

    Locking: none. Entries are appended and items of dicts and sets are set, which is atomic.
    """

    def __init__(
        self,
        recipe: Recipe,
        roots: Roots | None = None,
        stat_cache: StatCache | None = None,
        trust: Trust = "stat",
    ) -> None:
        # Observers live as long as the process: of the recipe, not what it would keep alive.
        asked = {"environment": recipe.asked.get("environment")}
        self._recipe = replace(recipe, preprocess=None, config={}, asked=asked, generators=())
        self._roots = roots or Roots.of(recipe)
        self._stat_cache, self._trust = stat_cache, trust
        self._last: dict[str, Input] = {}  # in the log by path; of a listing, by that and a separator
        self._outputs: set[str] = set()
        self._modules: set[str] = set()  # files of modules that were met, with all that they import
        self._top_levels: set[str] = set()
        self._places = Places(lately().installed)
        self._ignored = ("/proc/", "/sys/", os.path.join(cache_folder(os.environ), ""))
        self._told = (0, 0)  # how much of the log is among `_inputs`, and of `_modules`
        self._inputs: dict[str, Input] = {}  # what this process and others saw, by name
        self._all_outputs: set[str | None] = set()
        self._files = frozenset(recipe.reached)
        self._code = calls.JobCode(self._files, recipe.may_ask)
        self._unseen = watches.UnseenReads()
        self._notices: dict[str, str] = {}  # by topic; empty once it was said

    def __reduce__(self) -> Any:
        """Begins elsewhere with what its function's state was built from."""
        given = [one.seen for one in list(_log) if one.by is not self and self._counts(one)]
        return _of_this_process, (self._recipe, self._roots, self._trust, given)

    def new_notices(self) -> tuple[tuple[str, str], ...]:
        new = tuple(one for one in list(self._notices.items()) if one[1])
        self._notices.update((topic, "") for topic, _ in new)
        return new

    filling = staticmethod(calls.filling)

    @contextlib.contextmanager
    def watching(
        self, item_paths: Iterable[str | os.PathLike[str]] = (), function: Any = None
    ) -> Iterator[Watch]:
        watch = Watch(tuple(map(os.path.abspath, item_paths)), self._files)
        watches.install()
        try:
            with calls.heard(self._code, watch, function):
                before = self._unseen.begin()
                with watch.on():
                    for path in self._recipe.named_files:
                        if info_of(path) is not None:
                            watches.note(Kind.NAMED, path)
                    yield watch
                self._unseen.end(watch, before)
                if size := self._unseen.size_bytes:
                    self._notices.setdefault("unseen", _UNSEEN.format(size=size))
        finally:
            if STATE.has_database and self._code.attaches:
                watch.failure = watch.failure or "it attaches databases in SQL"
            if any(self._may_share(one) for one in list(STATE.parents)):
                watch.failure = watch.failure or _KEEPS
            seen = watch.facts.values()
            if watch.programs:
                programs = ", ".join(list(dict.fromkeys(watch.programs))[:3])
                self._notices.setdefault("started", _STARTED.format(programs=programs))
            if watch.programs or any(one.kind != Kind.READ or one.path not in watch.items for one in seen):
                try:
                    self._take(watch)
                except Exception as error:  # noqa: BLE001 - whatever it is, something may not have been counted
                    watch.failure = watch.failure or type(error).__name__

    def add(self, told: Iterable[Input]) -> list[Input]:
        new = []
        for one in told:
            if one.kind == OUTPUT:
                is_new = one.path not in self._all_outputs
                self._all_outputs.add(one.path)
            else:
                before = self._inputs.setdefault(one.name, one)
                digest = before.digest if before.row == one.row else CHANGED
                joined = before._replace(digest=digest, is_read=one.is_read or before.is_read)
                self._inputs[one.name] = joined
                is_new = before is one or joined != before
            if is_new:
                new.append(one)
        return new

    def taken(self) -> list[dict[str, str]]:
        """What was observed: not what was only named or asked for, once the function made it."""
        self.news()
        found = list(self._inputs.items())  # to which threads may add
        return in_order({n: one.row for n, one in found if one.is_read or one.path not in self._all_outputs})

    def news(self) -> list[Input]:
        self._note_distributions(self._top_levels)  # another version may have been installed meanwhile
        new: list[Input] = []
        while self._told != (now := (len(_log), len(self._modules))):
            begin = self._told[0] if self._told[1] == now[1] else 0  # an older entry may be of a module
            for entry in _log[begin : now[0]]:
                if self._counts(entry):
                    new += [entry.seen._replace(name=name) for name in self._names_of(entry.seen)]
            self._told = now
        return self.add(new)

    def _counts(self, entry: Entry) -> bool:
        """Whether an entry is one of this data set's; see NOTE [ What is loaded once ]."""
        if entry.by is self:
            return True
        if any(path in self._recipe.reached or path in self._modules for path in entry.modules):
            for path in entry.modules:
                self._take_module(path)
            return True
        mine = self._recipe
        has_own_state = entry.by._recipe.digest == mine.digest != mine.state.digest
        return has_own_state or (mine.leaves_out and self._may_share(entry.by._files))

    def _may_share(self, files: frozenset[str]) -> bool:
        """Whether functions may share code, by its files; there are none in a notebook."""
        return not (files and self._files and files.isdisjoint(self._files))

    def _names_of(self, seen: Input) -> list[str]:
        path = seen.path or ""
        if seen.kind == "distribution":
            counted = self._recipe.parts["environment"]["distributions"]
            return [] if counted.get(seen.name) == seen.digest else [seen.name]
        if seen.kind == OUTPUT:
            return [path]
        is_literal = any(path.startswith(literal) for literal in self._recipe.literal_paths)
        names = [path] if is_literal else self._roots.names(path, seen.folder)
        is_asked = seen.stamp == FOLDER_STAMP  # by another name than its list
        return [os.path.join(name, "") for name in names] if is_asked else names

    def _take(self, watch: Watch) -> None:
        facts = list(watch.facts.values())
        loaded = {fact.full: stamp_at(fact.info) for fact in facts if fact.kind == Kind.MODULE}
        seen_texts.update(loaded)
        used: dict[str, list[Fact]] = {}
        for fact in facts:
            if fact.kind == Kind.MODULE:
                self._take_module(fact.full)
            elif fact.kind == Kind.MODULE_NAME:
                for path in inputs.files_of_module(fact.path):
                    self._take_module(path, is_asked=True)
                for path in inputs.files_awaited(fact.path):
                    used.setdefault(path, []).append(Fact(Kind.READ, path, None, info_of(path)))
            elif fact.kind == Kind.RENAMED:
                before, moved = used.setdefault(fact.full, []), used.get(fact.other)
                is_made = moved and (moved[0].info is None or _is_made(moved, None))  # by then
                if is_made or self._is_output(fact.other):
                    before.append(fact._replace(kind=Kind.WRITTEN))
                elif not any(one.kind == Kind.READ and one.info is not None for one in before):
                    before.clear()  # what counts is what was moved there
            elif fact.kind != Kind.LISTED:
                used.setdefault(fact.full, []).append(fact)
        now = {path: stamp_at(info_of(path)) for path, own in used.items() if own}
        for path in now:
            if _is_made(used[path], now[path]):
                self._take_back(path, used[path])
                self._outputs.add(path)
        for path in now:
            if not watch.owns(path) and self._is_input(path, used[path][0].info):
                self._settle(path, used[path], now[path])
        for fact in facts:
            is_list = fact.kind == Kind.LISTED and not watch.owns(fact.full)
            if is_list and self._is_input(os.path.join(fact.full, "x"), None):
                digest = inputs.digest_of_names(fact.other)
                seen = Input("folder", digest, path=fact.full, folder=fact.folder)
                self._note(os.path.join(fact.full, ""), seen)
        if modules := frozenset(filter(is_file_of_job, loaded)):
            read = [self._last[path] for path in used if path in self._last]
            _log.extend(Entry(self, one, modules) for one in (*read, _NOTHING))

    def _settle(self, path: str, facts: list[Fact], now: Stamp | None) -> None:
        kinds = {fact.kind for fact in facts}
        if Kind.KEPT in kinds and Kind.READ not in kinds:  # one that is read was locked, or not made
            self._take_back(path, facts)
            return
        if kinds == {Kind.NAMED} and now in (None, FOLDER_STAMP):
            return
        first, last = stamp_at(facts[0].info), self._last.get(path)
        if last is not None and (last.digest == CHANGED or last.stamp == first == now):
            digest = last.digest
        else:
            digest, stamp = inputs.digest_now(path, self._stat_cache, self._trust)
            if stamp != first or not runs_as_written(path) or (last is not None and last.digest != digest):
                digest = CHANGED
        kind = "folder" if first == FOLDER_STAMP else "file"
        for folder in dict.fromkeys(fact.folder for fact in facts):
            self._note(path, Input(kind, digest, "", path, first, Kind.READ in kinds, folder))

    def _note(self, place: str, seen: Input) -> None:
        """Adds an entry to the log, unless it says what the last one of that place said."""
        last, self._last[place] = self._last.get(place), seen
        if last is None or (last != seen and last._replace(stamp=seen.stamp) != seen):
            _log.append(Entry(self, seen))

    def _take_back(self, path: str, facts: list[Fact]) -> None:
        if len(facts) > 1 or path in self._last:
            _log.append(Entry(self, Input(OUTPUT, "", path=path)))

    def _is_output(self, path: str) -> bool:
        path = path.removesuffix(WAL)
        return bool(self._outputs) and not self._outputs.isdisjoint((path, *map(str, Path(path).parents)))

    def _take_module(self, path: str, *, is_asked: bool = False) -> None:
        """A module that was loaded, or asked for by its name: it counts with all that it imports."""
        if path in self._modules:
            return
        self._modules.add(path)
        place, top_level = self._places.found(path)
        if place is Place.SITE:
            self._count_distributions([top_level])
            return
        graph = ImportGraph(self._places)
        with contextlib.suppress(UnkeyableError):  # it can't be parsed: it counts, and imports nothing
            names = {space_of(one).get("__file__"): name for name, one in list(sys.modules.items())}
            graph.add_file(names.get(path, "__unknown__"), path)
        for one in dict.fromkeys((path, *graph.files.values())):
            self._modules.add(one)
            if (info := info_of(one)) is None:
                continue
            # What the recipe imports counts as it is loaded, unless another name leads to more of it.
            is_older = one.endswith(".py") and may_be_older(one, stamp_of(info)) and loaded_from(one)
            if (is_asked or one not in self._recipe.reached) and is_older:
                self._note(one, Input("file", CHANGED, path=one))
            elif self._is_input(one, info):
                self._settle(one, [Fact(Kind.READ, one, None, info)], stamp_at(info))
        self._count_distributions(graph.top_levels)

    def _is_input(self, path: str, info: os.stat_result | None) -> bool:
        """Whether what was used by its name counts. A library's file counts by its distribution."""
        if info is not None:
            if S_ISDIR(info.st_mode):
                path = os.path.join(path, "x")  # as what is in it
            elif not S_ISREG(info.st_mode):
                return False  # a device, a pipe, a socket
        stamp = self._recipe.reached.get(path)
        is_counted = stamp is not None and (info is None or stamp_of(info) == stamp)
        is_ignored = path.startswith(self._ignored) or _CACHE_FOLDER in path
        if is_counted or is_ignored or self._is_output(path):
            return False
        place, top_level = self._places.found(path)
        if place is Place.SITE:
            self._count_distributions([top_level])
        return place is Place.PROJECT

    def _count_distributions(self, top_levels: Iterable[str]) -> None:
        if self._recipe.asked["environment"] is None:  # else those that it names count
            self._note_distributions({*top_levels} - self._top_levels)

    def _note_distributions(self, top_levels: set[str]) -> None:
        if top_levels:
            installed = lately()
            for name in installed.owning(top_levels):
                self._note(name, Input("distribution", installed.state(name), name))
            self._top_levels |= top_levels


def _is_made(facts: list[Fact], now: Stamp | None) -> bool:
    """Whether the function, or what it started, made what is under a path, and read nothing there before."""
    is_named = False
    for fact in facts:
        if fact.kind == Kind.READ and fact.info is not None:
            break
        if fact.kind == Kind.WRITTEN or (fact.kind == Kind.KEPT and fact.info is None):
            return True
        is_named |= fact.kind == Kind.NAMED and fact.info is None
    return is_named and (now is not None or any(fact.info is not None for fact in facts))


class Entry(NamedTuple):
    by: Observer
    seen: Input
    modules: frozenset[str] = frozenset()


_log: list[Entry] = []  # what functions of this process were seen to use
_arrived: dict[tuple[RecipeDigest, Roots, Trust], Observer] = {}


def _of_this_process(recipe: Recipe, roots: Roots, trust: Trust, given: list[Input]) -> Observer:
    at = recipe.digest, roots, trust
    if at not in _arrived:
        made = _arrived.setdefault(at, Observer(recipe, roots, user_stat_cache(), trust))
        _log.extend(Entry(made, seen) for seen in given)
    return _arrived[at]
