"""How the beginning of certain functions is heard of while a function is watched, and given up afterwards.

By `sys.monitoring` (Python >= 3.12), with events on single code objects alone: those that ask for files
(questions.py), and those of the job, whose calls of libraries are looked at (native_reads.py). On Python 3.11
by `sys.setprofile`, in the thread that is watched, and only where the job's code names what asks.

Invariants:
    1. Nothing is heard of while no function is watched: events, callbacks and the tool's id are given back.
    2. Ids that the interpreter keeps for debuggers, coverage and profilers are left to them. Where no other
       is free, or a profiler runs on Python 3.11, a function that asks is not observed completely, and what
       it makes is not stored.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from prepcache.keys.observation import context, native_reads, questions
from prepcache.keys.observation.context import STATE, Watch
from prepcache.keys.observation.job_code import JobCode

_TOOL_IDS = (4, 3)
"""Those that stand for no kind of tool."""
_MONITORING: Any = getattr(sys, "monitoring", None)


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
                for code in (*self._heard.values(), *questions.CODES):
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
        for code in questions.CODES:
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
        questions.note(sys._getframe(1))
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        context.fail(error)


def _profiled(frame: FrameType, event: str, arg: Any, files: frozenset[str] = questions.FILES) -> None:
    if event != "call" or frame.f_code.co_filename not in files:
        return
    try:
        if frame.f_code in questions.CODES:
            questions.note(frame)
    except Exception as error:  # noqa: BLE001 - fails closed, as the audit hook does
        for watch in STATE.running:
            watch.failure = watch.failure or error.__class__.__name__
