"""What a function asks for that may not be there, and modules that it imports by text.

    if label.exists(): ...                                  a label that appears later changes the sample
    importlib.import_module(f"models.{name}")               no event tells of a module that is loaded already

What is looked at are calls of these functions of the standard library while a function is watched. They stay
as they are: monitoring.py hears of their beginning.

Invariants:
    1. Only what code of the job's asks counts. glob and pathlib ask for who calls them; but `resolve` and
       `mkdir` ask for nothing: one looks for loops of links, and after the other the folder is there.
    2. What was there is found out once more: should it change between the two, the input is another than it
       was, and what was made of it is made again.

Not seen: `os.stat`, `os.lstat` and `os.access`, which are in C; what a library asks.
"""

from __future__ import annotations

import glob
import importlib
import os
import pathlib
import sys
from pathlib import Path
from types import CodeType, FrameType, FunctionType

from prepcache.keys.observation import context
from prepcache.keys.observation.context import ASKED, MODULE_NAME
from prepcache.keys.observation.job_code import is_file_of_job


def _codes() -> dict[CodeType, str]:
    """The code of what asks, and the name of its argument."""
    names = ("exists", "lexists", "isfile", "isdir", "getsize", "getmtime")
    functions = [getattr(os.path, name) for name in names]
    functions += [getattr(Path, name) for name in ("stat", "exists", "is_file", "is_dir")]
    functions.append(importlib.import_module)
    found = [one for one in functions if isinstance(one, FunctionType)]
    return {one.__code__: one.__code__.co_varnames[0] for one in found}


CODES = _codes()
_MODULES = (glob, pathlib, *(sys.modules[kind.__module__] for kind in Path.__mro__))
FILES = frozenset(
    {code.co_filename for code in CODES} | {str(getattr(module, "__file__", "")) for module in _MODULES}
)
"""Of the code that asks for who calls it. Modules that Python starts with say where they are in it alone."""


def note(frame: FrameType) -> None:
    """Notes what is asked for in a frame that runs one of `CODES`."""
    code = frame.f_code
    if code is importlib.import_module.__code__:
        _note_import(frame)
        return
    path = frame.f_locals.get(CODES.get(code, ""))
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename in FILES:
        if caller.f_code.co_name in ("resolve", "mkdir"):
            return
        caller = caller.f_back
    if caller is None or not is_file_of_job(caller.f_code.co_filename):
        return
    if not isinstance(path, str | bytes | os.PathLike) or not path:
        return  # the call itself says so, or it is a descriptor
    context.note(ASKED, os.fsdecode(path))


def _note_import(frame: FrameType) -> None:
    """Notes a module that is imported by text."""
    name, package = frame.f_locals.get("name"), frame.f_locals.get("package")
    if not isinstance(name, str) or not name:
        return
    if name.startswith("."):
        if not package:
            return
        name = importlib.util.resolve_name(name, package)
    context.note(MODULE_NAME, name)
