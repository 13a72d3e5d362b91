"""Modules that only function-local imports bring in.

NOTE [ Lazy modules ]
    Such a module may be loaded or not when the recipe is made, and the recipe must not depend on that. So
    its files count as in `code="script"`, and of what it holds, if it is loaded, only what its text does
    not say: a constant that is no longer the literal it was bound to (`cfg.SIZE = 512` in the job), a
    function that was replaced. What is computed when the module is loaded cannot be told from what was
    set later, and counts.

    If it is not loaded, its text tells what a function of it reaches (lazy_walk.py), down to modules that
    are: what the job has set in these counts, as it would if the module were loaded.
"""

from __future__ import annotations

import ast
import os
import sys
from types import FunctionType, ModuleType
from typing import Any

from prepcache.keys.code.closure import Closure, resolve
from prepcache.keys.code.readable import SCALARS
from prepcache.keys.code.texts import Texts

_PLAIN = (*SCALARS, tuple, list, dict)


def is_as_written(closure: Closure, texts: Texts, module: str, name: str, value: Any) -> bool:
    """Whether a loaded module still holds under `name` what its text, which counts, says.

    Args:
        closure: the files that count.
        texts: what they say.
        module: the module's name.
        name: dotted, within the module.
        value: what it holds now.
    """
    if isinstance(value, staticmethod | classmethod):
        return is_as_written(closure, texts, module, name, value.__func__)
    if isinstance(value, property):
        parts = [part for part in (value.fget, value.fset, value.fdel) if part is not None]
        return all(is_as_written(closure, texts, module, name, part) for part in parts)
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
        return file in closure.parsed and value.__qualname__ == name and _is_told(closure, module, name, file)
    if isinstance(value, type):
        file = _file(sys.modules.get(str(value.__module__)))
        return file in closure.parsed and value.__qualname__ == name and _is_told(closure, module, name, file)
    return _is_constant(texts, module, name, value)


def _is_constant(texts: Texts, module: str, name: str, value: Any) -> bool:
    """Whether a value is the literal that a text binds to a name, or the text that it takes the name from."""
    origin = texts.origin(module, name)
    if origin is None:
        return False
    module, name = origin
    parsed = texts.parsed(module)
    text = parsed.literals.get(name) if parsed is not None else None
    if text is not None:
        return _is_literal(value, ast.literal_eval(text))
    return texts.is_made_in_c(module, name) and _is_held(module, name, value)


def _is_held(module: str, name: str, value: Any) -> bool:
    """Whether a library that is loaded holds plain data under a name: that of one in C nobody sets."""
    return type(value) in _PLAIN and vars(sys.modules[module]).get(name, ...) is value


def _is_literal(value: Any, literal: Any) -> bool:
    """Whether a value is what its literal text says, in type too: a subclass may print alike and act else."""
    if type(value) is not type(literal):
        return False
    if isinstance(literal, dict):
        return _is_literal(list(value.items()), list(literal.items()))
    if isinstance(literal, list | tuple):
        return len(value) == len(literal) and all(map(_is_literal, value, literal))
    if isinstance(literal, set):
        written = {element: element for element in literal}
        return value == literal and all(_is_literal(element, written[element]) for element in value)
    return bool(value == literal) if type(value) is int else repr(value) == repr(literal)


def _is_told(closure: Closure, module: str, name: str, file: str) -> bool:
    """Whether a module's text defines a name, in this file, or imports it from there, through others too."""
    wanted = {name.partition(".")[0], "*"}
    queue, seen = [module], {module}
    while queue:
        at = queue.pop()
        path = closure.modules.get(at, "")
        if path == file:
            return True
        parsed = closure.parsed.get(path)
        is_package = os.path.basename(path).startswith("__init__.")
        for statement in parsed.imports if parsed is not None else ():
            base = resolve(statement, at, is_package) if wanted & {*statement.names} else None
            if base is not None and base not in seen:
                seen.add(base)
                queue.append(base)
    return False


def _file(module: ModuleType | None) -> str:
    return str(getattr(module, "__file__", ""))
