"""What a function does that no audit event tells: it asks for files, imports by text, hands paths to C.

    if label.exists(): ...                                  a label that appears later changes the sample
    importlib.import_module(f"models.{name}")               no event tells of a module that is loaded already
    cv2.imread(f"{root}/{i}.png")                           a C library opens it: heard on Python >= 3.12

Calls are heard while a function is watched, and the functions stay as they are. On Python >= 3.12
`sys.monitoring` tells of them, by events on single code objects alone: those of what asks, and those of the
job, whose calls of libraries are looked at. On Python 3.11 it is `sys.setprofile`, in the thread that is
watched and in those that start meanwhile, and only where a file that counts, loaded or not, names what asks.

Not seen: `os.stat`, `os.lstat` and `os.access`, which are in C; what a library asks; of a call of a library's
arguments but the first, and names with neither a separator nor a dot.

Invariants:
    1. Nothing is heard of while no function is watched: events, callbacks and the tool's id are given back. A
       callback raises nothing; its own error marks the watches in progress as incomplete.
    2. Ids that the interpreter keeps for debuggers, coverage and profilers are left to them. Where no other
       is free, or a profiler runs on Python 3.11, a function that asks is not observed completely, and what
       it makes is not stored.
    3. Only what code of the job's asks counts. glob, pathlib and threads ask for who calls them; but
       `resolve` and `mkdir` ask for nothing: one looks for loops of links, and after the other the folder
       is there.
    4. A file whose name goes to a library counts as named, where that may open it: not the standard library,
       whose events tell, nor functions and classes of the job's, whose own calls are looked at.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import glob
import importlib
import os
import pathlib
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.dynamic_lookups import texts_in
from prepcache.keys.code.import_graph import read_source
from prepcache.keys.code.labels import space_of
from prepcache.keys.observation import context
from prepcache.keys.observation.context import ASKED, MODULE_NAME, NAMED, OWN_FOLDER, STATE, Watch

_OF_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_SITE = f"{os.sep}site-packages{os.sep}"
_ASKING = frozenset(
    {"exists", "lexists", "isfile", "isdir", "getsize", "getmtime", "is_file", "is_dir", "stat", "glob",
     "import_module", "instantiate", "locate", "get_class", "get_object", "get_method", "import_string"}
)  # fmt: skip
"""Names of what asks whether something is there, and of what imports by text, also in libraries."""
_MONITORING: Any = getattr(sys, "monitoring", None)


def is_library_file(name: str) -> bool:
    """Whether a source file is a library's or Python's, and not prepcache's."""
    return (name.startswith(_OF_PYTHON) or _SITE in name) and not name.startswith(OWN_FOLDER)


def is_file_of_job(name: str) -> bool:
    """Whether a source file is the job's, not a library's and not prepcache's."""
    return not (name.startswith((*_OF_PYTHON, OWN_FOLDER)) or _SITE in name)


class JobCode:
    """The code objects of the modules that a recipe counts, and of a function.

    Args:
        files: the source files that the recipe counts.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.codes: dict[int, CodeType] = {}
        """By address."""
        self.asks = any(map(_names_what_asks, files))
        """Whether it asks what is there, or imports by text."""
        self._files = files
        self._looked: tuple[int, int] = (0, 0)

    def look(self, function: Any) -> None:
        """Looks through what is loaded, if that is more than at the last time."""
        looked = len(sys.modules), object.__hash__(function)
        if looked == self._looked:
            return
        self._looked = looked
        seen: set[int] = set()
        spaces = [space_of(module) for module in list(sys.modules.values())]
        for space in (_globals_of(function), *(one for one in spaces if one.get("__file__") in self._files)):
            for value in list(space.values()):
                self._add(value, seen)
        self._add(function, seen)
        self.asks |= any(not _ASKING.isdisjoint(code.co_names) for code in self.codes.values())

    def _add(self, value: Any, seen: set[int]) -> None:
        """Adds the code of a function or class of the job's, with what it wraps and encloses."""
        if object.__hash__(value) in seen:
            return
        seen.add(object.__hash__(value))
        kind = type(value)
        inner: list[Any] = []
        if kind is FunctionType:
            self.asks |= value.__code__ in _CODES  # by another name
            self._add_code(value.__code__)
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # there is nothing in it yet
                    inner.append(cell.cell_contents)
            inner += value.__defaults__ or ()
            inner.append(value.__dict__.get("__wrapped__"))
        elif kind in _HOLD_CODE and kind is not type:
            inner = [getattr(value, name, None) for name in _WRAPPED]
        else:
            cls = value if issubclass(kind, type) else kind
            if is_file_of_job(_file_of_class(cls)):
                inner = list(vars(cls).values())
        for part in inner:
            if type(part) in _HOLD_CODE:
                self._add(part, seen)

    def _add_code(self, code: CodeType) -> None:
        """Adds a code object of the job's, nested code included."""
        if is_file_of_job(code.co_filename) and object.__hash__(code) not in self.codes:
            self.codes[object.__hash__(code)] = code
            for const in code.co_consts:
                if isinstance(const, CodeType):
                    self._add_code(const)


