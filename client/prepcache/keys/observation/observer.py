"""The observer: what a function reads beside its item, over all of its calls, as rows for the artifact.

    {"kind": "file", "name": "project:vocab.txt", "digest": "<64 hex>"}     also "items:", "cwd:", "/..."
    {"kind": "module", "name": "project:plugins/fast.py", "digest": "<64 hex>"}
    {"kind": "folder", "name": "project:data", "digest": "<64 hex>"}         the names in it, if it was listed
    {"kind": "folder", "name": "project:data/", "digest": "a folder"}        that it is there, if asked for
    {"kind": "distribution", "name": "imageio", "digest": "2.1 <hash>"}

NOTE [ What is loaded once ]
    A module that an item imports no later item reads again, nor does another data set of this process. So
    what was read for an item that loaded modules counts for every data set of this process that counts one of
    these modules. What functions and properties keep counts by value in the recipe, with what was read for it
    (keys/own_state.py). Where a recipe leaves something out (`untracked=`, a key of one's own), calls may
    have read into that, too: such a data set takes over all that was read for others of its code in this
    process.

Not here: which facts make an input and which an output (findings.py).
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prepcache.digests import RecipeDigest
from prepcache.keys.code.source_files import runs_as_written
from prepcache.keys.environment import lately
from prepcache.keys.files.digest import Trust
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.observation import audit, context, job_code, monitoring, unseen
from prepcache.keys.observation.context import MODULE, NAMED, Fact, Notice, Watch
from prepcache.keys.observation.findings import MODULE_SUFFIXES, Findings, Seen
from prepcache.keys.observation.inputs import (
    CHANGED,
    FOLDER_STAMP,
    Input,
    Joined,
    info_of,
    listing,
    row_of,
)
from prepcache.keys.observation.job_code import is_file_of_job
from prepcache.keys.observation.naming import Roots
from prepcache.keys.recipes import Recipe
from prepcache.keys.restart import is_other_machine_code

_arrived: dict[tuple[RecipeDigest, Roots], Observer] = {}
"""Observers that came from another process, by recipe."""
_loaded: list[tuple[set[str], list[Fact]]] = []
"""The modules that items loaded, and what was read meanwhile."""
_used: dict[Observer, None] = {}
"""Observers that have watched an item in this process."""
_STARTED = (
    "it starts processes ({programs}). Of the files that they read, only those on their command line are "
    "observed: change version= when others change"
)
_UNSEEN = (
    "it reads files that prepcache cannot observe ({size} for one item; in a C library, as "
    "cv2.imread does). Their edits would not be noticed: pass their paths in the item, or change "
    "version= with them"
)


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
        self._begin(scope, stat_cache, trust, (), recipe.inherits)

    def _begin(
        self,
        scope: _Scope,
        stat_cache: StatCache | None,
        trust: Trust,
        given: tuple[Seen, ...],
        inherited: tuple[Observer, ...] = (),
    ) -> None:
        self._scope, self._stat_cache, self._trust = scope, stat_cache, trust
        self._given, self._inherited = given, inherited
        self._found = Findings(scope.known, scope.partly, is_narrowed=scope.is_narrowed)
        for seen in given:
            self._found.see_again(seen)
        self._told_folders = 0
        self._met_loaded: set[int] = set()
        self._code = job_code.JobCode(scope.known, monitoring.CODES)
        self._told: set[str] = set()
        self._reads = unseen.Reads()
        self.programs: dict[str, None] = {}
        """Of the processes that were started, in their order."""

    def __reduce__(self) -> Any:
        return _of_this_process, (self._scope, self._trust, self._given_on())

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
        self._code.look(function)
        try:
            with monitoring.watched(self._code, watch):
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
        return path in self._found.listed

    def _take(self, watch: Watch) -> None:
        """Takes in what a watch has seen, when its item is made."""
        facts = list(watch.facts.values())
        _used[self] = None
        self.programs.update(dict.fromkeys(watch.programs))
        self._found.take(facts, watch)
        modules = {fact.full for fact in facts if fact.kind == MODULE and is_file_of_job(fact.full)}
        if modules:
            _loaded.append((modules, [one for one in facts if not watch.owns(one.full)]))

    # -- rows

    def taken(self) -> list[dict[str, str]]:
        """What was observed, with the digests of now, as `protocol.observed.in_order` has it."""
        self._take_loaded()
        joined = Joined()
        joined.add(self._tell(list(self._found.listed.items()), list(self._found.seen.values())))
        return joined.rows()

    def news(self) -> list[Input]:
        """What was observed since the last call, for a `Joined` that looks after it from then on; and again
        distributions, and files whose stamps do not tell: young ones, and with `trust="content"` all.
        """
        self._take_loaded()
        folders = list(self._found.listed.items())
        told, self._told_folders = self._told_folders, len(folders)
        found = list(self._tell(folders[told:], _drained(self._found.fresh)))
        files = {one.path for one in found if one.stamp is not None and one.row["digest"] != CHANGED}
        seen = [self._found.seen.get(path) for path in files if path is not None]
        self._found.fresh.extend(one for one in seen if one is not None and one.known is None)
        return found

    def _take_inherited(self) -> None:
        """What was read for data sets whose calls have changed what the function holds, and that counts as
        before, or not at all: this data set's calls find it loaded, and do not read it again. See
        keys/own_state.py, and NOTE [ What is loaded once ]."""
        for other in self._inherited:
            other._take_inherited()
            self._found.inherit(other._found)
        for other in list(_used) if self._scope.leaves_out else ():
            if other is not self and self._scope.shares_code(other._scope):
                self._found.inherit(other._found)

    def _given_on(self) -> tuple[Seen, ...]:
        """What an observer in another process is to begin with: it gets the function as it is now."""
        self._take_inherited()
        return tuple(seen for other in self._inherited for seen in other._found.seen.values()) + self._given

    def _take_loaded(self) -> None:
        """See NOTE [ What is loaded once ]."""
        self._take_inherited()
        for number, (modules, facts) in enumerate(list(_loaded)):
            is_shared = any(path in self._scope.known or path in self._found.modules for path in modules)
            if is_shared and number not in self._met_loaded:
                self._met_loaded.add(number)
                self._found.take_again(facts, Watch(self))

    def _tell(
        self,
        folders: Iterable[tuple[str, tuple[str | None, str]]],
        files: Iterable[Seen],
    ) -> Iterator[Input]:
        """Rows of what was found: of all distributions, and of some folders and files."""
        for name, digest in lately().observed(list(self._found.top_levels)).items():
            if self._scope.distributions.get(name) != digest:
                yield Input(row_of("distribution", name, digest))
        for path, (folder, then) in folders:
            digest = then if listing(path) == then else CHANGED
            for name in self._scope.roots.names(path, folder):
                yield Input(row_of("folder", name, digest), path)
        for seen in files:
            if self._found.seen.get(seen.path) is not seen or self._found.is_output(seen.path):
                continue
            digest, stamp = seen.digest(info_of(seen.path), self._stat_cache, self._trust)
            if seen.has_changed or stamp != seen.stamp:
                digest = CHANGED
            if seen.stamp == FOLDER_STAMP:
                for name in self._names_of(seen):  # by another name than its list
                    yield Input(row_of("folder", os.path.join(name, ""), digest), seen.path, stamp)
                continue
            kind = "module" if seen.path.endswith(MODULE_SUFFIXES) else "file"
            is_other = kind == "module" and not runs_as_written(seen.path)
            if is_other or is_other_machine_code(seen.path):
                digest = CHANGED
            for name in self._names_of(seen):
                yield Input(row_of(kind, name, digest), seen.path, stamp)

    def _names_of(self, seen: Seen) -> list[str]:
        is_literal = any(seen.path.startswith(literal) for literal in self._scope.literals)
        found = [self._scope.roots.names(seen.path, folder, is_literal) for folder in list(seen.folders)]
        return list(dict.fromkeys(name for names in found for name in names))


def _drained(queue: deque[Any]) -> list[Any]:
    """What was in it; another thread may add to it and empty it meanwhile."""
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(queue.popleft())
    return found


def _of_this_process(scope: _Scope, trust: Trust, given: tuple[Seen, ...]) -> Observer:
    """The observer that stands here for a pickled one: what was seen once (a vocabulary that is loaded at
    the first call) counts for all that this process makes by that recipe."""
    if (found := _arrived.get((scope.digest, scope.roots))) is not None:
        found._trust = trust
        return found
    made = Observer.__new__(Observer)
    made._begin(scope, user_stat_cache(), trust, given)
    return _arrived.setdefault((scope.digest, scope.roots), made)
