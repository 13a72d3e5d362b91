"""Code that was replaced after this process had loaded it: a distribution installed anew in a notebook, an
extension module or a library of `ctypes` that was built again.

What there is now is not what runs here, and of what does run nothing is left to be read. So it counts as this
process's alone: other jobs neither get what is made with it, nor is it in their way, or in its.

Invariants:
    1. It counts alike in what this process forks, and in no other: that may have loaded yet another version.
    2. It is said, once for each.
"""

from __future__ import annotations

import dis
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

from prepcache import loaded
from prepcache.keys.code.compiled import code_digest, codes_of
from prepcache.keys.code.origins import own_functions

log = logging.getLogger("prepcache")

HERE = f"replaced after it was loaded in process {os.urandom(8).hex()}"

_MACHINE_CODE = re.compile(r"\.so(\.|$)")
_DELETED = " (deleted)"
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_CONSTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_told: set[str] = set()
_compared: dict[tuple[str, int], bool] = {}
"""A distribution's metadata, and when it was installed, to whether this process has loaded another."""


def is_installed_anew(metadata: str, files: Callable[[], Iterable[str]], name: str) -> bool:
    """Whether this process has loaded of a distribution what was there before it was installed as it is.

    Args:
        metadata: its `.dist-info`, which an installer makes.
        files: gives the paths of its modules.
        name: for people, who are told; or empty.
    """
    try:
        installed_ns = os.stat(metadata).st_ctime_ns
    except OSError:
        installed_ns = sys.maxsize
    if installed_ns < loaded.STARTED_NS:
        return False
    if (metadata, installed_ns) not in _compared:
        times = {path: at_ns for path in files() if (at_ns := loaded.when_loaded(path)) is not None}
        if not times:
            return False
        before = {path for path, at_ns in times.items() if at_ns == loaded.SINCE_NS}
        is_other = any(installed_ns > at_ns for at_ns in times.values()) or _is_other(before)
        _compared[metadata, installed_ns] = is_other  # for good: what is loaded later is what was installed
    return _compared[metadata, installed_ns] and (not name or _say(name, "installed"))


def has_loaded(files: Iterable[str]) -> bool:
    """Whether this process has loaded any module of a library that has these files."""
    return any(loaded.when_loaded(path) is not None for path in files)


def _is_other(files: set[str]) -> bool:
    """Whether modules that were loaded, it is not known when, have functions or constants that their files do
    not make, or machine code that is no longer there."""
    if any(_is_another_build(path) for path in files):
        return True
    for module in list(sys.modules.values()):
        if type(module) is not ModuleType or vars(module).get("__file__") not in files:
            continue
        path, spec = vars(module)["__file__"], vars(module).get("__spec__")
        own = [code for value in list(vars(module).values()) for code in _codes(value, path)]
        if not isinstance(loader := getattr(spec, "loader", None), SourceFileLoader):
            continue
        try:
            made = loader.get_code(loader.name)
        except (ImportError, OSError, SyntaxError):
            return True
        if made is None or not {code_digest(one) for one in own} <= {
            code_digest(one) for one in codes_of(made)
        }:
            return True
        there = vars(module)
        if any(name in there and _differs(there[name], value) for name, value in _constants(made).items()):
            return True
    return False


def _constants(module: CodeType) -> dict[str, Any]:
    """What code of a module assigns, once and whatever holds, to its names, of what needs no computation. Not
    None: it stands for what is set later, from elsewhere, too."""
    found: dict[str, Any] = {}
    assigned: Counter[str] = Counter()
    for code in codes_of(module):
        if code is not module and _STORE_GLOBAL not in code.co_code[::2]:
            continue  # to disassemble all would take milliseconds a module
        last = None
        for one in dis.get_instructions(code):
            if one.opname == "STORE_GLOBAL" or (
                code is module and one.opname in ("STORE_NAME", "DELETE_NAME")
            ):
                assigned[one.argval] += 1
                if last is not None and last.opname in _CONSTS and not one.is_jump_target:
                    found[one.argval] = last.argval
            last = one
    return {name: value for name, value in found.items() if assigned[name] == 1 and value is not None}


def _differs(found: Any, constant: Any) -> bool:
    """Whether a value is not a constant; asks nothing of objects that are none."""
    if type(found) is not type(constant):
        return True
    if isinstance(constant, tuple):
        return len(found) != len(constant) or any(map(_differs, found, constant))
    return repr(found) != repr(constant)


def _codes(value: Any, path: str) -> Iterator[CodeType]:
    """Those of a function, or of a class's, that a file has made."""
    functions = own_functions(value) if isinstance(value, type) else [value]
    for one in functions:
        if isinstance(one, FunctionType) and one.__code__.co_filename == path:
            yield one.__code__


def is_built_anew(path: str) -> bool:
    """Whether a file is of machine code that this process has loaded, and another is in its place now."""
    return _is_another_build(path) and _say(path, "built")


def _is_another_build(path: str) -> bool:
    if not _MACHINE_CODE.search(os.path.basename(path)):
        return False
    if (build := loaded.build_loaded(path)) is not None:
        try:
            is_other = loaded.build_of(path) != build
        except OSError:
            is_other = True
        if is_other:
            return True
    # Built between its loading and the import of prepcache, or not loaded by Python.
    # An installer may have moved it before it removed it: the folder says nothing.
    gone = os.sep + os.path.basename(os.path.realpath(path)) + _DELETED
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            return any(line.rstrip("\n").endswith(gone) for line in maps)
    except OSError:  # no Linux
        return False


def _say(name: str, how: str) -> bool:
    if name not in _told:
        _told.add(name)
        log.warning(
            "prepcache: %s was %s anew after this process had loaded it: what this job makes from here on is "
            "kept from other jobs; restart it to share it again",
            name,
            how,
        )
    return True
