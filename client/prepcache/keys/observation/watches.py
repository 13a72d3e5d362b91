"""Watches: for which item, of which data set, a thread works, and what Python's audit events tell meanwhile.

The audit hook is added when a function is watched first, and stays, as audit hooks do. While none is watched
it costs one look at a tuple. A context variable carries watches to whatever runs in a copy of its context, as
tasks of asyncio do. A thread that was started while a function was watched works for all watches in progress,
as long as it lives: it may belong to a pool that the function keeps.

Invariants:
    1. Nothing is raised into the user's call. An error in what fills a watch marks it as incomplete: what was
       made meanwhile is not stored.
    2. A watch notes facts; what they mean is found out when the item is made (observer.py). One that has
       ended gets no more, whoever still carries it.
    3. The path from an event to a fact calls as little as it can: a function may run near the recursion
       limit.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import linecache
import os
import re
import shutil
import stat
import sys
import threading
import tokenize
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


class Kind:
    """KEPT: opened to be written, keeping what was there; a folder that was to be made.
    NAMED: to a C library, on the command line of a process, or in the code: any of them may open it."""

    READ, WRITTEN, KEPT, RENAMED = "read", "written", "kept", "renamed"
    LISTED, ASKED, NAMED = "listed", "asked", "named"
    MODULE, MODULE_NAME = "module", "module name"


FORKS = "it starts processes by fork or spawn, and what they read is not seen: use threads or num_workers="
WAL = "-wal"  # behind the name of a SQLite database: its log
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
OF_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
FIRST_ITEMS = 12
ENOUGH = 2  # items with unseen bytes before it is said: one may be what a library loads when it is used first
SLACK_BYTES = 4096

_EVENTS = frozenset(
    {"open", "os.listdir", "os.scandir", "exec", "import", "ctypes.dlopen", "pickle.find_class",
     "subprocess.Popen", "os.posix_spawn", "os.system", "sqlite3.connect", "os.mkdir", "os.rename",
     "os.link", "os.symlink", "os.fork", "os.forkpty"}
)  # fmt: skip
_OPENS_SOURCE = tokenize.open.__code__.co_filename
_SHOWS_LINES = linecache.updatecache.__code__.co_filename  # in tracebacks and warnings, by the one above
_BETWEEN_WORDS = re.compile("[\\s;|&<>()'\"=]+")
_COMMANDS = ("/bin/", "/sbin/", "/usr/", os.path.join(sys.exec_prefix, "bin", ""), sys.executable or "/bin/")
"""Where commands of the system lie, or of this environment, whose distributions count."""


def is_file_of_job(name: str) -> bool:
    return not (name.startswith((*OF_PYTHON, OWN_FOLDER)) or f"{os.sep}site-packages{os.sep}" in name)


def is_of_python(name: str) -> bool:
    return name.startswith(OF_PYTHON) and f"{os.sep}site-packages{os.sep}" not in name


def is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)


class Fact(NamedTuple):
    """What was seen."""

    kind: str
    path: str
    folder: str | None  # the working directory then, of a relative path
    info: os.stat_result | None
    other: Any = None  # the former path of what was renamed; the names in a folder that was listed

    @property
    def full(self) -> str:
        return os.path.normpath(self.path if self.folder is None else os.path.join(self.folder, self.path))


def info_of(path: str) -> os.stat_result | None:
    """`os.stat` of a path; None where nothing can be read, or the empty log that readers of SQLite make."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return None if not info.st_size and path.endswith(WAL) else info


def names_in(folder: str) -> list[bytes] | None:
    try:
        return os.listdir(os.fsencode(folder))
    except OSError:
        return None


