"""The observer: what a function reads beside its item, over all of its calls, as rows for the artifact.

    {"kind": "file", "name": "project:vocab.txt", "digest": "<64 hex>"}     also "items:", "cwd:", "/..."
    {"kind": "module", "name": "project:plugins/fast.py", "digest": "<64 hex>"}
    {"kind": "folder", "name": "project:data", "digest": "<64 hex>"}         the names in it, if it was listed
    {"kind": "folder", "name": "project:data/", "digest": "a folder"}        that it is there, if asked for
    {"kind": "distribution", "name": "imageio", "digest": "2.1 <hash>"}

NOTE [ What is loaded once ]
    What was read while a function's state was built counts for every data set that uses that state from then
    on, though nothing is read again:
      - for an item that loaded modules: for the data sets that count or meet one of these modules;
      - by the calls that changed what the function holds (fill/recipe_guard.py): for the recipe that counts
        the state as it was before them;
      - where a recipe leaves something out (`untracked=`, a key of one's own): all that was read for others
        of its code.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prepcache.digests import RecipeDigest
from prepcache.keys.environment import lately
from prepcache.keys.files.digest import Trust
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.observation import audit, calls, context, unseen
from prepcache.keys.observation.context import NAMED, Notice, Watch
from prepcache.keys.observation.findings import Findings, Seen, loads
from prepcache.keys.observation.inputs import FOLDER_STAMP, Input, Joined, row_of
from prepcache.keys.observation.naming import Roots
from prepcache.keys.recipes import Recipe

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
        self._scope, self._given, self._inherited = scope, given, inherited
        self._found = Findings(
            scope.known, scope.partly, is_narrowed=scope.is_narrowed, stat_cache=stat_cache, trust=trust
        )
        self._told: dict[int, int] = {}
        self._joined, self._in_joined = Joined(), dict[int, int]()
        self._code = calls.JobCode(scope.known)
        self._said: set[str] = set()
        self._reads = unseen.Reads()
        self._programs: dict[str, None] = {}

    def __reduce__(self) -> Any:
        """Begins elsewhere with what its function's state was built from: it gets the function as it is."""
        given = [*self._given, *(seen for one in self._inherited for log in one._logs() for seen in log)]
        return _of_this_process, (self._scope, self._found.trust, given)

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
        own = []
        for path in item_paths:
            with contextlib.suppress(FileNotFoundError):  # the working directory was removed
                own.append(os.path.abspath(os.fspath(path)))
        watch = Watch(self, tuple(own))
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
            _used[self] = None
            self._programs.update(dict.fromkeys(watch.programs))
            try:
                self._found.take(watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, something may not have been counted
                watch.failure = watch.failure or type(error).__name__

    def has_listed(self, path: str) -> bool:
        """Whether the names in a folder are known, by an absolute path."""
        return path in self._found.listed

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
            yield source._found.log
        for modules, log in loads:
            if any(path in self._scope.known or path in self._found.modules for path in modules):
                for path in modules:
                    self._found.take_module(path)
                yield log
        yield self._found.log

    def _inputs(self, told: dict[int, int]) -> Iterator[Input]:
        """The inputs that were not told before.

        Args:
            told: of each log, by its address, how many of its entries were.
        """
        logs = list(self._logs())
        top_levels = {name for one in (self, *self._sources()) for name in list(one._found.top_levels)}
        for name, digest in lately().observed(top_levels).items():
            if self._scope.distributions.get(name) != digest:
                yield Input(row_of("distribution", name, digest))
        for log in logs:
            begin = told.get(id(log), 0)
            new = log[begin:]
            for seen in new:
                for name in self._names_of(seen):
                    row = row_of(seen.kind, name, seen.digest)
                    yield Input(row, seen.path, seen.stamp, seen.is_read)
            told[id(log)] = begin + len(new)

    def _names_of(self, seen: Seen) -> list[str]:
        is_literal = any(seen.path.startswith(literal) for literal in self._scope.literals)
        names = self._scope.roots.names(seen.path, seen.folder, is_literal)
        is_asked = seen.stamp == FOLDER_STAMP  # by another name than its list
        return [os.path.join(name, "") for name in names] if is_asked else names


_used: dict[Observer, None] = {}
"""Observers that have watched an item in this process."""
_arrived: dict[tuple[RecipeDigest, Roots], Observer] = {}
"""Observers that came from another process, by recipe."""


def _of_this_process(scope: _Scope, trust: Trust, given: list[Seen]) -> Observer:
    """The observer that stands here for a pickled one: what was seen once (a vocabulary that is loaded at
    the first call) counts for all that this process makes by that recipe."""
    if (found := _arrived.get((scope.digest, scope.roots))) is not None:
        found._found.trust = trust
        return found
    made = Observer.__new__(Observer)
    made._begin(scope, user_stat_cache(), trust, given)
    return _arrived.setdefault((scope.digest, scope.roots), made)
