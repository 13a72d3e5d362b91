"""Observed inputs: files that a function opens by itself, and project modules it imports unforeseen.

They are seen by an audit hook while the function runs, kept with the artifact, and checked at the next
look-up: what changed makes it a miss that names the file.

    {"kind": "file", "name": "project:vocab.txt", "digest": "<64 hex>"}     also "items:", "cwd:", "/..."
    {"kind": "module", "name": "project:plugins/fast.py", "digest": "<64 hex>"}
    {"kind": "folder", "name": "project:data", "digest": "<64 hex>"}         the names in it, if it was listed
    {"kind": "distribution", "name": "imageio", "digest": "2.1 <hash>"}

Invariants:
    1. The hook is installed once in a process, never raises, and does nothing in threads that work for
       no watch (watches.py). An error in it makes the watches in progress incomplete: what was made
       meanwhile is not kept.
    2. A digest is that of the bytes the function may have read: a file whose stamp is not the one it had
       when it was opened, or a module's that is not the text it was loaded from, gets a digest that nothing
       equals.
    3. A file that was to be opened, or was asked for (asked.py), and was not there is an input too.
    4. A file that was only named (to a process, or by a path that was built) was the function's output where
       that may have changed it (seen.py), unless it was seen being read.

Not seen: what C libraries open under paths that are neither built (built.py) nor handed over (calls.py) in a
way that is seen, what only `os.stat` and its like were asked for, `__import__` of a computed name that was
loaded before, what a process opens beside its command line.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib.util import source_from_cache
from types import FrameType
from typing import Any

from prepcache import opens
from prepcache.databases import CONNECTS, file_under
from prepcache.digests import RecipeDigest
from prepcache.errors import UnkeyableError
from prepcache.keys import asked, built, calls, events, watches
from prepcache.keys.code.import_graph import Finder, ImportGraph
from prepcache.keys.code.project import Place, Places, working_folder
from prepcache.keys.code.source_files import runs_as_written
from prepcache.keys.code.source_files import stamp_of as stamp_of_source
from prepcache.keys.environment import lately
from prepcache.keys.files import Trust, stamp_of
from prepcache.keys.inputs import CHANGED, Input, is_compiled, listing, row_of
from prepcache.keys.made import Made
from prepcache.keys.memo import Memo
from prepcache.keys.recipes import Recipe
from prepcache.keys.restart import is_other_machine_code
from prepcache.keys.roots import Roots
from prepcache.keys.seen import Seen, bytes_written, drained
from prepcache.keys.watches import Watch
from prepcache.protocol.observed import in_order
from prepcache.protocol.places import cache_folder

_NO_INPUTS = ("/proc/", "/sys/")
_MODULE_SUFFIXES = (".py", ".so", ".pyd")
_state = opens.state
_arrived: dict[tuple[RecipeDigest, Roots], Observer] = {}
"""Observers that came from another process, by recipe."""
_install_lock = threading.Lock()
_is_installed = False


class Observer:
    """Records what a function opens and imports, over any number of items and threads.

    Args:
        recipe: what is counted by it already is no observation.
        root: the data set's `root=`.
        memo: digests of files that are known by stamp.
        trust: "content" reads every file, whatever the memo knows.

    Locking:
        None: the hook only sets items of dicts and appends to deques, which is atomic; `taken` and `news`
        copy the one first, and empty the other an element at a time.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        root: str | os.PathLike[str] | None = None,
        memo: Memo | None = None,
        trust: Trust = "stat",
    ) -> None:
        self._recipe_digest = recipe.digest
        self._roots = Roots.of(recipe, root)
        self._known, self._partly = recipe.reached, recipe.partly
        self._literals, self._named_in_code = recipe.literal_paths, recipe.named_files
        self._distributions = recipe.parts["environment"]["distributions"]
        self._is_narrowed = recipe.asked.get("environment") is not None
        self._remembering = recipe.remembering
        self._trust = trust
        self._begin(memo)

    def _begin(self, memo: Memo | None) -> None:
        self._memo = memo
        self._seen: dict[str, Seen] = {}
        self._fresh: deque[Seen] = deque()
        self._unfollowed: deque[str] = deque()
        self._told_folders = 0
        self._made = Made()
        self._listed: dict[str, tuple[str | None, str]] = {}
        """The working directory of who listed a folder by a relative name, and the digest of its names."""
        self._tops: dict[str, None] = {}
        self._followed: set[str] = set()
        self._places = Places(lately().installed)
        self.older_threads = watches.older_threads()
        self._ignored = (*_NO_INPUTS, os.path.join(cache_folder(os.environ), ""))
        _install()

    def __reduce__(self) -> Any:
        state = (self._recipe_digest, self._roots, self._known, self._partly, self._literals)
        return _of_this_process, (
            *state, self._named_in_code, self._distributions, self._is_narrowed, self._remembering,
            self._trust,
        )  # fmt: skip

    @contextlib.contextmanager
    def watching(self, item_paths: Iterable[str | os.PathLike[str]] = ()) -> Iterator[Watch]:
        """Watches this thread, and threads it starts, while the function works on one item.

        Args:
            item_paths: files and folders of the item; they count by the item digest.

        Returns:
            the watch, whose `failure` says, when it has ended, whether it missed anything.
        """
        watch = Watch(self, watches.absolute(item_paths))
        try:
            for path in self._named_in_code:
                self._built(path, watch)
            with watches.begun(watch):
                yield watch
        finally:
            try:
                self._settle(watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, something may not have been counted
                watch.failure = watch.failure or type(error).__name__

    def taken(self) -> list[dict[str, str]]:
        """What was observed, with the digests of now, as `protocol.observed.in_order` has it."""
        self._look_further()
        told = self._tell(list(self._tops), list(self._listed.items()), list(self._seen.values()))
        return in_order({one.row["name"]: one.row for one in told})

    def news(self) -> list[Input]:
        """What was observed since the last call, for a `Joined` that looks after it from then on; and again
        distributions, and files whose stamps do not tell: young ones, and with `trust="content"` all.
        """
        self._look_further()
        folders = list(self._listed.items())
        told, self._told_folders = self._told_folders, len(folders)
        found = list(self._tell(list(self._tops), folders[told:], drained(self._fresh)))
        files = {one.path for one in found if one.stamp is not None and one.row["digest"] != CHANGED}
        self._fresh.extend(self._seen[path] for path in files if path and self._seen[path].known is None)
        return found

    def _tell(
        self,
        tops: Iterable[str],
        folders: Iterable[tuple[str, tuple[str | None, str]]],
        files: Iterable[Seen],
    ) -> Iterator[Input]:
        for name, digest in lately().observed(tops).items():
            if self._distributions.get(name) != digest:
                yield Input(row_of("distribution", name, digest))
        for path, (folder, then) in folders:
            digest = then if listing(path) == then else CHANGED
            for name in self._roots.names(path, folder is not None, False, folder):
                yield Input(row_of("folder", name, digest), path)
        for seen in files:
            info = opens.stat_of(seen.path)
            is_folder = info is not None and stat.S_ISDIR(info.st_mode)
            if seen.path in self._made or (is_folder and seen.stamp is not None):
                continue
            digest, stamp = seen.digest(info, self._memo, self._trust)
            if seen.is_output(stamp):
                continue
            if (seen.has_changed or stamp != seen.stamp) and not is_compiled(seen.path):
                digest = CHANGED
            kind = "module" if seen.path.endswith(_MODULE_SUFFIXES) else "file"
            is_other = kind == "module" and not runs_as_written(seen.path)
            if is_other or is_other_machine_code(seen.path):
                digest = CHANGED
            is_literal = any(seen.path.startswith(literal) for literal in self._literals)
            names = self._roots.names(seen.path, seen.is_relative, is_literal, seen.folder)
            if seen.is_relative and seen.is_absolute:
                names = [*names, *self._roots.names(seen.path, False, is_literal)]
            for name in names:
                yield Input(row_of(kind, name, digest), seen.path, stamp)

    def _see(self, path: str, is_relative: bool, stamp: tuple[int, ...] | None) -> None:
        seen = self._seen[path] = Seen(path, is_relative, stamp, working_folder())
        self._fresh.append(seen)
        if path.endswith(".py"):
            self._unfollowed.append(path)

    def _look_further(self) -> None:
        self._follow_modules()
        self._recall()

    def _recall(self) -> None:
        """Counts what modules, and functions that keep what they gave, opened before; see opens.py."""
        for place in self._remembering:
            for path, (is_relative, info) in opens.by(place).items():
                if path in self._followed:
                    continue  # a module: told by the text that it was loaded from
                stamp = None if info is None else stamp_of(info)
                if (seen := self._seen.get(path)) is not None:
                    seen.is_absolute |= not is_relative
                    if seen.stamp != stamp and not seen.is_made:  # what is kept may be of that time
                        self._note_changed(seen)
                elif path not in self._made and self._is_input(path, info):
                    self._see(path, is_relative, stamp)

    def _follow_modules(self) -> None:
        """Counts what modules import that were imported while the function ran: it may have been loaded."""
        new = [path for path in drained(self._unfollowed) if path not in self._followed]
        if not new:
            return
        modules = {events.file_of(module): name for name, module in list(sys.modules.items())}
        graph = ImportGraph(Finder(sys.path, self._places))
        for path in new:
            self._followed.add(path)
            with contextlib.suppress(UnkeyableError):
                if path in modules:  # not one that was merely read
                    graph.add_file(modules[path], path)
        for path in graph.files.values():
            self._opened(path, False, Watch(self), "prepcache.loaded")
            self._followed.add(path)
        self._remembering |= opens.loading(graph.files.values())
        self._tops.update(dict.fromkeys(graph.top_levels))

    def _listing(self, path: str, watch: Watch) -> None:
        full = self._made.target(os.path.abspath(path))
        if full in self._listed or full in self._made or self._is_ignored(full):
            return
        if self._places.of(full + os.sep + "x") is Place.PROJECT and not watch.owns(full):
            self._listed[full] = (None if os.path.isabs(path) else working_folder(), listing(full))

    def _named(self, path: str, watch: Watch) -> None:
        """A file that a process was started with, no command of the system's; what changes was its output."""
        full = os.path.abspath(path)
        if opens.stat_of(full) is None:
            watch.note_absent(full)
            return
        is_new = full not in self._seen or self._seen[full].built_after is not None
        roots = (self._roots.project, self._roots.items, self._roots.cwd)
        if is_new and not events.is_of_system(full, roots):
            self._opened(path, False, watch)
            if full in self._seen:
                self._seen[full].may_be_output = not events.is_program(full)

    def _built(self, path: str, watch: Watch) -> bool:
        """A file under a path that was built: it may be read in C. Whether it is new, and counts."""
        full = self._made.target(os.path.abspath(path))
        if full in self._seen or full in self._made or watch.owns(full):
            self._note_absolute(path, full)
            if full in self._seen and self._seen[full].stamp is None and opens.stat_of(full) is None:
                watch.note_missed(path)
            return False
        if (found := file_under(full)) is None:
            watch.note_absent(full)
            return False
        if found != full:
            return self._built(found, watch)
        if watch.has_made(full):
            self._made.add(full)
            return False
        self._opened(path, False, watch)
        if (seen := self._seen.get(full)) is not None:
            seen.may_be_output, seen.built_after = True, bytes_written()
            watch.built.append(full)
        return seen is not None

    def _note_absolute(self, path: str, full: str) -> None:
        """What was seen by a relative name, and now by another, counts by both."""
        if (seen := self._seen.get(full)) is not None and os.path.isabs(path):
            seen.is_absolute = True

    def _replaced(self, path: str, other: str, watch: Watch) -> None:
        """Another file gets the name of one: the function's output, if only its path was built before, or if
        it did not count and the function made the other."""
        full, made = os.path.abspath(path), os.path.abspath(other)
        seen = self._seen.get(full)
        is_made = made in self._made or watch.has_made(made)
        if is_made and seen is not None and seen.makes(watch.made):
            return
        if is_made if seen is None else seen.built_after is not None:
            self._made.rename(made, full)

    def _settle(self, watch: Watch) -> None:
        """See NOTE [ Outputs under paths that were built ] in seen.py. What it made counts as it is now."""
        for path in watch.built:
            seen, info = self._seen[path], opens.stat_of(path)
            if seen.built_after is not None:
                if seen.is_output(None if info is None else stamp_of(info)):
                    self._made.add(path)
                seen.may_be_output = False
        asked.settle(watch, self._seen, self._made, self._opened, self._note_changed)
        for path in watch.made:
            seen, info = self._seen[path], opens.stat_of(path)
            seen.stamp, seen.known = None if info is None else stamp_of(info), None
            self._fresh.append(seen)

    def _connected(self, files: list[str], watch: Watch) -> None:
        """The files of a database; one that is made only now is the function's output."""
        for path in files:
            full = os.path.abspath(path)
            is_new = full not in self._seen
            self._opened(path, False, watch)
            if path == files[0] and is_new and full in self._seen:
                self._seen[full].may_be_output = self._seen[full].stamp is None
            if full in self._made:
                return

    def _opened(self, path: str, is_write: bool, watch: Watch, event: str = "prepcache.read") -> None:
        full = os.path.abspath(path)
        if (leads_to := self._made.target(full)) != full:
            path = full = leads_to
        if "__pycache__" in full and full.endswith(".pyc"):
            full = source_from_cache(full)
        if is_write:
            # Its own output, unless it was an input before: read, then rewritten in place.
            seen = self._seen.get(full)
            if seen is None or not (seen.makes(watch.made) or seen.built_after is None):
                self._made.add(full)
            return
        if full not in self._seen and watch.has_made(full):
            self._made.add(full)
        if full in self._made or watch.owns(full, is_new=full not in self._seen):
            return
        info = opens.stat_of(full)
        counted = self._known.get(full) if event in ("open", events.AS_TEXT) else None
        is_edited = counted is not None and info is not None and stamp_of_source(info) != counted
        # Who asks for it by its name may use all of it.
        is_more = event in events.LOADS and full in self._partly
        if not (is_edited or is_more or self._is_input(full, info)):
            return
        stamp = None if info is None else stamp_of(info)
        known = self._seen.get(full)
        self._note_absolute(path, full)
        if known is None:
            self._see(full, not os.path.isabs(path), stamp)
        elif known.is_output(stamp):
            self._made.add(full)
        elif full in watch.made:
            pass  # it counts as the function leaves it
        elif known.stamp != stamp:
            self._note_changed(known)
        elif known.built_after is not None:
            known.built_after, known.may_be_output = None, False

    def _note_changed(self, seen: Seen) -> None:
        if not seen.has_changed:
            self._fresh.append(seen)
        seen.has_changed = True

    def _is_ignored(self, path: str) -> bool:
        """Whether a path leads to what says nothing: of the system, our own, or what torch has compiled,
        which is named by what it was made from, and made again where it is gone."""
        compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR") if "torch._inductor" in sys.modules else None
        return path.startswith(self._ignored) or bool(
            compiled and (path + os.sep).startswith(compiled + os.sep)
        )

    def _is_input(self, path: str, info: os.stat_result | None) -> bool:
        """Whether a file that was opened to be read counts. A library's counts by its distribution."""
        if path in self._known or self._is_ignored(path):
            return False
        if info is not None and not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
            return False  # a device, a pipe, a socket
        place = self._places.of(path)
        if place is Place.SITE and path.endswith(_MODULE_SUFFIXES) and not self._is_narrowed:
            self._tops.update(dict.fromkeys(self._places.tops_of(path)))
        return place is Place.PROJECT


def _of_this_process(digest: RecipeDigest, roots: Roots, *state: Any) -> Observer:
    """The observer that stands here for a pickled one: what was seen once (a vocabulary that is loaded at
    the first call) counts for all that this process makes by that recipe."""
    if (found := _arrived.get((digest, roots))) is not None:
        found._trust = state[-1]
        return found
    made = Observer.__new__(Observer)
    made._recipe_digest, made._roots = digest, roots
    made._known, made._partly, made._literals, made._named_in_code, made._distributions, *flags = state
    made._is_narrowed, made._remembering, made._trust = flags
    made._begin(Memo())
    return _arrived.setdefault((digest, roots), made)


def _after_fork_in_child() -> None:
    global _install_lock
    _install_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _install() -> None:
    global _is_installed
    with _install_lock:
        if not _is_installed:
            sys.addaudithook(_hook)
            events.watch_imports(lambda module, frame: _hook("prepcache.loaded", (module, frame)))
            watches.watch_pools()
            built.listen(_note_built)
            calls.listen(_note_built)
            asked.listen(_note_built)
            _is_installed = True


def _note_built(path: str | bytes, frame: FrameType | None) -> None:
    try:
        name = os.fsdecode(path)
        is_new = [one.observer._built(name, one) for one in watches.present(frame)]
        if any(is_new):
            opens.note(name, frame)
    except Exception as error:  # noqa: BLE001 - as the hook
        for watch in watches.running:
            watch.failure = watch.failure or error.__class__.__name__


def _hook(event: str, args: tuple[Any, ...], is_over: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_over() or event not in events.EVENTS or not watches.in_progress:
        return  # at its end the interpreter takes away what is used here
    try:
        if event in events.LISTINGS and (
            getattr(_state, "is_listing", False) or events.is_by_import(sys._getframe(1))
        ):
            return
        paths = events.paths_of(event, args)
        is_write = event == "open" and opens.writes(args[1], args[2])
        if event == "open" and events.is_read_as_text(sys._getframe(1), args[0]):
            event = events.AS_TEXT
        for one in watches.present(sys._getframe(1)):
            if event == CONNECTS:
                one.observer._connected(list(paths), one)
                continue
            for path in paths:
                if not isinstance(path, str | bytes | os.PathLike) or not path:
                    continue
                if event in events.PLACES:
                    one.placed.add(os.path.abspath(os.fsdecode(path)))
                if event in events.LISTINGS:
                    one.observer._listing(os.fsdecode(path), one)
                elif event in events.STARTS:
                    one.observer._named(os.fsdecode(path), one)
                elif event == "os.rename":
                    one.observer._replaced(os.fsdecode(path), os.fsdecode(args[0]), one)
                elif event == "os.link":
                    one.observer._made.add_link(os.path.abspath(os.fsdecode(path)))
                elif event == "os.mkdir":
                    one.observer._made.add_folder(os.path.abspath(os.fsdecode(path)))
                elif event != "os.symlink":
                    one.observer._opened(os.fsdecode(path), is_write, one, event)
    except Exception as error:  # noqa: BLE001 - one that a hook raises would break the user's call
        for watch in watches.running:  # no call: there may be no room left on the stack for one
            watch.failure = watch.failure or error.__class__.__name__
