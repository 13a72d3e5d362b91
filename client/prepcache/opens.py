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

import _thread
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from prepcache.databases import CONNECTS, files_of, is_empty_log

MAX_FILES = 1000
"""Of one function. One that opens more reads items, not what they have in common."""

Place = tuple[str, str]
"""Of a function: the file name and the qualified name in its code object, alike in all processes."""
Table = dict[str, tuple[bool, os.stat_result | None]]
"""Path to whether it was opened by a relative name, and what was there the first time, None for nothing."""

owners: dict[int, Callable[[str], bool]] = {}
"""For each item that is being preprocessed, whether a file is one of its own."""

state = _thread._local()
"""Of the present thread: `watches` of the functions that work in it, and whether prepcache lists a folder."""

_EVENTS = frozenset({"open", CONNECTS})
_opened: dict[Place, Table] = {}
_known: dict[int, tuple[CodeType, Table | None]] = {}
"""Code by its id, with its table; none for that of libraries."""
_KNOWN_LIMIT = 20_000
_OWN: Table = {}
"""Stands for the table of prepcache's own code."""
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_SITE = f"{os.sep}site-packages{os.sep}"


def by(place: Place) -> Table:
    """The files that a function opened to read them."""
    return dict(_opened.get(place, {}))


def loading(paths: Iterable[str]) -> frozenset[Place]:
    """The code of modules, by their files, that runs when they are loaded; not the entry script's, in which
    all else runs."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.abspath(main) if isinstance(main, str) else None
    return frozenset((path, "<module>") for path in paths if path != script)


def tell(paths: Iterable[str | bytes], event: str = "prepcache.read") -> None:
    """Says that what a function makes depends on files, where their bytes were known and nothing is opened.

    A function may open a data set of its own, or call one that `prepcache.cached` keeps: in its own thread.
    """
    if getattr(state, "watches", ()):
        for path in paths:
            sys.audit(event, path)


def writes(mode: Any, flags: Any) -> bool:
    """Whether an open starts a file anew, so that what is read from it later is no input."""
    if isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY:
        return True
    if isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDWR:
        return bool(flags & (os.O_TRUNC | os.O_EXCL))
    return isinstance(mode, str) and ("w" in mode or "x" in mode)


def stat_of(path: str) -> os.stat_result | None:
    """What a path leads to; None if to nothing that can be told, or that says anything."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return None if is_empty_log(path, info.st_size) else info


def _learn(code: CodeType) -> tuple[CodeType, Table | None]:
    name = code.co_filename
    table: Table | None
    if _is_of_prepcache(name):
        table = _OWN
    elif _is_of_library(name):
        table = None
    else:
        table = _opened.setdefault((name, code.co_qualname), {})
    if len(_known) >= _KNOWN_LIMIT:
        _known.clear()
    known = _known[id(code)] = (code, table)  # kept alive: an id is unique only while it lives
    return known


def _is_of_prepcache(name: str) -> bool:
    """Whether a file is prepcache's, or the daemon's, in whose process nobody asks."""
    file = getattr(sys.modules.get("prepcached"), "__file__", None)
    is_of_daemon = isinstance(file, str) and name.startswith(os.path.dirname(file) + os.sep)
    return is_of_daemon or name.startswith(_OWN_FOLDER)


def _is_of_library(name: str) -> bool:
    return name.startswith(_LIBRARIES) or _SITE in name


def is_of_job(frame: FrameType | None) -> bool:
    """Whether code of the job's runs in a frame, not a library's and not prepcache's."""
    table = None if frame is None else _table_of(frame.f_code)
    return table is not None and table is not _OWN


def is_code_of_job(code: CodeType) -> bool:
    """Whether code is the job's. Not remembered, as it is for frames."""
    return is_file_of_job(code.co_filename)


def is_file_of_job(name: str) -> bool:
    """Whether a source file is the job's, not a library's and not prepcache's."""
    return not (_is_of_library(name) or _is_of_prepcache(name))


def is_library_file(name: str) -> bool:
    """Whether a source file is neither the job's nor prepcache's."""
    return _is_of_library(name) and not _is_of_prepcache(name)


def is_own(frame: FrameType | None) -> bool:
    """Whether code of prepcache's runs in a frame."""
    return frame is not None and _table_of(frame.f_code) is _OWN


def is_for_prepcache(frame: FrameType | None) -> bool:
    """Whether what runs in a frame was called by prepcache, with no code of the job's between."""
    while frame is not None:
        table = _table_of(frame.f_code)
        if table is not None:
            return table is _OWN
        frame = frame.f_back
    return False


def note(path: str, frame: FrameType | None) -> None:
    """Notes a file of which nothing is seen being opened, for the functions that a frame belongs to."""
    if tables := tables_for(frame):
        _note(path, tables)


def note_missing(path: str, is_relative: bool, tables: Iterable[Table]) -> None:
    """Notes a file that was asked for, and is not there, for the functions that asked."""
    for table in tables:
        if len(table) < MAX_FILES:
            table.setdefault(path, (is_relative, None))


def tables_for(frame: FrameType | None) -> dict[int, Table]:
    """Those with room of the functions that an open was called by, up to the one that prepcache called.

    A thread that none of them runs in (an event loop's) reads for one that waits.
    """
    found, is_own = _tables_of(frame)
    if not found and not is_own:
        here = _thread.get_ident()
        for thread, other in sys._current_frames().items():
            if thread != here and _table_of(other.f_code) is None:  # it waits in a library
                found |= _tables_of(other)[0]
    return found


def _table_of(code: CodeType) -> Table | None:
    return (_known.get(id(code)) or _learn(code))[1]


def _tables_of(frame: FrameType | None) -> tuple[dict[int, Table], bool]:
    """The tables of a stack, and whether prepcache stands in it."""
    found: dict[int, Table] = {}
    while frame is not None:
        table = _table_of(frame.f_code)
        if table is _OWN:
            return found, True
        if table is not None and len(table) < MAX_FILES:
            found[id(table)] = table
        frame = frame.f_back
    return found, False


def _hook(event: str, args: tuple[Any, ...], is_over: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_over() or event not in _EVENTS:  # at its end the interpreter takes away what is used here
        return
    with contextlib.suppress(Exception):  # an audit hook that raises would break the user's call
        name = args[0]
        is_open = event == "open"
        if not isinstance(name, str | bytes | os.PathLike) or not name:
            return
        if is_open and writes(*args[1:3]):
            return
        tables = tables_for(sys._getframe(1))
        if not tables:
            return
        for path in [os.fsdecode(name)] if is_open else files_of(name):
            _note(path, tables)


def _note(path: str, tables: dict[int, Table]) -> None:
    full = os.path.abspath(path)
    new = [table for table in tables.values() if full not in table]
    if not new or any(owns(full) for owns in list(owners.values())):
        return
    first = (not os.path.isabs(path), stat_of(full))
    for table in new:
        table[full] = first


sys.addaudithook(_hook)