def _names_what_asks(path: str) -> bool:
    """Whether a source file of the job's names what asks, or has its name as a text (`getattr`)."""
    try:
        source = read_source(path, path) if path.endswith(".py") else None
        words = () if source is None else (*source.names, *texts_in(source.code))
        return not _ASKING.isdisjoint(words)
    except UnkeyableError:  # it is gone, or being written
        return True


def _file_of_class(cls: type) -> str:
    """The file of a class's module; of one of C code, or of none, as a library's."""
    name = str(getattr(cls, "__module__", ""))
    file = getattr(sys.modules.get(name), "__file__", None)
    return file or ("__main__" if name == "__main__" else "<frozen none>")


_HOLD_CODE = frozenset(
    {FunctionType, MethodType, staticmethod, classmethod, property, functools.cached_property,
     functools.partial, functools._lru_cache_wrapper, type}
)  # fmt: skip
_WRAPPED = ("__func__", "__wrapped__", "func", "fget", "fset", "fdel")
"""Where these hold what they wrap."""


def _globals_of(function: Any) -> dict[str, Any]:
    """Those of a function of the job's, or of how an object of its is called."""
    while isinstance(function, functools.partial):
        function = function.func
    inner = getattr(function, "__func__", function)
    if not isinstance(inner, FunctionType):
        inner = next((vars(one)["__call__"] for one in type(inner).__mro__ if "__call__" in vars(one)), None)
    is_of_job = isinstance(inner, FunctionType) and is_file_of_job(inner.__code__.co_filename)
    return inner.__globals__ if is_of_job else {}


# -- what is asked for


def _codes() -> dict[CodeType, str]:
    names = ("exists", "lexists", "isfile", "isdir", "getsize", "getmtime")
    functions = [getattr(os.path, name) for name in names]
    functions += [getattr(Path, name) for name in ("stat", "exists", "is_file", "is_dir")]
    functions.append(importlib.import_module)
    found = [one for one in functions if isinstance(one, FunctionType)]
    return {one.__code__: one.__code__.co_varnames[0] for one in found}


_CODES = _codes()
"""The code of what asks, and the name of its argument."""
_MODULES = (glob, pathlib, *(sys.modules[kind.__module__] for kind in Path.__mro__))
_FILES = frozenset(
    {code.co_filename for code in _CODES} | {str(getattr(module, "__file__", "")) for module in _MODULES}
)
"""Of the code that asks for who calls it. Modules that Python starts with say where they are in it alone."""
_POOLS = ("threading.py", "concurrent/futures/thread.py", "multiprocessing/pool.py")
_HANDED_ON = _FILES | {os.path.join(os.path.dirname(os.__file__), name) for name in _POOLS}
"""Also of threads, which a job may have given what asks to call."""


def _note(frame: FrameType) -> None:
    """Notes what is asked for in a frame that runs one of `_CODES`."""
    code = frame.f_code
    if code is importlib.import_module.__code__:
        name, package = frame.f_locals.get("name"), frame.f_locals.get("package")
        if isinstance(name, str) and name.strip(".") and (package or name[0] != "."):
            context.note(MODULE_NAME, importlib.util.resolve_name(name, package))
        return
    path = frame.f_locals.get(_CODES.get(code, ""))
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename in _HANDED_ON:
        if caller.f_code.co_name in ("resolve", "mkdir"):
            return
        caller = caller.f_back
    if caller is not None and not is_file_of_job(caller.f_code.co_filename):
        return
    if isinstance(path, str | bytes | os.PathLike) and path:  # else the call says so, or it is a descriptor
        context.note(ASKED, os.fsdecode(path))


@contextlib.contextmanager
def heard(code: JobCode, watch: Watch) -> Iterator[None]:
    """Hears what a function asks for, and what it hands to libraries, while it is watched in this thread."""
    if _MONITORING is not None:
        if not _tool.begin(code) and code.asks:
            watch.failure = "other tools use sys.monitoring"
        try:
            yield
        finally:
            _tool.end()
    elif not code.asks:
        yield
    elif {before := sys.getprofile(), threading.getprofile()} - {None, _profiled}:
        watch.failure = "a profiler is running"
        yield
    else:
        _profile_threads(1)
        sys.setprofile(_profiled)
        try:
            yield
        finally:
            sys.setprofile(before)
            _profile_threads(-1)


