"""Paths that the job's code hands to libraries as the first argument of a call: Python >= 3.12.

A C library opens a file without telling Python, and a path may be put together by anything: an f-string, `+`,
`os.scandir`. So calls are looked at where the job's code makes them, and a file whose name goes to what may
open it counts as named.

Invariants:
    1. A callback raises nothing, changes no call, and notes nothing while no function is watched. Its own
       error marks the watches in progress as incomplete.
    2. What is called does not count where it opens nothing that an audit event does not tell: the standard
       library, functions and classes of the job's (their own calls are looked at), prepcache.
    3. A call that may open nothing, so many times and never otherwise, is not looked at again until the fill
       ends. One that once handed text to a library is looked at for good.

Not seen: arguments but the first, which for most methods is the object (`reader.SetFileName(path)`); calls by
`**`, and on 3.12 by `*` those of functions in Python; what `map` or a pool calls, and what libraries call;
names with neither a separator nor a dot.
"""

from __future__ import annotations

import builtins
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

from prepcache.keys.observation import context
from prepcache.keys.observation.context import NAMED, STATE
from prepcache.keys.observation.job_code import is_library_file

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
_DISABLE: Any = getattr(getattr(sys, "monitoring", None), "DISABLE", None)
_vain: dict[int, dict[int, int | None]] = {}
"""How often a call could open nothing, by address of code, and place in it; None: it handed text over."""


def forget(code: CodeType) -> None:
    """Begins anew with code whose calls are to be looked at: another may have been at the address."""
    _vain[_address(code)] = {}


def called(code: CodeType, place: int, function: Any, first: Any) -> Any:
    """Looks at a call that the job's code makes; the answer is for `sys.monitoring`."""
    if not STATE.running:
        return None
    try:
        places = _vain.setdefault(_address(code), {})
        count = places.get(place, 0)
        if issubclass(type(first), _TEXT):
            path = _path(first)
            if count is None and path is None:
                return None
            if not _opens_nothing(function):
                places[place] = None
                if path is not None:
                    context.note(NAMED, path)
                return None
        if count is None or first is None:
            return None
        places[place] = count + 1
        return _DISABLE if count >= _VAIN_CALLS else None
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        context.fail(error)
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
        if not is_library_file(name):
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
    return type(call) is FunctionType and not is_library_file(_file_of(call))


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
