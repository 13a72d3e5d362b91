"""When files were loaded, the texts that the job's modules were loaded from, and which files of machine code,
from the import of prepcache on.

What was imported before counts as its file was then. Functions can be compared with a text at any time, by
their code; what it says beside that (annotations, the bodies of classes) only with the text that was loaded.

Invariants:
    1. Nothing is imported that `import prepcache` does not need anyway; nothing here raises into an import.
    2. What is kept is bounded. Of a file that is not kept nothing is said.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from _weakref import ref
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

MAX_BYTES = 64 << 20
"""Of all texts."""
MAX_S = 0.02
"""For what is loaded already when prepcache is imported: the job waits for it."""

SINCE_NS = time.time_ns()
"""When prepcache was imported: what it found loaded was loaded before."""
_IMPORTING = ("<frozen importlib._bootstrap>", "<frozen runpy>")
_FORKED = 0x40
"""A process that was forked and has executed no program of its own. Source: linux/sched.h, PF_FORKNOEXEC."""
_TICK_NS = 10_000_000
"""How coarse the clock is that a process's start is told by, at most."""
_loaded_at: dict[str, int] = {}
"""File, the job's or a library's, wherever that is installed, to when it was loaded first."""
_built: dict[str, tuple[int, ...]] = {}
"""File of machine code to what told it from others when it was loaded first."""
_loads: dict[str, list[Load]] = {}
_kept_bytes = 0


class Load:
    """A file that was loaded.

    Args:
        code: what was executed; None if that was before prepcache was imported.
        namespace: the id of the module's dict.
        before: functions and classes that were in it already: it was loaded again.
    """

    def __init__(
        self, text: bytes, code: CodeType | None = None, namespace: int = 0, before: Iterable[Any] = ()
    ) -> None:
        self.text = text
        self.namespace = namespace
        self._code = code
        self._before = {id(value): ref(value) for value in before}
        self._codes: frozenset[int] | None = None

    def found(self, what: Any) -> bool:
        """Whether something was there before."""
        kept = self._before.get(id(what))
        return kept is not None and kept() is what

    def made(self, code: CodeType) -> bool:
        """Whether a code object is what was executed, or nested in it."""
        if self._codes is None:
            found, waiting = set(), [] if self._code is None else [self._code]
            while waiting:
                one = waiting.pop()
                found.add(id(one))  # they live as long as the one that they are nested in
                waiting.extend(const for const in one.co_consts if isinstance(const, CodeType))
            self._codes = frozenset(found)
        return id(code) in self._codes


def loads(path: str) -> list[Load]:
    """The loads of a file, in their order; none where they are not known."""
    return list(_loads.get(path, ()))


def note_execution(code: Any, frame: FrameType, is_of_job: Callable[[str], bool]) -> None:
    """Notes what is executed in a frame, if that loads all of a module: the time, and text and code of one of
    the job's. IPython's autoreload executes parts.

    Args:
        is_of_job: tells files of the job from those of libraries.
    """
    if not isinstance(code, CodeType) or code.co_name != "<module>":
        return
    if frame.f_code.co_filename not in _IMPORTING:
        return
    _loaded_at.setdefault(code.co_filename, time.time_ns())
    if is_of_job(code.co_filename):
        args = frame.f_locals.get("args", ())
        space = args[1] if len(args) > 1 else frame.f_locals.get("run_globals")
        note(code.co_filename, space if isinstance(space, dict) else {}, code)


def when_loaded(path: str) -> int | None:
    """When a file was loaded first, in ns since the epoch; None if it was not.

    `SINCE_NS` where that was before prepcache was imported.
    """
    return _loaded_at.get(path)


def note_machine_code(path: str) -> None:
    """Notes an extension module, or a library of `ctypes`, that is about to be loaded."""
    full = os.path.abspath(path)
    _loaded_at.setdefault(full, time.time_ns())
    if full not in _built:
        _built[full] = build_of(full)


def build_loaded(path: str) -> tuple[int, ...] | None:
    """What `build_of` said of a file of machine code when it was loaded; None if that was not seen."""
    return _built.get(os.path.abspath(path))


def build_of(path: str) -> tuple[int, ...]:
    """What tells a file from one that was built in its place.

    Raises:
        OSError: it is not there, or cannot be asked.
    """
    info = os.stat(path)
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


def _started_ns() -> int:
    """When this process began, at the latest, in ns since the epoch; 0 where that is not told, or it was
    forked with what its parent had loaded."""
    try:
        with open("/proc/self/stat", "rb") as file:
            told = file.read().rpartition(b")")[2].split()
        if int(told[6]) & _FORKED:
            return 0
        ticks = int(told[19])
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, ValueError, IndexError):  # no Linux
        return 0
    return time.time_ns() - (now_ns - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")) - _TICK_NS


def note(path: str, space: dict[str, Any], code: CodeType | None = None) -> None:
    """Keeps the text of a file that is being loaded into a namespace."""
    global _kept_bytes
    path = os.path.abspath(path)
    known = _loads.setdefault(path, [])
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES - _kept_bytes + 1)
    except OSError:
        text = b""
    if known and (known[-1].text, known[-1].namespace) == (text, id(space)):
        return
    if not text or _kept_bytes + len(text) > MAX_BYTES:
        _kept_bytes -= sum(len(one.text) for one in known)
        known.clear()
        return
    _kept_bytes += len(text)
    before = [value for value in list(space.values()) if isinstance(value, FunctionType | type)]
    known.append(Load(text, code, id(space), () if code is None else before))


def note_those_there(is_of_job: Callable[[str], bool]) -> None:
    """Notes the files that were loaded already, keeps the texts of the job's as they are now, and what tells
    machine code from another build.

    Args:
        is_of_job: tells files of the job from those of libraries.
    """
    end = time.monotonic() + MAX_S
    # Not of another type: one that loads itself when it is asked for anything.
    spaces = [vars(module) for module in list(sys.modules.values()) if type(module) is ModuleType]
    files = [(path, space) for space in spaces if isinstance(path := space.get("__file__"), str)]
    _loaded_at.update({path: SINCE_NS for path, _ in files})
    for path, space in files:
        if path.endswith(".so") and path not in _built:
            with contextlib.suppress(OSError):
                _built[path] = build_of(path)
        if time.monotonic() > end:
            return
        if path.endswith(".py") and is_of_job(path):
            note(path, space)


STARTED_NS = _started_ns()
"""When the process began that imported prepcache: it has loaded nothing before."""