@dataclass(slots=True, eq=False)
class Watch:
    """One function at work on one item."""

    items: tuple[str, ...] = ()  # its paths, which count by its digest, also by where they link to
    code: frozenset[str] = frozenset()  # the files of the function's code
    facts: dict[tuple[str, str, str | None], Fact] = field(default_factory=dict)
    failure: str = ""  # why something may have been missed
    opened_bytes: int = 0  # of the files that were opened to be read, as often as they were
    programs: list[str] = field(default_factory=list)
    calls: int = 1  # how many items the function was called with
    older: Sequence[threading.Thread] = ()  # those that ran when it began, and work for others
    is_on: bool = True
    _links: list[str] | None = None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
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
        if any(is_within(path, item) for item in self.items):
            return True
        if self._links is None:
            self._links = [*map(os.path.realpath, self.items)]
        return any(is_within(path, link) for link in self._links)


class _State:
    """What the hook looks at, and what watched functions have started or opened, and may keep."""

    def __init__(self) -> None:
        self.running: tuple[Watch, ...] = ()  # in all threads, replaced under `lock`
        self.carried = contextvars.ContextVar[tuple[Watch, ...]]("prepcache watches", default=())
        self.young: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self.has_database = False
        self.parents: set[frozenset[str]] = set()
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


def is_own(thread: threading.Thread) -> bool:
    return thread.name.startswith("prepcache")


def fail(error: BaseException) -> None:
    """Marks all watches in progress as incomplete. It calls nothing: the stack may have no room left."""
    for watch in STATE.running:
        watch.failure = watch.failure or error.__class__.__name__


def refuse(why: str) -> None:
    for watch in present():
        watch.failure = watch.failure or why
        if why is FORKS:
            STATE.parents.add(watch.code)


def note(kind: str, path: str, other: Any = None) -> None:
    folder = None if path[:1] == "/" else os.getcwd()
    key, new = (kind, path, folder), None
    for watch in present():
        if watch.is_on:
            if (fact := watch.facts.get(key)) is None:
                new = new or Fact(kind, path, folder, info_of(path), other)
                fact = watch.facts.setdefault(key, new)
            if kind == Kind.READ and fact.info is not None:
                watch.opened_bytes += fact.info.st_size


def depend_on(paths: Iterable[str | bytes], kind: str = Kind.READ) -> None:
    """Notes what is not opened, as its digest is known: a function may open a data set of its own."""
    if not STATE.running or not present():
        return
    try:
        for path in map(os.fsdecode, paths):
            note(kind, path, names_in(path) if kind == Kind.LISTED else None)
    except Exception as error:  # noqa: BLE001 - fails closed, as the hook does
        fail(error)


@functools.cache
def install() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...], state: Any = STATE, events: frozenset[str] = _EVENTS) -> None:
    if not state.running or event not in events:
        return
    try:
        if not state.carried.get() and not present():
            return
        if event != "open":
            _note_event(event, args)
            return
        path, mode, flags = args
        if path.__class__ is not str:
            if path.__class__ is int or path is None:
                return
            path = os.fsdecode(path)
        if path[-3:] == ".py":
            caller: Any = sys._getframe(1)
            if caller.f_code.co_filename == _OPENS_SOURCE:
                caller = caller.f_back
            if caller.f_code.co_filename.startswith((OWN_FOLDER, _SHOWS_LINES)):
                return
        kind = Kind.READ
        if flags & 3 and flags & os.O_TRUNC:
            kind = Kind.WRITTEN
        elif flags & 3 == 1 or (flags & 3 == 2 and flags & os.O_CREAT and not os.path.exists(path)):
            kind = Kind.KEPT
        if mode is None and path[:1] != "/" and _has_open_folder():
            if sys._getframe(1).f_code.co_filename != shutil.__file__:  # which lists what it removes
                refuse("os.open is given a relative name while a folder is open")
            return
        note(kind, path)
    except Exception as error:  # noqa: BLE001 - a hook that raises would break the user's call
        fail(error)


