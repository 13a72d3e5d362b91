"""Watches: for which item, of which data set, a thread works, and what was seen meanwhile.

Invariants:
    1. A watch that has ended gets no more facts, whoever still carries it.
    2. An error in what fills a watch marks it as incomplete: what was made meanwhile is not stored.
    3. The path from an event to a fact calls as little as it can: a function may run near the recursion
       limit.

A context variable carries watches to whatever runs in a copy of its context, as tasks of asyncio do. A thread
that was started while a function was watched works for all watches in progress, as long as it lives: it may
belong to a pool that the function keeps. Work that a queue hands to an older thread is not seen.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Kind:
    """Kinds of facts.

    Attributes:
        KEPT: opened to be written, keeping what was there; a folder that was to be made.
        NAMED: to a C library, on the command line of a process, or in the code: any of them may open it.
    """

    READ, WRITTEN, KEPT, RENAMED = "read", "written", "kept", "renamed"
    LISTED, ASKED, NAMED = "listed", "asked", "named"
    MODULE, MODULE_NAME = "module", "module name"


FORKS = "it starts processes by fork or spawn, and what they read is not seen"
WAL = "-wal"
"""Behind the name of a SQLite database: of its log of what was committed."""
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
"""Where prepcache lies."""
OF_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ")


def is_file_of_job(name: str) -> bool:
    """Whether a source file is the job's, not a library's and not prepcache's."""
    return not (name.startswith((*OF_PYTHON, OWN_FOLDER)) or f"{os.sep}site-packages{os.sep}" in name)


def is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)


class Fact(NamedTuple):
    """What was seen.

    Args:
        path: as it was used; of a module that was only named, its name.
        folder: the working directory then, if the path is a relative one.
        info: what was there then.
        other: of what was renamed, the former path; of a folder that was listed, the names in it.
    """

    kind: str
    path: str
    folder: str | None
    info: os.stat_result | None
    other: Any = None

    @property
    def full(self) -> str:
        return os.path.normpath(os.path.join(self.folder or os.sep, self.path))


def info_of(path: str) -> os.stat_result | None:
    """`os.stat` of a path; None where nothing can be read, or the empty log that readers of SQLite make."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return None if not info.st_size and path.endswith(WAL) else info


def names_in(folder: str) -> list[bytes] | None:
    """The names in a folder; None where it cannot be listed."""
    try:
        return os.listdir(os.fsencode(folder))
    except OSError:
        return None


@dataclass(slots=True, eq=False)
class Watch:
    """One function at work on one item.

    Args:
        items: the paths of the item, which count by its digest, also by where they link to.
        facts: in their order, each once, by kind, path and folder.
        failure: why something may have been missed, or "".
        opened_bytes: sizes of the files that were opened to be read, as often as they were.
        has_children: it forked, or started processes of Python, and may keep them.
        calls: how many items the function was called with.
        older: the threads that ran when it began, which work for others.
    """

    items: tuple[str, ...] = ()
    facts: dict[tuple[str, str, str | None], Fact] = field(default_factory=dict)
    failure: str = ""
    opened_bytes: int = 0
    programs: list[str] = field(default_factory=list)
    has_children: bool = False
    calls: int = 1
    older: Sequence[threading.Thread] = ()
    is_on: bool = True
    _links: list[str] | None = None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Notes meanwhile what this thread does, and what works for it."""
        self.older = threading.enumerate()
        token = STATE.carried.set((*STATE.carried.get(), self))
        with STATE.lock:
            STATE.running = (*STATE.running, self)
        try:
            yield
        finally:
            self.is_on = False
            now = threading.enumerate()
            with STATE.lock:
                STATE.running = tuple(one for one in STATE.running if one is not self)
                if now != self.older:
                    STATE.young.update(one for one in now if one not in self.older and not is_own(one))
            STATE.carried.reset(token)

    def owns(self, path: str) -> bool:
        """Whether a path names the item, or what is in it."""
        if any(is_within(path, item) for item in self.items):
            return True
        if self._links is None:
            self._links = [*map(os.path.realpath, self.items)]
        return any(is_within(path, link) for link in self._links)


class _State:
    """What the hook looks at.

    Attributes:
        running: the watches in progress, in all threads; replaced, never changed, under `lock`.
        young: threads that were started while a function was watched.
        has_database: whether a function that was watched has opened one: it may keep the connection.
    """

    def __init__(self) -> None:
        none: tuple[Watch, ...] = ()
        self.carried = contextvars.ContextVar("prepcache watches", default=none)
        self.running = none
        self.young: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self.has_database = False
        self.lock = threading.Lock()


STATE = _State()


def present() -> tuple[Watch, ...]:
    """The watches that the present thread works for; some may have ended."""
    if watches := STATE.carried.get():
        return watches
    if not (running := STATE.running):
        return ()
    ident = threading.get_ident()
    here = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
    if here is not None and is_own(here):
        return ()
    return running if here in STATE.young else tuple(one for one in running if here not in one.older)


def fail(error: BaseException) -> None:
    """Marks all watches in progress as incomplete. It calls nothing: the stack may have no room left."""
    for watch in STATE.running:
        watch.failure = watch.failure or error.__class__.__name__


def refuse(why: str, *, is_of_children: bool = False) -> None:
    """Marks the watches that the present thread works for as incomplete."""
    for watch in present():
        watch.failure = watch.failure or why
        watch.has_children |= is_of_children


def note(kind: str, path: str, other: Any = None) -> None:
    """Notes a fact for the watches that the present thread works for."""
    folder = None if path[:1] == "/" else os.getcwd()
    key, new = (kind, path, folder), None
    for watch in present():
        if not watch.is_on:
            continue
        fact = watch.facts.get(key)
        if fact is None:
            if new is None:
                new = Fact(kind, path, folder, info_of(path), other)
            fact = watch.facts.setdefault(key, new)
        if kind == Kind.READ and fact.info is not None:
            watch.opened_bytes += fact.info.st_size


def depend_on(paths: Iterable[str | bytes], *, is_listed: bool = False) -> None:
    """Says that what a function makes depends on files, or on the names in folders, though nothing is opened:
    it may open a data set of its own, whose digests are known."""
    if not STATE.running or not present():
        return
    try:
        for path in map(os.fsdecode, paths):
            if is_listed:
                note(Kind.LISTED, path, names_in(path))
            else:
                note(Kind.READ, path)
    except Exception as error:  # noqa: BLE001 - fails closed, as the hook does
        fail(error)


def is_own(thread: threading.Thread) -> bool:
    """Whether a thread is prepcache's, which reads for nobody's function."""
    return thread.name.startswith("prepcache")
