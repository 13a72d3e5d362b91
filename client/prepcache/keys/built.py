"""Paths that a function builds: by `os.path.join`, or from a `pathlib` path that is turned into text.

A C library (cv2.imread, h5py, soundfile, pyarrow, lxml) opens a file without telling Python. But the path
that it is given was mostly built just before: that of a mask beside its image. So a file that is there under
a path which was built while a function ran counts as if it had been opened.

Invariants:
    1. Both functions stay the objects that they are, so that what was imported from `os.path` long ago is
       seen too, can be pickled and counts in a recipe as ever: only their code is replaced, by code of the
       same name that calls the former.
    2. Paths that prepcache builds, and those that a library joins, are none of the function's; but `glob`
       joins for who calls it, any library may turn the function's path into text, and one that is given the
       folder of a model joins the names of its weights.

Not here: which of them count (observe.py). Not seen: f-strings, `+`, methods of str, other functions of
`os.path`, what `os.scandir` gives, before they are handed over (calls.py).
"""

from __future__ import annotations

import glob
import posixpath
import sys
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType, FunctionType
from typing import Any

from prepcache import opens
from prepcache.keys import watches

_PATHLIB = getattr(sys.modules[PurePath.__module__], "__file__", None)
_OF_MODELS = (".safetensors", ".onnx", ".gguf", ".model", "tokenizer.json")
"""How files end that `from_pretrained(folder)` and its like open in C or Rust."""
_CODE = """
def {name}({parameters}):
    path = _prepcache_{name}({parameters})
    if _prepcache_watches:
        _prepcache_{name}_built(path)
    return path
"""


Told = Callable[[Any, FrameType | None], None]
"""Takes a path, and the frame in which it was built."""


def listen(told: Told) -> None:
    """Calls `told`, which never raises, with each path that is built while a function is watched.

    Called once in a process.
    """

    def joined(path: Any) -> None:
        frame = _behind(sys._getframe(1).f_back, glob.__file__)  # none where a thread only joins
        is_of_model = type(path) is str and path.endswith(_OF_MODELS) and not opens.is_own(frame)
        if is_of_model or opens.is_of_job(frame):
            tell(told, path, frame)

    def turned_into_text(path: Any) -> None:
        frame = _behind(sys._getframe(1).f_back, _PATHLIB)
        if not opens.is_own(frame):
            tell(told, path, frame)

    _add(posixpath.join, "a, *p", joined)
    _add(PurePath.__str__, "self", turned_into_text)


def tell(told: Told, path: Any, frame: FrameType | None) -> None:
    """Calls `told`, unless that is what built the path."""
    state = opens.state
    if getattr(state, "is_building", False):
        return  # by the telling itself
    state.is_building = True
    try:
        told(path, frame)
    finally:
        state.is_building = False


def _behind(frame: FrameType | None, file: str | None) -> FrameType | None:
    """The first frame that is not one of a file."""
    while frame is not None and frame.f_code.co_filename == file:
        frame = frame.f_back
    return frame


def _add(function: Any, parameters: str, built: Callable[[Any], None]) -> None:
    """Lets a function call another with what it returns."""
    if not isinstance(function, FunctionType):
        return  # an implementation in C
    names, name, code = function.__globals__, function.__name__, function.__code__
    names[f"_prepcache_{name}"] = FunctionType(code, names, name, function.__defaults__)
    names[f"_prepcache_{name}_built"] = built
    names["_prepcache_watches"] = watches.in_progress
    made: dict[str, Any] = {}
    exec(compile(_CODE.format(name=name, parameters=parameters), code.co_filename, "exec"), made)
    function.__code__ = made[name].__code__.replace(
        co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno
    )
