"""The texts that the job's modules were loaded from, from the import of prepcache on.

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
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

MAX_BYTES = 64 << 20
"""Of all texts."""
MAX_S = 0.02
"""For what is loaded already when prepcache is imported: the job waits for it."""

_IMPORTING = ("<frozen importlib._bootstrap>", "<frozen runpy>")
_loads: dict[str, list[Load]] = {}
_kept_bytes = 0


class Load(NamedTuple):
    """A file that was loaded.

    Args:
        code: what was executed; None if that was before prepcache was imported.
        namespace: the id of the module's dict.
        before: functions and classes that were in it already, by their ids: it was loaded again.
    """

    text: bytes
    code: CodeType | None
    namespace: int
    before: dict[int, Callable[[], Any]]

    def found(self, what: Any) -> bool:
        """Whether something was there before."""
        return what is not None and id(what) in self.before and self.before[id(what)]() is what

    def codes(self) -> Iterator[CodeType]:
        """What was executed, and all that is nested in it."""
        waiting = [] if self.code is None else [self.code]
        while waiting:
            code = waiting.pop()
            yield code
            waiting.extend(const for const in code.co_consts if isinstance(const, CodeType))


def loads(path: str) -> list[Load]:
    """The loads of a file, in their order; none where they are not known."""
    return list(_loads.get(path, ()))


def note_execution(code: Any, frame: FrameType, is_of_job: Callable[[str], bool]) -> None:
    """Notes what is executed in a frame, if that loads all of a module of the job's: IPython's autoreload
    executes parts.

    Args:
        is_of_job: tells files of the job from those of libraries.
    """
    if not isinstance(code, CodeType) or code.co_name != "<module>":
        return
    if frame.f_code.co_filename in _IMPORTING and is_of_job(code.co_filename):
        args = frame.f_locals.get("args", ())
        space = args[1] if len(args) > 1 else frame.f_locals.get("run_globals")
        note(code.co_filename, space if isinstance(space, dict) else {}, code)


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
    there = [value for value in list(space.values()) if isinstance(value, FunctionType | type)]
    known.append(Load(text, code, id(space), {id(value): ref(value) for value in there}))


def note_those_there(is_of_job: Callable[[str], bool]) -> None:
    """Keeps the texts of the files that were loaded already, as they are now.

    Args:
        is_of_job: tells files of the job from those of libraries.
    """
    end = time.monotonic() + MAX_S
    for module in list(sys.modules.values()):
        if time.monotonic() > end:
            return
        space = getattr(module, "__dict__", {})
        path = space.get("__file__")
        if isinstance(path, str) and path.endswith(".py") and is_of_job(path):
            note(path, space)
            for one in _loads.get(os.path.abspath(path), ()):
                one.before.clear()
