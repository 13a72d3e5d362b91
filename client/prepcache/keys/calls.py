"""Paths that the job's code hands to libraries as the first argument of a call: Python >= 3.12.

A C library opens a file without telling Python, and a path may be put together by anything: an f-string, `+`,
`os.scandir`. So with `sys.monitoring` calls are looked at where the job's code makes them, and a file whose
name goes to what may open it counts as one under a path that was built (built.py).

Invariants:
    1. A callback never raises, changes no call, and counts nothing while no function is watched.
    2. Only code of the job's is looked at. What is called does not count where it opens nothing that an audit
       event does not tell: the standard library, functions and classes of the job's (their own calls are
       looked at), prepcache.
    3. A call that may open nothing, so many times and never otherwise, is not looked at again: it costs
       nothing then. One that once handed text to a library is looked at for good.
    4. The tool ids that the interpreter keeps for debuggers, coverage and profilers are left to them.

Not here: which files count (observe.py), and which are outputs (seen.py).

Not seen: arguments but the first, which for most methods is the object (`reader.SetFileName(path)`); calls by
`**`, and on 3.12 by `*` those of functions in Python; what `map` or a pool calls, and what libraries call;
names with neither a separator nor a dot; anything, where other tools have both ids.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import logging
import os
import sys
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from prepcache import opens
from prepcache.keys import watches
from prepcache.keys.built import Told, tell

_TOOL_IDS = (4, 3)
"""Those that stand for no kind of tool."""
_VAIN_CALLS = 64
"""After so many that may open nothing a call is let be: a loop over transforms has come around by then."""
_address = object.__hash__
"""`id` tells audit hooks, which takes longer than all else that is done at most calls."""
_TEXT = (str, bytes, os.DirEntry)
_PATH_LIMIT, _NAME_LIMIT = 4096, 255
"""In characters: PATH_MAX, and NAME_MAX of one name in it."""
_AUDITED = sys.stdlib_module_names - {"ctypes", "_ctypes", "dbm", "_dbm", "_gdbm", "shelve"}
_OF_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_SITE = f"{os.sep}site-packages{os.sep}"
_OF_TYPES = (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType, ClassMethodDescriptorType)

log = logging.getLogger("prepcache")


def listen(told: Told) -> None:
    """Calls `told`, which never raises, with paths that are handed over while a function is watched.

    Called once in a process.
    """
    monitoring: Any = getattr(sys, "monitoring", None)
    tool = None if monitoring is None else _tool_id(monitoring)
    if tool is None:
        return
    events, disable = monitoring.events, monitoring.DISABLE
    # How often a call could open nothing, by address of code, and place in it; None: it handed text over.
    vain: dict[int, dict[int, int | None]] = {}
    in_progress = watches.in_progress

    def started(code: CodeType, place: int) -> Any:
        try:
            if opens.is_code_of_job(code):
                vain[_address(code)] = {}  # also where another was at the address
                monitoring.set_local_events(tool, code, events.CALL)
        except Exception as error:  # noqa: BLE001 - as the hook
            watches.fail(error)
        return disable

    def called(code: CodeType, place: int, function: Any, first: Any) -> Any:
        places = vain[_address(code)]
        count = places.get(place, 0)
        if count is None and not in_progress:
            return None
        if issubclass(type(first), _TEXT):
            path = _path(first) if in_progress else None
            if count is None and path is None:
                return None
            if not _opens_nothing(function):
                places[place] = None
                if path is not None:
                    tell(told, path, sys._getframe(1))
                return None
        if count is None or first is None:
            return None
        places[place] = count + 1
        return disable if count >= _VAIN_CALLS else None

    monitoring.register_callback(tool, events.CALL, called)
    for event in (events.PY_START, events.PY_RESUME):  # generators may have been started before
        monitoring.register_callback(tool, event, started)
    monitoring.set_events(tool, events.PY_START | events.PY_RESUME)
    atexit.register(monitoring.register_callback, tool, events.CALL, None)
    atexit.register(monitoring.set_events, tool, 0)


def _tool_id(monitoring: Any) -> int | None:
    for tool in _TOOL_IDS:
        with contextlib.suppress(ValueError):  # it is in use
            monitoring.use_tool_id(tool, "prepcache")
            return tool
    log.debug("paths that are handed to C libraries are not seen: other tools use sys.monitoring")
    return None


def _path(first: Any) -> str | None:
    """What may be a path, as text."""
    try:
        if not isinstance(first, os.DirEntry) and len(first) > _PATH_LIMIT:
            return None
        text = first if type(first) is str else os.fsdecode(first)
        is_name = "." in text and len(text) <= _NAME_LIMIT
        return text if (os.sep in text or is_name) and "\n" not in text and "\0" not in text else None
    except Exception:  # noqa: BLE001 - what a class of the job's may raise
        return None


def _opens_nothing(function: Any) -> bool:
    """Whether what is called opens no file of which nothing is told."""
    try:
        return _is_harmless(function)
    except Exception:  # noqa: BLE001 - as above; then it may
        return False


def _is_harmless(function: Any) -> bool:
    kind = type(function)
    if kind is FunctionType:
        name = _file_of(function)
        if not opens.is_library_file(name):
            return True
        inner = function.__dict__.get("__wrapped__")
        if not name.startswith(_OF_PYTHON) or _SITE in name:
            return False  # whatever it wraps, and whose name it bears
        return _is_audited(function) if inner is None else _is_harmless(inner)
    if kind is MethodType:
        return _is_harmless(function.__func__)
    if kind is BuiltinFunctionType:
        return _is_audited(function if function.__module__ else _type_of_method(function))
    if kind in _OF_TYPES:
        return _is_audited(function.__objclass__)
    if issubclass(kind, type):
        makers = (kind.__call__, function.__new__, function.__init__)
        return _is_audited(function) or all(map(_is_harmless, makers))
    call = kind.__call__
    return type(call) is FunctionType and not opens.is_library_file(_file_of(call))


def _file_of(function: FunctionType) -> str:
    name = function.__code__.co_filename
    if name.startswith("<"):  # as dataclasses write it, for a class of anybody's
        name = getattr(sys.modules.get(function.__module__), "__file__", None) or name
    return name


def _type_of_method(function: Any) -> Any:
    """None for a function that C code made without a module."""
    keeper = function.__self__
    owner = keeper if issubclass(type(keeper), type) else type(keeper)
    return owner if hasattr(owner, function.__name__) else None


def _is_audited(thing: Any) -> bool:
    """Whether a function or a type is of the standard library, what it opens being told by audit events."""
    module = getattr(thing, "__module__", None)
    if module == "builtins":  # or of C code that names no module
        return vars(builtins).get(thing.__name__) is thing
    return type(module) is str and module.partition(".")[0] in _AUDITED
