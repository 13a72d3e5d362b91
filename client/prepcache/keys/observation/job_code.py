"""Which code is the job's, and what it may do that no event tells.

Not here: what counts in a key (keys/code). More code than runs may be named here: it is only looked at.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Container, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_SITE = f"{os.sep}site-packages{os.sep}"
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
ASKING = frozenset(
    {"exists", "lexists", "isfile", "isdir", "getsize", "getmtime", "is_file", "is_dir", "stat", "glob"}
)
"""Names of functions and methods that ask whether something is there."""
_IMPORTING = frozenset(
    {"import_module", "instantiate", "locate", "get_class", "get_object", "get_method", "import_string"}
)
"""Names of what imports by text, of importlib and of libraries that find classes by their names."""


def is_library_file(name: str) -> bool:
    """Whether a source file is a library's or Python's, and not prepcache's."""
    return (name.startswith(_LIBRARIES) or _SITE in name) and not name.startswith(OWN_FOLDER)


def is_file_of_job(name: str) -> bool:
    """Whether a source file is the job's, not a library's and not prepcache's."""
    return not (name.startswith(_LIBRARIES) or _SITE in name or name.startswith(OWN_FOLDER))


class JobCode:
    """The code objects of the modules that a recipe counts, and of a function.

    Args:
        files: the source files that the recipe counts.
        asking: the code of what asks.
    """

    def __init__(self, files: Container[str], asking: Container[CodeType]) -> None:
        self.codes: dict[int, CodeType] = {}
        """By address."""
        self.asks = False
        """Whether it asks what is there, or imports by text."""
        self._files = files
        self._asking = asking
        self._looked: tuple[int, int] = (0, 0)

    def look(self, function: Any) -> None:
        """Looks through what is loaded, if that is more than at the last time."""
        looked = len(sys.modules), object.__hash__(function)
        if looked == self._looked:
            return
        self._looked = looked
        seen: set[int] = set()
        for space in self._spaces(function):
            for value in list(space.values()):
                self._add(value, seen)
        self._add(function, seen)
        self.asks = self.asks or any(
            not (ASKING | _IMPORTING).isdisjoint(code.co_names) for code in self.codes.values()
        )

    def _spaces(self, function: Any) -> Iterator[dict[str, Any]]:
        for module in list(sys.modules.values()):
            space = getattr(module, "__dict__", {})
            if space.get("__file__") in self._files:
                yield space
        inner = function.func if isinstance(function, functools.partial) else function
        inner = getattr(inner, "__func__", inner)
        if not isinstance(inner, FunctionType):
            inner = next(
                (vars(one)["__call__"] for one in type(inner).__mro__ if "__call__" in vars(one)), None
            )
        if isinstance(inner, FunctionType) and is_file_of_job(inner.__code__.co_filename):
            yield inner.__globals__

    def _add(self, value: Any, seen: set[int]) -> None:
        """Adds the code of a function or class of the job's, with what it wraps and encloses."""
        address = object.__hash__(value)
        if address in seen:
            return
        seen.add(address)
        kind = type(value)
        inner: list[Any] = []
        if kind is FunctionType:
            self.asks = self.asks or value.__code__ in self._asking  # by another name
            self.add_code(value.__code__)
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # there is nothing in it yet
                    inner.append(cell.cell_contents)
            inner.append(value.__dict__.get("__wrapped__"))
        elif kind in _MAY_HOLD_CODE and kind is not type:
            inner = [getattr(value, name, None) for name in _WRAPPED]
        else:
            cls = value if issubclass(kind, type) else kind
            if is_file_of_job(_file_of(cls)):
                inner = list(vars(cls).values())
        for part in inner:
            if type(part) in _MAY_HOLD_CODE:
                self._add(part, seen)

    def add_code(self, code: CodeType) -> None:
        """Adds a code object of the job's, nested code included."""
        if is_file_of_job(code.co_filename) and object.__hash__(code) not in self.codes:
            self.codes[object.__hash__(code)] = code
            for const in code.co_consts:
                if isinstance(const, CodeType):
                    self.add_code(const)


_MAY_HOLD_CODE = frozenset(
    {FunctionType, MethodType, staticmethod, classmethod, property, functools.cached_property,
     functools.partial, functools._lru_cache_wrapper, type}
)  # fmt: skip


_WRAPPED = ("__func__", "__wrapped__", "func", "fget", "fset", "fdel")
"""Where these hold what they wrap."""


def _file_of(cls: type) -> str:
    """The file of a class's module; of one of C code, or of none, as a library's."""
    module = sys.modules.get(str(getattr(cls, "__module__", "")))
    if module is not None and module.__name__ == "__main__":
        return str(getattr(module, "__file__", "__main__"))
    return str(getattr(module, "__file__", None) or "<frozen none>")
