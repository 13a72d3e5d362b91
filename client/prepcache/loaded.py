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
from collections.abc import Callable
from types import FrameType

MAX_BYTES = 64 << 20
"""Of all texts."""
MAX_S = 0.05
"""For what is loaded already when prepcache is imported: the job waits for it."""

_IMPORTING = ("<frozen importlib._bootstrap>", "<frozen runpy>")
_texts: dict[str, list[bytes]] = {}
_kept_bytes = 0


def texts(path: str) -> list[bytes]:
    """The texts that were loaded from a file, in their order; none where that is not known."""
    return list(_texts.get(path, ()))


def is_import(frame: FrameType) -> bool:
    """Whether a frame that executes a module's code loads all of it; IPython's autoreload does not."""
    return frame.f_code.co_filename in _IMPORTING


def note(path: str) -> None:
    """Keeps the text of a file that is being loaded."""
    global _kept_bytes
    path = os.path.abspath(path)
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES - _kept_bytes + 1)
    except OSError:
        text = b""
    known = _texts.setdefault(path, [])
    if known and known[-1] == text:
        return
    if not text or _kept_bytes + len(text) > MAX_BYTES:
        known.clear()
        return
    _kept_bytes += len(text)
    known.append(text)


def note_those_there(is_of_job: Callable[[str], bool]) -> None:
    """Keeps the texts of the files that were loaded already, as they are now.

    Args:
        is_of_job: tells files of the job from those of libraries.
    """
    end = time.monotonic() + MAX_S
    for module in list(sys.modules.values()):
        if time.monotonic() > end:
            return
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str) and path.endswith(".py") and is_of_job(path):
            note(path)
