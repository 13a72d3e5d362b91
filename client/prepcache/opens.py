"""Files that the job's code opened, by function, from the import of prepcache on.

What a function loads once in a process (`functools.cache`, `cached_property`), a data set that is opened
afterwards does not see being opened. So it is noted, for each function of the job's on the stack, which files
were opened to be read; an observer takes in those of functions that its recipe reaches and that keep what
they gave.

Invariants:
    1. Nothing is imported that `import prepcache` does not need anyway; the hook never raises.
    2. Files of an item that is being preprocessed are not noted: they count by its digest.
    3. What is kept is bounded: so many files of each function.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

MAX_FILES = 1000
"""Of one function. One that opens more reads items, not what they have in common."""

Place = tuple[str, str]
"""Of a function: the file name and the qualified name in its code object, alike in all processes."""

MANY = os.stat_result((0,) * 10)
"""Stands for a file that was another one when it was opened again."""

owners: dict[int, Callable[[str], bool]] = {}
"""For each item that is being preprocessed, whether a file is one of its own."""

_opened: dict[Place, dict[str, tuple[bool, os.stat_result | None]]] = {}
_OWN = (os.path.dirname(os.path.abspath(__file__)) + os.sep, f"{os.sep}prepcached{os.sep}")
_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ", f"{os.sep}site-packages{os.sep}")
_kinds: dict[str, str] = {}


def by(place: Place) -> Mapping[str, tuple[bool, os.stat_result | None]]:
    """The files that a function opened: whether by a relative name, and what was there, None for nothing."""
    return dict(_opened.get(place, {}))


def writes(mode: Any, flags: Any) -> bool:
    """Whether an open starts a file anew, so that what is read from it later is no input."""
    if isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY:
        return True
    if isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDWR:
        return bool(flags & (os.O_TRUNC | os.O_EXCL))
    return isinstance(mode, str) and ("w" in mode or "x" in mode)


def stat_of(path: str) -> os.stat_result | None:
    """What a path leads to; None if to nothing that can be told."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _kind(filename: str) -> str:
    kind = _kinds.get(filename)
    if kind is None:
        is_own = filename.startswith(_OWN[0]) or _OWN[1] in filename
        is_library = filename.startswith(_LIBRARY[:2]) or _LIBRARY[2] in filename
        kind = _kinds[filename] = "own" if is_own else "library" if is_library else "project"
    return kind


def _functions(frame: Any) -> list[Place]:
    """The functions of the job's that an open was called by, up to the one that prepcache called."""
    found = []
    while frame is not None:
        code = frame.f_code
        kind = _kind(code.co_filename)
        if kind == "own":
            break
        if kind == "project":
            found.append((code.co_filename, code.co_qualname))
        frame = frame.f_back
    return found


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event != "open":
        return
    with contextlib.suppress(Exception):
        name = args[0]
        if not isinstance(name, str | bytes | os.PathLike) or not name or writes(args[1], args[2]):
            return
        functions = _functions(sys._getframe(1))
        tables = [_opened.setdefault(place, {}) for place in functions]
        path = os.fsdecode(name)
        full = os.path.abspath(path)
        tables = [table for table in tables if full in table or len(table) < MAX_FILES]
        if not tables or any(owns(full) for owns in list(owners.values())):
            return
        info = stat_of(full)
        for table in tables:
            before = table.setdefault(full, (not os.path.isabs(path), info))
            if not _is_same(before[1], info):
                table[full] = (before[0], MANY)


def _is_same(a: os.stat_result | None, b: os.stat_result | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.st_dev, a.st_ino, a.st_size, a.st_mtime_ns, a.st_ctime_ns) == (
        b.st_dev, b.st_ino, b.st_size, b.st_mtime_ns, b.st_ctime_ns,
    )  # fmt: skip


sys.addaudithook(_hook)
