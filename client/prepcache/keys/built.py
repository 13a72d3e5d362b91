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
import inspect
import posixpath
import sys
from collections.abc import Callable
from inspect import Parameter
from pathlib import PurePath
from types import FrameType, FunctionType
from typing import Any

from prepcache import opens
from prepcache.keys import watches

_PATHLIB = getattr(sys.modules[PurePath.__module__], "__file__", None)
_OF_MODELS = (".safetensors", ".onnx", ".gguf", ".model", "tokenizer.json")
"""How files end that `from_pretrained(folder)` and its like open in C or Rust."""
_CODE = """
def {name}{signature}:
    path = _prepcache_{name}({arguments})
    if _prepcache_watches:
        _prepcache_{name}_told(path)
    return path
"""

_AS_ARGUMENT: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*{0}", Parameter.KEYWORD_ONLY: "{0}={0}"}
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

    add(posixpath.join, _CODE, joined)
    add(PurePath.__str__, _CODE, turned_into_text)


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


def add(function: Any, source: str, told: Callable[..., None]) -> None:
    """Gives a function, if it is not in C, other code, which calls the former; see invariant 1.

    Args:
        source: of the code, but for the function's name, its signature, how its arguments are handed on, and
            the first of them.
        told: what that code finds as `_prepcache_{name}_told`.
    """
    if not isinstance(function, FunctionType) or function.__closure__:
        return
    names, name, code = function.__globals__, function.__name__, function.__code__
    signature = inspect.signature(function)
    former = FunctionType(code, names, name, function.__defaults__)
    former.__kwdefaults__ = function.__kwdefaults__
    names |= {f"_prepcache_{name}": former, f"_prepcache_{name}_told": told}
    names["_prepcache_watches"] = watches.in_progress
    arguments = [_AS_ARGUMENT.get(one.kind, "{0}").format(one.name) for one in signature.parameters.values()]
    parts = {"name": name, "signature": signature, "arguments": ", ".join(arguments), "first": arguments[0]}
    made: dict[str, Any] = {}
    exec(compile(source.format_map(parts), code.co_filename, "exec"), made)
    function.__code__ = made[name].__code__.replace(
        co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno
    )
