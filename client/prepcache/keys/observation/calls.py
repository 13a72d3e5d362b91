"""What a function does that no audit event tells: it asks for files, imports by text, hands paths to C.

    if label.exists(): ...                                  a label that appears later changes the sample
    importlib.import_module(f"models.{name}")               no event tells of a module that is loaded already
    cv2.imread(f"{root}/{i}.png")                           a C library opens it: heard on Python >= 3.12

On Python >= 3.12 `sys.monitoring` tells of calls, by events on single code objects: those of what asks, and
those of the job. On Python 3.11 `sys.setprofile` tells, in the watched thread and those that it starts.

Invariants:
    1. Nothing is heard of while no function is watched and no fill runs. A callback raises nothing; its own
       error marks the watches in progress as incomplete.
    2. Ids that the interpreter keeps for debuggers, coverage and profilers are left to them. Where no other
       is free, or where a function asks and a profiler runs on Python 3.11, what it makes is not stored.
    3. Only what code of the job's asks counts, also through the standard library; but the functions of that
       in `_ASK_NOTHING` ask for nothing.
    4. A file whose name goes to a library counts as named, where that may open it: not the standard library,
       whose events tell, nor functions and classes of the job's, whose own calls are looked at.

Not seen: what a library asks, names with neither a separator nor a dot, and arguments but the first.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import importlib.util
import os
import re
import sys
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType, MethodType
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import asks_for_others, read_source
from prepcache.keys.code.names import ASKING, all_names, texts_in
from prepcache.keys.code.project import space_of
from prepcache.keys.observation import watches
from prepcache.keys.observation.watches import STATE, Kind, Watch, is_file_of_job, is_of_python
from prepcache.keys.paths import LONGEST

VAIN_CALLS = 64
_ATTACH = re.compile(r"\battach\b", re.IGNORECASE)
_MONITORING: Any = getattr(sys, "monitoring", None)


class JobCode:
    """Whether files of a recipe and a function may ask what is there, import by text or attach databases."""

    def __init__(self, files: Collection[str], recipe_asks: bool | None = None) -> None:
        self.codes: dict[int, CodeType] = {}
        self.recipe_asks, self.asks, self.attaches = recipe_asks, False, False
        self._files = files
        self._looked = (0, 0)

    def look(self, function: Any) -> None:
        looked = len(sys.modules), object.__hash__(function)
        if looked == self._looked:
            return
        inner = getattr(function, "__func__", function)
        is_of_job = isinstance(inner, FunctionType) and is_file_of_job(inner.__code__.co_filename)
        waiting: list[Any] = [function, *(inner.__globals__.values() if is_of_job else ())]
        for space in map(space_of, list(sys.modules.values())):
            if space.get("__file__") in self._files:
                waiting += space.values()
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if object.__hash__(value) not in seen:
                seen.add(object.__hash__(value))
                waiting += self._parts_of(value)
        files = self._files if self._looked == (0, 0) else ()
        try:
            sources = [read_source(path, path) for path in files if path.endswith(".py")]
            for one in sources:
                self._note_code(one.code)
            if self.recipe_asks is False and self.asks and _MONITORING is None:
                asking = {code.co_filename for code in self.codes.values() if _asks(code)}
                is_elsewhere = not asking.issubset(self._files)  # as in a cell of a notebook
                self.recipe_asks = is_elsewhere or asks_for_others(sources)
        except (UnkeyableError, OSError, SyntaxError, ValueError, RecursionError):  # one is being written
            self.asks = self.attaches = self.recipe_asks = True
        self._looked = looked

    def _note_code(self, code: CodeType) -> None:
        self.asks |= _asks(code)
        self.attaches |= any(map(_ATTACH.search, texts_in(code)))

    def _parts_of(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        if kind is CodeType:
            self.asks |= value in _CODES  # by another name
            if not is_file_of_job(value.co_filename):
                return ()
            if object.__hash__(value) not in self.codes:
                self.codes[object.__hash__(value)] = value
                self._note_code(value)
            return list(value.co_consts)
        if kind in _HOLD_CODE:
            return [*gc.get_referents(value), *getattr(value, "__dict__", {}).values()]
        cls = value if issubclass(kind, type) else kind
        return list(vars(cls).values()) if _is_class_of_job(cls) else ()


def _asks(code: CodeType) -> bool:
    return not ASKING.isdisjoint((*all_names(code), *texts_in(code)))  # which `getattr` may be given


def _is_class_of_job(cls: type) -> bool:
    name = str(getattr(cls, "__module__", ""))
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" if file is None else is_file_of_job(file)


_HOLD_CODE = frozenset(
    {FunctionType, MethodType, CellType, tuple, staticmethod, classmethod, property, functools.partial,
     functools.cached_property, functools._lru_cache_wrapper}
)  # fmt: skip


_QUESTIONS = (
    *(getattr(os.path, n) for n in ("exists", "lexists", "isfile", "isdir", "getsize", "getmtime")),
    *(getattr(Path, name) for name in ("stat", "exists", "is_file", "is_dir")),
    importlib.import_module, importlib.util.find_spec, threading.Thread.start, BaseProcess.start,
)  # fmt: skip
_CODES = {f.__code__: f.__code__.co_varnames[0] for f in _QUESTIONS if isinstance(f, FunctionType)}
_START, _PROCESS = threading.Thread.start.__code__, BaseProcess.start.__code__
_IMPORT, _FIND_SPEC = importlib.import_module.__code__, importlib.util.find_spec.__code__
_FILES = frozenset(code.co_filename for code in _CODES)
_ASK_NOTHING = ("resolve", "mkdir", "makedirs", "which")


def _heard(frame: FrameType) -> None:
    try:
        code, given, caller = frame.f_code, frame.f_locals, frame.f_back
        if code is _START:
            _started.add(given["self"])
            return
        if code is _PROCESS:  # by `spawn`, of which no event tells
            watches.refuse(watches.FORKS)
            return
        if code is not _IMPORT:  # which libraries call for a job
            while caller is not None and not is_file_of_job(name := caller.f_code.co_filename):
                if not is_of_python(name) or caller.f_code.co_name in _ASK_NOTHING:
                    return
                caller = caller.f_back
        asked = given.get(_CODES[code])
        if code in (_IMPORT, _FIND_SPEC):
            package = given.get("package")
            if isinstance(asked, str) and asked.strip(".") and (package or asked[0] != "."):
                watches.note(Kind.MODULE_NAME, importlib.util.resolve_name(asked, package))
        elif isinstance(asked, str | bytes | os.PathLike) and asked:  # else no path, or a descriptor
            watches.note(Kind.ASKED, os.fsdecode(asked))
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        watches.fail(error)


def heard(code: JobCode, watch: Watch, function: Any) -> contextlib.AbstractContextManager[None]:
    code.look(function)
    if _MONITORING is not None:
        return _tool.on(code, watch)
    asks = code.asks if code.recipe_asks is None else code.recipe_asks
    return _profiled_here(watch) if asks else contextlib.nullcontext()


@contextlib.contextmanager
def _profiled_here(watch: Watch) -> Iterator[None]:
    before = sys.getprofile()
    if not (_is_own(before) and _is_own(threading.getprofile())):
        watch.failure = "a profiler is running"
        yield
        return
    global _profiling
    with STATE.lock:
        _profiling += 1
        threading.setprofile(_profile_thread)
    sys.setprofile(_profiled)
    try:
        yield
    finally:
        if sys.getprofile() is _profiled:
            sys.setprofile(before)
        else:  # it is the function's own, or none since that one ended
            watch.failure = watch.failure or "it has set a profiler"
        with STATE.lock:
            _profiling = max(0, _profiling - 1)
            if not _profiling and threading.getprofile() is _profile_thread:
                threading.setprofile(None)


def _is_own(profile: Any) -> bool:
    return profile is None or getattr(profile, "__module__", "") == __name__


def _asked(code: CodeType, offset: int) -> None:
    if STATE.running:
        _heard(sys._getframe(1))


# -- Python 3.11


def _profiled(frame: FrameType, event: str, arg: Any, files: frozenset[str] = _FILES) -> None:
    if event == "call" and STATE.running and frame.f_code.co_filename in files and frame.f_code in _CODES:
        _heard(frame)


def _profile_thread(frame: FrameType, event: str, arg: Any) -> None:
    """Threads that start meanwhile begin with this; those that nothing watched has started are let alone."""
    here = threading.current_thread()
    sys.setprofile(_profiled if here in _started and not watches.is_own(here) else None)


_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_profiling = 0  # how many watches profile at the time, under `STATE.lock`


# -- Python >= 3.12


class _Tool:
    """What `sys.monitoring` tells. All but `vain` and `is_deaf` is changed under `STATE.lock`."""

    def __init__(self) -> None:
        self.vain: dict[tuple[int, int], int] = {}  # calls that could open nothing, by code, and place in it
        self.is_deaf = False
        self._users = 0
        self._id: int | None = None
        self._heard: dict[int, CodeType] = {}

    @contextlib.contextmanager
    def on(self, code: JobCode | None = None, watch: Watch | None = None) -> Iterator[None]:
        with STATE.lock:
            self._users += 1
            if self._id is None:
                self._start()
            if self._id is None and watch is not None:
                watch.failure = "other tools use sys.monitoring"
            elif self._id is not None and code is not None:
                self.vain = {}
                if self.is_deaf:
                    _MONITORING.restart_events()
                for address in code.codes.keys() - self._heard.keys():
                    self._heard[address] = code.codes[address]
                    _MONITORING.set_local_events(self._id, code.codes[address], _MONITORING.events.CALL)
        try:
            yield
        finally:
            with STATE.lock:
                self._users = max(0, self._users - 1)
                if not self._users:
                    self.stop()

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

    def stop(self) -> None:
        self._users = 0
        if self._id is None:
            return
        with contextlib.suppress(ValueError):  # somebody else has freed it
            for code in (*self._heard.values(), *_CODES):
                _MONITORING.set_local_events(self._id, code, 0)
            for event in (_MONITORING.events.CALL, _MONITORING.events.PY_START):
                _MONITORING.register_callback(self._id, event, None)
            _MONITORING.free_tool_id(self._id)
        self._heard, self.vain, self._id, self.is_deaf = {}, {}, None, False


_tool = _Tool()


def filling() -> contextlib.AbstractContextManager[None]:
    """Keeps hearing between items: to begin costs time for each function of the job."""
    return contextlib.nullcontext() if _MONITORING is None else _tool.on()


def _after_fork_in_child() -> None:
    global _profiling
    STATE.lock, STATE.running = threading.Lock(), ()
    if _MONITORING is not None:
        _tool.stop()
    _profiling = 0
    if _is_own(sys.getprofile()):
        sys.setprofile(None)
    if threading.getprofile() is _profile_thread:
        threading.setprofile(None)


os.register_at_fork(after_in_child=_after_fork_in_child)
_AUDITED = sys.stdlib_module_names - {"ctypes", "_ctypes", "dbm", "_dbm", "_gdbm", "shelve", "functools"}
"""Modules whose events tell what they open; functools calls others' functions."""