def _has_open_folder() -> bool:
    """Whether a name may be relative to a folder that is open (`dir_fd=` of `os.open`): no event tells."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, as the one that listed them
            if stat.S_ISDIR(os.fstat(int(name)).st_mode):
                return True
    return False


def _note_event(event: str, args: tuple[Any, ...]) -> None:
    first: Any = args[0] if args else None
    if event in ("os.listdir", "os.scandir"):
        _note_listing(first)
    elif event == "exec":
        if first.co_name == "<module>" and first.co_filename[:1] != "<":
            note(Kind.MODULE, first.co_filename)
    elif event == "import":
        if args[1]:  # of an extension module, its file
            note(Kind.MODULE, os.fsdecode(args[1]))
    elif event == "ctypes.dlopen":
        if first:
            note(Kind.READ if os.sep in os.fsdecode(first) else Kind.NAMED, os.fsdecode(first))
    elif event == "pickle.find_class":
        note(Kind.MODULE_NAME, str(first))
    elif event == "sqlite3.connect":
        _note_database(os.fsdecode(first))
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.system"):
        _note_start(event, args)
    elif event in ("os.fork", "os.forkpty"):
        refuse(FORKS)
    elif event in ("os.link", "os.symlink"):
        refuse("it makes links")
    elif set(args[2:]) != {-1}:  # `dir_fd=` of os.mkdir and os.rename
        refuse("it makes or renames something with dir_fd=")
    elif event == "os.mkdir":
        note(Kind.KEPT, os.fsdecode(first))
    else:
        note(Kind.RENAMED, os.fsdecode(args[1]), os.path.abspath(os.fsdecode(first)))


def _note_database(name: str) -> None:
    STATE.has_database = True
    if name.startswith("file:") and not os.path.exists(name):
        name = unquote(urlsplit(name).path)
    if os.path.exists(name):
        note(Kind.READ, name)
        note(Kind.READ, name + WAL)
    elif name not in ("", ":memory:"):
        note(Kind.WRITTEN, name)


def _note_listing(folder: Any) -> None:
    caller = sys._getframe(3).f_code.co_filename  # behind `_note_event` and the hook
    if caller.startswith(("<frozen importlib", OWN_FOLDER)):
        return
    path = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) else os.fsdecode(folder or ".")
    note(Kind.LISTED, path, names_in(path))


def _note_start(event: str, args: tuple[Any, ...]) -> None:
    given = args[1] if event != "os.system" else ()
    given = [given] if isinstance(given, str | bytes | os.PathLike) else given
    texts = [os.fsdecode(text) for text in (args[0], *given) if text is not None]
    folder = os.fsdecode(args[2] or "") if event == "subprocess.Popen" else ""
    for watch in present():
        watch.programs.append(os.path.basename(texts[0].split(maxsplit=1)[0]) if texts[0].strip() else "")
    words = [word for text in texts for word in (text, *_BETWEEN_WORDS.split(text)) if word]
    for word in dict.fromkeys(words):
        found = os.path.join(folder, word)
        is_path = word[0] != "-" and not {os.sep, "."}.isdisjoint(word)
        if not found.startswith(_COMMANDS) and (is_path or os.path.isfile(found)):
            note(Kind.NAMED, found)


class UnseenReads:
    """Notices what no event tells of, as `cv2.imread(path)` on Python 3.11. Over the first items, the bytes
    that the thread read are compared with the sizes of files that were seen to be opened, or are open. It
    decides nothing. `size_bytes`: what one item read unseen."""

    def __init__(self) -> None:
        self._items_left, self._items, self.size_bytes = FIRST_ITEMS, 0, 0

    def begin(self) -> int | None:
        return _bytes_read() if self._items_left > 0 else None

    def end(self, watch: Watch, before: int | None) -> None:
        if before is None:
            return
        self._items_left -= 1
        now = _bytes_read()
        is_other = watch.programs or any(map(os.path.isdir, watch.items))
        if now is None or is_other or any(fact.kind == Kind.MODULE for fact in watch.facts.values()):
            return
        with contextlib.suppress(OSError):  # no more files can be opened
            own = (*watch.items, *(f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")))
            seen = watch.opened_bytes + sum(os.path.getsize(one) for one in own if os.path.isfile(one))
            unseen = (now - before - seen) // watch.calls
            self._items += unseen > SLACK_BYTES
            if unseen > SLACK_BYTES and self._items >= ENOUGH:
                self.size_bytes = unseen


def _bytes_read() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/thread-self/io", "rb") as told:
        return int(told.read(512).split(maxsplit=2)[1])
    return None
