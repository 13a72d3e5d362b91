"""The observer: what a function reads beside its item, over all of its calls, as a log of inputs.

When an item is made, the facts of its watch become entries of a log, which only grows. What differs from an
earlier entry is another entry, and a name with two digests has changed for good.

Invariants:
    1. A digest is that of the bytes that the function may have read: a file whose stamp is not the one that
       it had when it was used first, or a module that is not as its file says, gets a digest that nothing
       equals.
    2. What was to be opened, or was asked for, and was not there is an input too.
    3. An output is what was opened to be written before it was read (unless that kept what was there), what
       an output was renamed to before it was read, what lies in a folder that the function made, what came
       where nothing was and its path was handed to a process or to C, and what a process wrote that was given
       its path, before anything else was. It takes back what other items only named or asked for. What else
       is another when the item is made has changed: nobody was seen to make it.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prepcache.digests import RecipeDigest
from prepcache.keys.code.project import Place, Places
from prepcache.keys.environment import lately, runs_as_written
from prepcache.keys.files.digest import Trust, is_directory, is_regular
from prepcache.keys.files.stamps import stamp_of
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.observation import audit, calls, context
from prepcache.keys.observation.audit import WAL
from prepcache.keys.observation.context import STATE, Fact, Kind, Notice, Watch, is_file_of_job
from prepcache.keys.observation.inputs import (
    ABSENT,
    CHANGED,
    FOLDER_STAMP,
    OUTPUT,
    Input,
    Roots,
    Stamp,
    digest_now,
    digest_of_names,
    files_awaited,
    files_of_module,
    info_of,
    stamp_at,
    with_imports,
    without_empty_log,
)
from prepcache.keys.recipes import Recipe
from prepcache.protocol.observed import in_order
from prepcache.protocol.places import cache_folder

_STARTED = (
    "it starts processes ({programs}). Of the files that they read, only those on their command line are "
    "observed: change version= when others change"
)
_UNSEEN = (
    "it reads files that prepcache cannot observe ({size:,} bytes for one item; in a C library, as "
    "cv2.imread does). Their edits would not be noticed: pass their paths in the item, or change "
    "version= with them"
)
_MODULE_SUFFIXES = (".py", ".so", ".pyd")
_NO_INPUTS = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"
_CACHE_FOLDER = f"{os.sep}__pycache__{os.sep}"


@dataclass(slots=True)
class _Use:
    """What one item did with a path: its stamp at first, the folders it was used from, kinds of facts."""

    stamp: Stamp | None
    folders: dict[str | None, None] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)

    def is_made(self, now: Stamp | None) -> bool:
        """Whether what is there now was made by a process or by C code, which was handed the path."""
        is_handed = not self.kinds.isdisjoint((Kind.GIVEN, Kind.NAMED))
        is_new = self.stamp is None or (Kind.GIVEN in self.kinds and Kind.READ not in self.kinds)
        return now != self.stamp and is_handed and is_new


class Observer:
    """Records what a function reads, over any number of items and threads. What its recipe counts is none.

    Locking: none. Entries are appended and items of dicts are set, which is atomic. A log is marked as told
    after what is in it was.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        root: str | os.PathLike[str] | None = None,
        stat_cache: StatCache | None = None,
        trust: Trust = "stat",
        roots: Roots | None = None,
        given: Sequence[Input] = (),
    ) -> None:
        # Observers live as long as the process: of the recipe, not what it would keep alive.
        self._recipe = replace(
            recipe,
            preprocess=None,
            config={},
            parts={"environment": recipe.parts["environment"]},
            asked={"environment": recipe.asked.get("environment")},
            state=recipe.state._replace(rows={}, objects=frozenset()),
        )
        self._roots = roots or Roots.of(recipe, root)
        self._stat_cache, self._trust, self._given = stat_cache, trust, given
        self._log: list[Input] = []
        self._last: dict[str, dict[tuple[str | None, bool], Input]] = {}
        """The last entry of the log by path; then by working directory, and whether it is of a listing."""
        self._outputs: dict[str, None] = {}
        self._modules: dict[str, None] = {}
        """Files of modules that were met, with all that they import."""
        self._top_levels: dict[str, None] = {}
        """Modules of distributions that were met."""
        self._places = Places(lately().installed)
        self._ignored = (*_NO_INPUTS, os.path.join(cache_folder(os.environ), ""))
        self._told: dict[int, int] = {}
        """How much of each log was told as news, by its address."""
        self._added: dict[int, int] = {}
        """The same, of what is among `_inputs`."""
        self._inputs: dict[str, Input] = {}
        """What this process and others saw, by name."""
        self._all_outputs: dict[str | None, None] = {}
        self._code = calls.JobCode(recipe.reached)
        self._programs: dict[str, None] = {}
        self._unseen = audit.UnseenReads()
        self._said: set[str] = set()

    def __reduce__(self) -> Any:
        """Begins elsewhere with what its function's state was built from: it gets the function as it is."""
        given = [*self._given, *(seen for one in self._sources() for seen in (*one._given, *one._log))]
        return _of_this_process, (self._recipe, self._roots, self._trust, given)

    def new_notices(self) -> tuple[Notice, ...]:
        """What the user should be told, and was not found out before in this process."""
        found = []
        if self._programs and "started" not in self._said:
            found.append(Notice("started", _STARTED.format(programs=", ".join(list(self._programs)[:3]))))
        if self._unseen.size_bytes and "unseen" not in self._said:
            found.append(Notice("unseen", _UNSEEN.format(size=self._unseen.size_bytes)))
        self._said.update(one.topic for one in found)
        return tuple(found)

    def filling(self) -> contextlib.AbstractContextManager[None]:
        """While many items are made: what hears calls is not taken away between them."""
        return calls.filling()

    @contextlib.contextmanager
    def watching(
        self, item_paths: Iterable[str | os.PathLike[str]] = (), function: Any = None
    ) -> Iterator[Watch]:
        """Watches this thread, and what works for it, while the function works on one item.

        The watch's `failure` says, when it has ended, whether it may have missed anything.

        Args:
            item_paths: files and folders of the item; they count by the item digest.
            function: whose code is looked at, beside that of the files that the recipe counts.
        """
        watch = Watch(self, tuple(map(_absolute, item_paths)))
        audit.install()
        try:
            with calls.heard(self._code, watch, function):
                before = self._unseen.begin()
                with watch:
                    for path in self._recipe.named_files:
                        context.note(Kind.LITERAL, path)
                    yield watch
                self._unseen.end(watch, before)
        finally:
            _used[self] = None
            if STATE.has_database and self._code.attaches:
                watch.failure = watch.failure or "it attaches databases in SQL"
            if watch.facts or watch.programs:
                self._programs.update(dict.fromkeys(watch.programs))
                try:
                    self._take(watch)
                except Exception as error:  # noqa: BLE001 - whatever it is, something may not have been counted
                    watch.failure = watch.failure or type(error).__name__

    # -- inputs, as others are told of them

    def add(self, told: Iterable[Input]) -> None:
        """Takes in what this process or another saw. An input that was two things has changed, for good."""
        for one in told:
            if one.kind == OUTPUT:
                self._all_outputs[one.path] = None
                continue
            before = self._inputs.setdefault(one.name, one)
            digest = one.digest if before.row == one.row else CHANGED
            self._inputs[one.name] = one._replace(digest=digest, is_read=one.is_read or before.is_read)

    def taken(self) -> list[dict[str, str]]:
        """What was observed, as `protocol.observed.in_order` has it. What was named or asked for, and never
        read, is no input once the function made it."""
        self.add(self._new_inputs(self._added))
        found = list(self._inputs.items())  # to which threads may add
        return in_order({n: one.row for n, one in found if one.is_read or one.path not in self._all_outputs})

    def news(self) -> list[Input]:
        """What was observed since the last call, for another process to add; and again distributions."""
        return list(self._new_inputs(self._told))

    def _sources(self) -> Iterator[Observer]:
        """Those whose function's state this one uses; see NOTE [ What is loaded once ]."""
        mine, known = self._recipe, self._recipe.reached.keys()
        for other in list(_used):
            theirs = other._recipe.reached.keys()
            # Where no project file counts, it is not known whether they share code.
            is_shared = mine.leaves_out and not (known and theirs and known.isdisjoint(theirs))
            is_as_before = mine.digest != mine.state.digest and mine.digest == other._recipe.digest
            if other is not self and (is_shared or is_as_before):
                yield other

    def _logs(self) -> Iterator[Sequence[Input]]:
        """The logs of what counts for this data set."""
        yield self._given
        for source in self._sources():
            yield source._given
            yield source._log
        for modules, log in _loads:
            if any(path in self._recipe.reached or path in self._modules for path in modules):
                for path in modules:
                    self._take_module(path)
                yield log
        yield self._log

    def _new_inputs(self, told: dict[int, int]) -> Iterator[Input]:
        """The inputs that were not told before, by their names; `told` counts those of each log."""
        logs = list(self._logs())
        top_levels = {name for one in (self, *self._sources()) for name in list(one._top_levels)}
        installed, counted = lately(), self._recipe.parts["environment"]["distributions"]
        for name in sorted(installed.owning(top_levels)):
            if (digest := installed.state(name)) != counted.get(name):
                yield Input("distribution", digest, name)
        for log in logs:
            begin = told.get(id(log), 0)
            new = log[begin:]
            for seen in new:
                yield from (seen._replace(name=name) for name in self._names_of(seen))
            told[id(log)] = begin + len(new)

    def _names_of(self, seen: Input) -> list[str]:
        path = seen.path or ""
        if seen.kind == OUTPUT:
            return [path]
        is_literal = any(path.startswith(literal) for literal in self._recipe.literal_paths)
        names = self._roots.names(path, seen.folder, is_literal)
        is_asked = seen.stamp == FOLDER_STAMP  # by another name than its list
        return [os.path.join(name, "") for name in names] if is_asked else names

    # -- from facts to the log

    def _take(self, watch: Watch) -> None:
        """Takes in what a watch has seen, when its item is made."""
        facts = list(watch.facts.values())
        uses: dict[str, _Use] = {}
        for fact in facts:
            if self._outputs or not self._is_known(fact):
                self._take_fact(fact, watch, uses)
        for path, use in uses.items():
            self._settle(path, use)
        modules = {fact.full for fact in facts if fact.kind == Kind.MODULE and is_file_of_job(fact.full)}
        if modules:
            paths = {fact.full for fact in facts if not watch.owns(fact.full)}
            read = [one for one in self._log if one.path in paths and one.kind != "module"]
            if (modules, read) not in _loads:
                _loads.append((modules, read))

    def _is_known(self, fact: Fact) -> bool:
        """Whether a file was read that is, and was then, as an earlier item had read it."""
        last = self._last.get(fact.path, {}).get((fact.folder, False))
        if last is None or not last.is_read or fact.kind != Kind.READ or fact.info is None:
            return False
        return last.stamp == stamp_at(fact.info) == stamp_at(info_of(fact.path))

    def _take_fact(self, fact: Fact, watch: Watch, uses: dict[str, _Use]) -> None:
        if fact.kind == Kind.MODULE_NAME:
            for path in files_of_module(fact.path):
                self._take_module(path)
            for path in files_awaited(fact.path):
                self._take_file(path, info_of(path))
            return
        full, is_made = fact.full, fact.kind == Kind.WRITTEN or fact.info is None
        use = uses.get(full)
        was_read = use is not None and Kind.READ in use.kinds and use.stamp is not None
        if fact.kind == Kind.MODULE:
            self._take_module(full)
        elif fact.kind == Kind.LISTED:
            self._take_listing(full, fact, watch)
        elif fact.kind in (Kind.WRITTEN, Kind.KEPT, Kind.RENAMED) and was_read:
            pass  # it stays an input, which has changed
        elif fact.kind in (Kind.WRITTEN, Kind.KEPT):
            # A file that is read and kept was locked, or not made because it was there.
            if is_made or (Kind.READ, *fact[1:3]) not in watch.facts:
                self._put_out(full, uses, is_made=is_made)
        elif fact.kind == Kind.RENAMED:
            uses.pop(full, None)
            former = uses.get(fact.other)
            if self._is_output(fact.other) or (former is not None and former.stamp is None):
                self._put_out(full, uses)
        elif not self._is_output(full) and not watch.owns(full) and self._is_input(full, fact.info):
            self._take_use(full, fact, uses)

    def _take_use(self, full: str, fact: Fact, uses: dict[str, _Use]) -> None:
        now = stamp_at(without_empty_log(full, fact.info))
        use = uses.setdefault(full, _Use(now))
        if use.is_made(now):
            self._put_out(full, uses)
            return
        if now != use.stamp:
            use.kinds.add(Kind.READ)  # who changed it was not seen: it stays an input, which has changed
        if fact.kind == Kind.GIVEN and Kind.NAMED in use.kinds:
            use.kinds.add(Kind.READ)  # C code may have read what a process writes now
        use.folders[fact.folder] = None
        use.kinds.add(fact.kind)

    def _settle(self, path: str, use: _Use) -> None:
        """Notes a path that an item used as an input, or as an output, when the item is made."""
        now = stamp_at(info_of(path))
        if use.is_made(now):
            self._put_out(path, {path: use})
            return
        is_named = use.kinds.isdisjoint((Kind.ASKED, Kind.READ)) and now in (None, FOLDER_STAMP)
        if is_named or use.kinds == {Kind.TOUCHED}:
            return  # it was only named, and no file is there; or it is a mark
        is_module, is_read = path.endswith(_MODULE_SUFFIXES), Kind.READ in use.kinds
        kind = "folder" if use.stamp == FOLDER_STAMP else "module" if is_module else "file"
        digest = ""
        for folder in use.folders:
            last = self._last.get(path, {}).get((folder, False))
            is_known = last is not None and (last.digest == CHANGED or last.stamp == use.stamp == now)
            if is_known and last is not None and last.is_read >= is_read:
                continue
            if not digest:
                digest, stamp = digest_now(path, self._stat_cache, self._trust)
                if stamp != use.stamp or not runs_as_written(path):
                    digest = CHANGED
            entry = Input(kind, digest, "", path, use.stamp, is_read, folder)
            if last is not None:
                digest_then = digest if last.digest == digest else CHANGED
                entry = entry._replace(digest=digest_then, is_read=is_read or last.is_read)
            self._note(entry)

    def _note(self, entry: Input, *, is_listing: bool = False) -> None:
        """Adds an entry to the log, unless it says what the last one of that path said."""
        entries, at = self._last.setdefault(entry.path or "", {}), (entry.folder, is_listing)
        last, entries[at] = entries.get(at), entry
        if last is None or last._replace(stamp=entry.stamp) != entry:
            self._log.append(entry)

    def _put_out(self, path: str, uses: dict[str, _Use], *, is_made: bool = True) -> None:
        """Notes an output; it may be an input of another item by its name alone, and by what is in it unless
        the function made that (`is_made`)."""
        use = uses.pop(path, None)
        if use is not None or path in self._last:
            self._log.append(Input(OUTPUT, "", path=path))
        if is_made:
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

    def _take_file(self, path: str, info: os.stat_result | None) -> None:
        """Notes a file that was read by its absolute name."""
        if self._is_input(path, info):
            self._settle(path, _Use(stamp_at(info), {None: None}, {Kind.READ}))

    def _take_module(self, path: str) -> None:
        """A module that was loaded, or asked for by its name: it counts with all that it imports."""
        if path in self._modules:
            return
        self._modules[path] = None
        if self._places.of(path) is Place.SITE:
            self._count_distribution(path)
            return
        files, top_levels = with_imports(path, self._places)
        for one in files:
            self._modules[one] = None
            if (info := info_of(one)) is not None:
                self._take_file(one, info)
        self._top_levels.update(dict.fromkeys(top_levels))

    def _take_listing(self, full: str, fact: Fact, watch: Watch) -> None:
        if self._is_output(full) or self._is_ignored(full) or watch.owns(full):
            return
        if self._places.of(full + os.sep + "x") is Place.PROJECT:
            digest = ABSENT if fact.other is None else digest_of_names(fact.other)
            self._note(Input("folder", digest, path=full, folder=fact.folder), is_listing=True)

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
        known, is_whole = self._recipe.reached, path not in self._recipe.partly
        is_edited = info is not None and known.get(path) not in (None, stamp_of(info))
        if (path in known and is_whole and not is_edited) or self._is_ignored(path):
            return False
        place = self._places.of(path)
        if place is Place.SITE and path.endswith(_MODULE_SUFFIXES):
            self._count_distribution(path)
        return place is Place.PROJECT

    def _count_distribution(self, path: str) -> None:
        if self._recipe.asked["environment"] is None:  # else those that it names count
            self._top_levels.update(dict.fromkeys(self._places.tops_of(path)))


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        return os.path.abspath(os.fspath(path))
    except FileNotFoundError:  # the working directory was removed
        return os.fspath(path)


_loads: list[tuple[set[str], list[Input]]] = []
"""The modules that items of this process loaded, and what was read meanwhile."""
_used: dict[Observer, None] = {}
"""Observers that have watched an item in this process."""
_arrived: dict[tuple[RecipeDigest, Roots], Observer] = {}
"""Observers that came from another process, by recipe."""


def _of_this_process(recipe: Recipe, roots: Roots, trust: Trust, given: list[Input]) -> Observer:
    """The observer that stands here for a pickled one: what was seen once (a vocabulary that is loaded at
    the first call) counts for all that this process makes by that recipe."""
    at = recipe.digest, roots
    if at not in _arrived:
        made = Observer(recipe, stat_cache=user_stat_cache(), trust=trust, roots=roots, given=given)
        _arrived.setdefault(at, made)
    _arrived[at]._trust = trust
    return _arrived[at]