def _called(code: CodeType, place: int, function: Any, first: Any) -> Any:
    if not STATE.running:
        return None
    try:
        at = object.__hash__(code), place
        if issubclass(type(first), (str, bytes, os.DirEntry)) and may_open(function):
            _tool.vain[at] = -sys.maxsize
            is_short = isinstance(first, os.DirEntry) or len(first) < LONGEST  # else it is data
            text = os.fsdecode(first) if is_short else ""
            if not {os.sep, "."}.isdisjoint(text) and "\n" not in text:
                watches.note(Kind.NAMED, text)
            return None
        _tool.vain[at] = _tool.vain.get(at, 0) + 1
        if _tool.vain[at] > VAIN_CALLS:
            _tool.is_deaf = True
            return _MONITORING.DISABLE
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        watches.fail(error)
    return None


def may_open(function: Any) -> bool:
    """Whether what is called may open a file of which nothing is told."""
    kind = type(function)
    if kind is MethodType:
        return may_open(function.__func__)
    if kind is FunctionType:
        name, inner = function.__code__.co_filename, function.__dict__.get("__wrapped__")
        if not is_of_python(name):
            return not is_file_of_job(name)
        return not _is_audited(function) if inner is None else may_open(inner)
    if issubclass(kind, type) or kind.__module__ != "builtins":
        cls = function if issubclass(kind, type) else kind
        return not all(_is_audited(one) or _is_class_of_job(one) for one in (*cls.__mro__, type(cls)))
    # A function or a method in C.
    owner = getattr(function, "__objclass__", None)
    if owner is None and not function.__module__:
        keeper = getattr(function, "__self__", function)
        owner = keeper if isinstance(keeper, type) else type(keeper)
    return not _is_audited(owner or function)


def _is_audited(thing: Any) -> bool:
    module = getattr(thing, "__module__", None)
    if module == "builtins":  # or of C code that names no module
        return vars(builtins).get(thing.__name__) is thing
    return type(module) is str and module.partition(".")[0] in _AUDITED
