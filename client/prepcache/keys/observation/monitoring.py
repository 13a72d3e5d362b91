"""What a function asks for that may not be there, and modules that it imports by text.

    if label.exists(): ...                                  a label that appears later changes the sample
    importlib.import_module(f"models.{name}")               no event tells of a module that is loaded already

Calls of the standard library's functions that ask are heard while a function is watched; the functions stay
as they are. On Python >= 3.12 `sys.monitoring` tells of them, by events on single code objects alone: theirs,
and those of the job, whose calls of libraries are looked at (native_reads.py). On Python 3.11 it is
`sys.setprofile`, in the thread that is watched, and only where the job's code names what asks.

Not seen: `os.stat`, `os.lstat` and `os.access`, which are in C; what a library asks.

Invariants:
    1. Nothing is heard of while no function is watched: events, callbacks and the tool's id are given back.
    2. Ids that the interpreter keeps for debuggers, coverage and profilers are left to them. Where no other
       is free, or a profiler runs on Python 3.11, a function that asks is not observed completely, and what
       it makes is not stored.
    3. Only what code of the job's asks counts. glob and pathlib ask for who calls them; but `resolve` and
       `mkdir` ask for nothing: one looks for loops of links, and after the other the folder is there.
    4. What was there is found out once more: should it change between the two, the input is another than it
       was, and what was made of it is made again.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import pathlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from prepcache.keys.observation import context, native_reads
from prepcache.keys.observation.context import ASKED, MODULE_NAME, STATE, Watch
from prepcache.keys.observation.job_code import JobCode, is_file_of_job

_TOOL_IDS = (4, 3)
"""Those that stand for no kind of tool."""
_MONITORING: Any = getattr(sys, "monitoring", None)


def _codes() -> dict[CodeType, str]:
    names = ("exists", "lexists", "isfile", "isdir", "getsize", "getmtime")
    functions = [getattr(os.path, name) for name in names]
    functions += [getattr(Path, name) for name in ("stat", "exists", "is_file", "is_dir")]
    functions.append(importlib.import_module)
    found = [one for one in functions if isinstance(one, FunctionType)]
    return {one.__code__: one.__code__.co_varnames[0] for one in found}


CODES = _codes()
"""The code of what asks, and the name of its argument."""
_MODULES = (glob, pathlib, *(sys.modules[kind.__module__] for kind in Path.__mro__))
FILES = frozenset(
    {code.co_filename for code in CODES} | {str(getattr(module, "__file__", "")) for module in _MODULES}
)
"""Of the code that asks for who calls it. Modules that Python starts with say where they are in it alone."""


def _note(frame: FrameType) -> None:
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


class _Tool:
    """What is heard by `sys.monitoring`, for all watches of this process.

    Locking: all is changed under `_lock`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._id: int | None = None
        self._heard: dict[int, CodeType] = {}

    def begin(self, code: JobCode | None) -> bool:
        """Hears of the calls of the job's code, and of who asks; whether it does."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start()
            if self._id is not None and code is not None and len(code.codes) > 0:
                for address, one in list(code.codes.items()):
                    if address not in self._heard:
                        self._heard[address] = one
                        native_reads.forget(one)
                        _MONITORING.set_local_events(self._id, one, _MONITORING.events.CALL)
            return self._id is not None

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._id is not None:
                for code in (*self._heard.values(), *CODES):
                    _MONITORING.set_local_events(self._id, code, 0)
                for event in (_MONITORING.events.CALL, _MONITORING.events.PY_START):
                    _MONITORING.register_callback(self._id, event, None)
                _MONITORING.free_tool_id(self._id)
                self._heard, self._id = {}, None

    def _start(self) -> None:
        for tool in _TOOL_IDS:
            with contextlib.suppress(ValueError):  # it is in use
                _MONITORING.use_tool_id(tool, "prepcache")
                self._id = tool
                break
        else:
            return
        events = _MONITORING.events
        _MONITORING.register_callback(tool, events.CALL, native_reads.called)
        _MONITORING.register_callback(tool, events.PY_START, _asked)
        for code in CODES:
            _MONITORING.set_local_events(tool, code, events.PY_START)


_tool = _Tool()


def _after_fork_in_child() -> None:
    """The child hears what its parent did, for the same tool; a lock may be held there for good."""
    _tool._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def running() -> Iterator[None]:
    """A fill: what is heard by `sys.monitoring` is set up once, and not for each item."""
    if _MONITORING is None:
        yield
        return
    _tool.begin(None)
    try:
        yield
    finally:
        _tool.end()


@contextlib.contextmanager
def watched(code: JobCode, watch: Watch) -> Iterator[None]:
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
    elif (before := sys.getprofile()) is not None and before is not _profiled:
        watch.failure = "a profiler is running"
        yield
    else:
        sys.setprofile(_profiled)
        try:
            yield
        finally:
            sys.setprofile(before)


def _asked(code: CodeType, offset: int) -> None:
    if not STATE.running:
        return
    try:
        _note(sys._getframe(1))
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        context.fail(error)


def _profiled(frame: FrameType, event: str, arg: Any, files: frozenset[str] = FILES) -> None:
    if event != "call" or frame.f_code.co_filename not in files:
        return
    try:
        if frame.f_code in CODES:
            _note(frame)
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        for watch in STATE.running:
            watch.failure = watch.failure or error.__class__.__name__
