"""The texts that the job's modules were loaded from, and when those of libraries were, from the import of
prepcache on.

What was imported before counts as its file was then. Functions can be compared with a text at any time, by
their code; what it says beside that (annotations, the bodies of classes) only with the text that was loaded.

Invariants:
    1. Nothing is imported that `import prepcache` does not need anyway; nothing here raises into an import.
    2. What is kept is bounded. Of a file that is not kept nothing is said.
"""

from __future__ import annotations

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
_SITE = f"-packages{os.sep}"
_of_libraries: dict[str, int] = {}
"""Path of a top-level module of a library, less its suffix, to when it was executed first."""
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
    """Notes what is executed in a frame, if that loads all of a module: text and code of one of the job, the
    time of a library's. IPython's autoreload executes parts.

    Args:
        is_of_job: tells files of the job from those of libraries.
    """
    if not isinstance(code, CodeType) or code.co_name != "<module>":
        return
    if frame.f_code.co_filename not in _IMPORTING:
        return
    if not is_of_job(code.co_filename):
        site, found, inner = code.co_filename.partition(_SITE)
        if found:
            top = inner.partition(os.sep)[0].removesuffix(".py")
            _of_libraries.setdefault(site + found + top, time.time_ns())
    else:
        args = frame.f_locals.get("args", ())
        space = args[1] if len(args) > 1 else frame.f_locals.get("run_globals")
        note(code.co_filename, space if isinstance(space, dict) else {}, code)


def when_loaded(folder: str, top: str) -> int | None:
    """When a library's top-level module was loaded, in ns since the epoch, at the latest; None if it was not,
    or without Python code.

    Args:
        folder: where it is installed.
    """
    path = os.path.join(folder, top)
    file = getattr(sys.modules.get(top), "__dict__", {}).get("__file__")
    if file not in (f"{path}.py", os.path.join(path, "__init__.py")):
        return None
    return _of_libraries.get(path, SINCE_NS)


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
    """Keeps the texts of the files that were loaded already, as they are now.

    Args:
        is_of_job: tells files of the job from those of libraries.
    """
    end = time.monotonic() + MAX_S
    for module in list(sys.modules.values()):
        if time.monotonic() > end:
            return
        if type(module) is not ModuleType:
            continue  # one that loads itself when it is asked for anything
        path = vars(module).get("__file__")
        if isinstance(path, str) and path.endswith(".py") and is_of_job(path):
            note(path, vars(module))
