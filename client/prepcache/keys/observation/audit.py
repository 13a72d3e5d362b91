"""The audit hook: notes what Python's events tell of files while a function is watched.

It is added when a function is watched first, and stays, as audit hooks do. While none is watched it costs one
look at a tuple.

Invariants:
    1. It raises nothing into the user's call. Its own error marks the watches in progress as incomplete.
    2. It notes facts; what they mean is found out when the item is made (observer.py).

What no event tells of (on Python 3.11 `cv2.imread(f"{root}/{i:04d}.png")`) is noticed over the first items:
the kernel's count of bytes that this thread has read is compared with the sizes of the files that were seen
being opened, and of those that are open. It decides nothing: it is said once, with the remedy.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import shutil
import stat
import sys
import tokenize
from types import CodeType
from typing import Any
from urllib.parse import unquote, urlsplit

from prepcache.keys.observation import context
from prepcache.keys.observation.context import OWN_FOLDER, STATE, WAL, Kind, Watch

_EVENTS = frozenset(
    {
        "open", "os.listdir", "os.scandir", "exec", "import", "ctypes.dlopen", "pickle.find_class",
        "subprocess.Popen", "os.posix_spawn", "os.system", "sqlite3.connect", "os.mkdir", "os.rename",
        "os.link", "os.symlink", "os.fork", "os.forkpty",
    }
)  # fmt: skip
_BY_IMPORT = "<frozen importlib"
_OPENS_SOURCE = tokenize.open.__code__.co_filename
_SHOWS_LINES = linecache.updatecache.__code__.co_filename
"""Shows lines of a module's file in tracebacks and warnings; it has the one above open it."""
_BETWEEN_WORDS = re.compile("[\\s;|&<>()'\"=]+")
_COMMANDS = ("/bin/", "/sbin/", "/usr/", os.path.join(sys.exec_prefix, "bin", ""), sys.executable or "/bin/")
"""Where commands of the system lie, or of this environment, whose distributions count."""
FIRST_ITEMS = 12
ENOUGH = 2
"""Items with unseen bytes before it is said: one alone may be what a library loads when it is used first."""
SLACK_BYTES = 4096
"""Beside what was seen: headers that are read twice, and these counts themselves."""


@functools.cache
def install() -> None:
    """Adds the hook, once in a process."""
    sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...], state: Any = STATE, events: frozenset[str] = _EVENTS) -> None:
    if not state.running or event not in events:
        return
    try:
        if not state.carried.get() and not context.present():
            return
        if event != "open":
            _note(event, args)
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
        if flags.__class__ is int:
            if flags & 3 and flags & os.O_TRUNC:
                kind = Kind.WRITTEN
            elif flags & 3 == 1 or (flags & 3 == 2 and flags & os.O_CREAT and not os.path.exists(path)):
                kind = Kind.KEPT
        if mode is None and path[:1] != "/" and _has_open_folder():
            if sys._getframe(1).f_code.co_filename != shutil.__file__:  # which lists what it removes
                context.refuse("os.open is given a relative name while a folder is open")
            return
        context.note(kind, path)
    except Exception as error:  # noqa: BLE001 - a hook that raises would break the user's call
        context.fail(error)


def _note(event: str, args: tuple[Any, ...]) -> None:
    first: Any = args[0] if args else None
    if event in ("os.listdir", "os.scandir"):
        _note_listing(first)
    elif event == "exec":
        if isinstance(first, CodeType) and first.co_name == "<module>" and first.co_filename[:1] != "<":
            context.note(Kind.MODULE, first.co_filename)
    elif event == "import":
        if args[1]:  # of an extension module, its file
            context.note(Kind.MODULE, os.fsdecode(args[1]))
    elif event == "ctypes.dlopen":
        if first:
            context.note(Kind.READ if os.sep in os.fsdecode(first) else Kind.NAMED, os.fsdecode(first))
    elif event == "pickle.find_class":
        context.note(Kind.MODULE_NAME, str(first))
    elif event == "sqlite3.connect":
        _note_database(os.fsdecode(first))
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.system"):
        _note_start(event, args)
    elif event in ("os.fork", "os.forkpty"):
        context.refuse(context.FORKS, is_of_children=True)
    elif event in ("os.link", "os.symlink"):
        context.refuse("it makes links")
    elif set(args[2:]) != {-1}:  # `dir_fd=` of os.mkdir and os.rename
        context.refuse("it makes or renames something in a folder that is open")
    elif event == "os.mkdir":
        context.note(Kind.KEPT, os.fsdecode(first))
    else:
        context.note(Kind.RENAMED, os.fsdecode(args[1]), os.path.abspath(os.fsdecode(first)))


def _note_database(name: str) -> None:
    STATE.has_database = True
    if name.startswith("file:") and not os.path.exists(name):
        name = unquote(urlsplit(name).path)
    if os.path.exists(name):
        context.note(Kind.READ, name)
        context.note(Kind.READ, name + WAL)
    elif name not in ("", ":memory:"):
        context.note(Kind.WRITTEN, name)


def _has_open_folder() -> bool:
    """Whether a name may be relative to a folder that is open (`dir_fd=`): no event tells."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, as the one that listed them
            if stat.S_ISDIR(os.fstat(int(name)).st_mode):
                return True
    return False


def _note_listing(folder: Any) -> None:
    caller = sys._getframe(3).f_code.co_filename  # behind `_note` and the hook
    if caller.startswith((_BY_IMPORT, OWN_FOLDER)):
        return
    path = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) else os.fsdecode(folder or ".")
    context.note(Kind.LISTED, path, context.names_in(path))


def _note_start(event: str, args: tuple[Any, ...]) -> None:
    """Notes the words of a command line that are files, or will be."""
    folder = None
    if event == "os.system":
        texts = [os.fsdecode(args[0])]
    else:
        given = [args[1]] if isinstance(args[1], str | bytes | os.PathLike) else args[1]
        texts = [os.fsdecode(text) for text in (args[0], *given) if text is not None]
        folder = args[2] if event == "subprocess.Popen" else None
    for watch in context.present():
        watch.programs.append(os.path.basename(texts[0].split(maxsplit=1)[0]) if texts[0].strip() else "")
    words = [word for text in texts for word in (text, *_BETWEEN_WORDS.split(text)) if word]
    for word in dict.fromkeys(words):
        found = os.path.join(os.fsdecode(folder or ""), word)
        is_path = word[0] != "-" and not {os.sep, "."}.isdisjoint(word)
        if not found.startswith(_COMMANDS) and (is_path or os.path.isfile(found)):
            context.note(Kind.NAMED, found)


# -- what no event tells


class UnseenReads:
    """Looks for bytes that a function read unseen, over its first items.

    Attributes:
        size_bytes: of one item; 0 if nothing is to be said.
    """

    def __init__(self) -> None:
        self._items_left, self._items, self.size_bytes = FIRST_ITEMS, 0, 0

    def begin(self) -> int | None:
        """How many bytes were read before an item; None if it is not looked at."""
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