def _profile_threads(more: int) -> None:
    """Lets threads that start while a function is watched be profiled, as long as they live: they work for
    it (NOTE [ Which threads work for a watch ])."""
    global _profiling
    with STATE.lock:
        _profiling += more
        if threading.getprofile() in (None, _profiled):  # the job may have set its own meanwhile
            threading.setprofile(_profiled if _profiling else None)


_profiling = 0
"""How many watches profile at the time. Locking: under `STATE.lock`."""


def _asked(code: CodeType, offset: int) -> None:
    if not STATE.running:
        return
    try:
        _note(sys._getframe(1))
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        for watch in STATE.running:  # no call: there may be no room left on the stack
            watch.failure = watch.failure or error.__class__.__name__


def _profiled(frame: FrameType, event: str, arg: Any, files: frozenset[str] = _FILES) -> None:
    if event != "call" or frame.f_code.co_filename not in files:
        return
    try:
        if frame.f_code in _CODES:
            _note(frame)
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        for watch in STATE.running:
            watch.failure = watch.failure or error.__class__.__name__


# -- Python >= 3.12


class _Tool:
    """What is heard by `sys.monitoring`, for all watches of this process.

    Locking: all is changed under `_lock`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._id: int | None = None
        self._heard: dict[int, CodeType] = {}

    def begin(self, code: JobCode) -> bool:
        """Hears of the calls of the job's code, and of who asks; whether it does."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start()
            if self._id is not None:
                for address, one in list(code.codes.items()):
                    if address not in self._heard:
                        self._heard[address] = one
                        _vain[address] = {}  # another may have been at the address
                        _MONITORING.set_local_events(self._id, one, _MONITORING.events.CALL)
            return self._id is not None

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._id is not None:
                for code in (*self._heard.values(), *_CODES):
                    _MONITORING.set_local_events(self._id, code, 0)
                for event in (_MONITORING.events.CALL, _MONITORING.events.PY_START):
                    _MONITORING.register_callback(self._id, event, None)
                _MONITORING.free_tool_id(self._id)
                self._heard, self._id = {}, None

    def _start(self) -> None:
        events = _MONITORING.events
        for tool in (4, 3):  # they stand for no kind of tool
            with contextlib.suppress(ValueError):  # it is in use
                _MONITORING.use_tool_id(tool, "prepcache")
                self._id = tool
                _MONITORING.register_callback(tool, events.CALL, _called)
                _MONITORING.register_callback(tool, events.PY_START, _asked)
                for code in _CODES:
                    _MONITORING.set_local_events(tool, code, events.PY_START)
                return


_tool = _Tool()


def _after_fork_in_child() -> None:
    """The child hears what its parent did, for the same tool; a lock may be held there for good."""
    _tool._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)

_VAIN_CALLS = 64
"""After so many that may open nothing a call is let be: a loop over transforms has come around by then."""
_TEXT = (str, bytes, os.DirEntry)
_PATH_LIMIT, _NAME_LIMIT = 4096, 255
"""In characters: PATH_MAX, and NAME_MAX of one name in it."""
_AUDITED = sys.stdlib_module_names - {"ctypes", "_ctypes", "dbm", "_dbm", "_gdbm", "shelve"}
_OF_TYPES = (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType, ClassMethodDescriptorType)
_vain: dict[int, dict[int, int | None]] = {}
"""How often a call could open nothing, by address of code, and place in it; None: it handed text over."""


def _called(code: CodeType, place: int, function: Any, first: Any) -> Any:
    """Looks at a call that the job's code makes; the answer is for `sys.monitoring`."""
    if not STATE.running:
        return None
    try:
        places = _vain.setdefault(object.__hash__(code), {})
        count = places.get(place, 0)
        if issubclass(type(first), _TEXT):
            path = _path(first)
            if (count is not None or path is not None) and not opens_nothing(function):
                places[place] = None
                if path is not None:
                    context.note(NAMED, path)
                return None
            if path is not None:  # the next one may be handed to a library
                return None
        if count is None or first is None:
            return None
        places[place] = count + 1
        return _MONITORING.DISABLE if count >= _VAIN_CALLS else None
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        for watch in STATE.running:  # no call: there may be no room left on the stack
            watch.failure = watch.failure or error.__class__.__name__
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


def opens_nothing(function: Any) -> bool:
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
