"""The observer: what a function reads beside its item, over all of its calls, as inputs with their names.

NOTE [ What is loaded once ]
    What was read while a function's state was built counts for every data set that uses that state from then
    on, though nothing is read again:
      - for an item that loaded modules: for the data sets that count or meet one of these modules;
      - by the calls that changed what the function holds (fill/recipe_guard.py): for the recipe that counts
        the state as it was before them;
      - where a recipe leaves something out (`untracked=`, a key of one's own): all that was read for others
        of its code.

NOTE [ Unseen reads ]
    A C library opens files where Python sees nothing: on Python 3.11 no event tells of
    `cv2.imread(f"{root}/{i:04d}.png")`, and the name is in no key. Over the first items the kernel's count of
    bytes is compared with the sizes of the files that were seen being opened, and of those that are open. It
    decides nothing: it is said once, with the remedy. Not counted are items that loaded modules, started
    processes or opened connections; processes in which other threads run; files that are mapped.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prepcache.digests import RecipeDigest
from prepcache.keys.environment import lately
from prepcache.keys.files.digest import Trust
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.observation import audit, calls, context
from prepcache.keys.observation.context import LITERAL, MODULE, Notice, Watch, is_own
from prepcache.keys.observation.findings import Findings, Scope, loads
from prepcache.keys.observation.inputs import CHANGED, FOLDER_STAMP, OUTPUT, Input
from prepcache.keys.observation.naming import Roots
from prepcache.keys.recipes import Recipe
from prepcache.protocol.observed import in_order

FIRST_ITEMS = 12
"""Items over which unseen reads are looked for."""
ENOUGH = 2
"""Items with unseen bytes before it is said: one alone may be what a library loads when it is used first."""
SLACK_BYTES = 4096
"""Beside what was seen: headers that are read twice, and these counts themselves."""
_STARTED = (
    "it starts processes ({programs}). Of the files that they read, only those on their command line are "
    "observed: change version= when others change"
)
_UNSEEN = (
    "it reads files that prepcache cannot observe ({size:,} bytes for one item; in a C library, as "
    "cv2.imread does). Their edits would not be noticed: pass their paths in the item, or change "
    "version= with them"
)


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
        scope = Scope(
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
        scope: Scope,
        stat_cache: StatCache | None,
        trust: Trust,
        given: Sequence[Input] = (),
        inherited: Sequence[Observer] = (),
    ) -> None:
        self._scope, self._given, self._inherited = scope, given, inherited
        self._found = Findings(scope, stat_cache, trust)
        self._told: dict[int, int] = {}
        """How much of each log was told as news, by its address."""
        self._added: dict[int, int] = {}
        """The same, of what is among `_inputs`."""
        self._inputs: dict[str, Input] = {}
        """What this process and others saw, by name."""
        self._outputs: dict[str | None, None] = {}
        self._code = calls.JobCode(scope.known)
        self._programs: dict[str, None] = {}
        self._items_left, self._unseen_items, self._unseen_bytes = FIRST_ITEMS, 0, 0
        self._said: set[str] = set()

    def __reduce__(self) -> Any:
        """Begins elsewhere with what its function's state was built from: it gets the function as it is."""
        given = [*self._given, *(seen for one in self._inherited for log in one._logs() for seen in log)]
        return _of_this_process, (self._scope, self._found.trust, given)

    def new_notices(self) -> tuple[Notice, ...]:
        """What the user should be told, and was not found out before in this process."""
        found = []
        if self._programs and "started" not in self._said:
            found.append(Notice("started", _STARTED.format(programs=", ".join(list(self._programs)[:3]))))
        if self._unseen_items >= ENOUGH and "unseen" not in self._said:
            found.append(Notice("unseen", _UNSEEN.format(size=self._unseen_bytes)))
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
                is_counted = self._items_left > 0 and _is_alone()
                before = _bytes_read() if is_counted else None
                with context.begun(watch):
                    for path in self._scope.named_in_code:
                        context.note(LITERAL, path)
                    yield watch
                if before is not None:
                    self._compare_bytes(watch, before)
        finally:
            _used[self] = None
            self._programs.update(dict.fromkeys(watch.programs))
            try:
                self._found.take(watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, something may not have been counted
                watch.failure = watch.failure or type(error).__name__

    def _compare_bytes(self, watch: Watch, before: int) -> None:
        """See NOTE [ Unseen reads ]."""
        self._items_left -= 1
        now = _bytes_read()
        has_loaded = any(fact.kind == MODULE for fact in watch.facts.values())
        if now is None or has_loaded or watch.programs or watch.has_connected or not _is_alone():
            return
        unseen = now - before - watch.opened_bytes - sum(map(_size_of, watch.items)) - _open_bytes()
        if unseen > SLACK_BYTES:
            self._unseen_items += 1
            self._unseen_bytes = unseen

    def add(self, told: Iterable[Input]) -> None:
        """Takes in what this process or another saw. An input that was two things has changed, for good."""
        for one in told:
            if one.kind == OUTPUT:
                self._outputs[one.path] = None
                continue
            before = self._inputs.setdefault(one.name, one)
            digest = one.digest if before.row == one.row else CHANGED
            self._inputs[one.name] = one._replace(digest=digest, is_read=one.is_read or before.is_read)

    def taken(self) -> list[dict[str, str]]:
        """What was observed, as `protocol.observed.in_order` has it. What was named or asked for, and never
        read, is no input once the function made it."""
        self.add(self._new_inputs(self._added))
        found = self._inputs.items()
        return in_order({n: one.row for n, one in found if one.is_read or one.path not in self._outputs})

    def news(self) -> list[Input]:
        """What was observed since the last call, for another process to add; and again distributions."""
        return list(self._new_inputs(self._told))

    def _sources(self) -> Iterator[Observer]:
        """Those whose function's state this one uses; see NOTE [ What is loaded once ]."""
        for other in self._inherited:
            yield other
            yield from other._sources()
        for other in list(_used) if self._scope.leaves_out else ():
            if other is not self and self._scope.shares_code(other._scope):
                yield other

    def _logs(self) -> Iterator[Sequence[Input]]:
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

    def _new_inputs(self, told: dict[int, int]) -> Iterator[Input]:
        """The inputs that were not told before, by their names.

        Args:
            told: of each log, by its address, how many of its entries were.
        """
        logs = list(self._logs())
        top_levels = {name for one in (self, *self._sources()) for name in list(one._found.top_levels)}
        for name, digest in lately().observed(top_levels).items():
            if self._scope.distributions.get(name) != digest:
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
        is_literal = any(path.startswith(literal) for literal in self._scope.literals)
        names = self._scope.roots.names(path, seen.folder, is_literal)
        is_asked = seen.stamp == FOLDER_STAMP  # by another name than its list
        return [os.path.join(name, "") for name in names] if is_asked else names


_used: dict[Observer, None] = {}
"""Observers that have watched an item in this process."""
_arrived: dict[tuple[RecipeDigest, Roots], Observer] = {}
"""Observers that came from another process, by recipe."""


def _of_this_process(scope: Scope, trust: Trust, given: list[Input]) -> Observer:
    """The observer that stands here for a pickled one: what was seen once (a vocabulary that is loaded at
    the first call) counts for all that this process makes by that recipe."""
    if (found := _arrived.get((scope.digest, scope.roots))) is not None:
        found._found.trust = trust
        return found
    made = Observer.__new__(Observer)
    made._begin(scope, user_stat_cache(), trust, given)
    return _arrived.setdefault((scope.digest, scope.roots), made)


# -- unseen reads


def _is_alone() -> bool:
    """Whether no other thread than this one and prepcache's own runs."""
    return sum(not is_own(thread) for thread in threading.enumerate()) == 1


def _bytes_read() -> int | None:
    """How many bytes this process has read so far; None where that is not told."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/io", "rb") as told:
        return int(told.read(512).split(maxsplit=2)[1])
    return None


def _size_of(path: str) -> int:
    """Of a file, or of the files in a folder."""
    try:
        info = os.stat(path)
        if not stat.S_ISDIR(info.st_mode):
            return info.st_size
        return sum(_size_of(entry.path) for entry in os.scandir(path))
    except OSError:
        return 0


def _open_bytes() -> int:
    """Sizes of the files that are open: what is read of them was seen when they were opened."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError):
                info = os.fstat(int(name))
                total += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return total
