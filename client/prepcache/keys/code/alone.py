"""Code that was compiled from one definition alone, compared with the file that the definition stands in.

NOTE [ Definitions compiled alone ]
    IPython's `%autoreload` compiles an edited function by itself, from its unparsed syntax tree, and puts the
    code into the function that is there. Some of it is other code than what its file compiles to, and runs
    alike: a call `math.floor(x)` where the compiler did not see that `math` was imported, the indentation of
    docstrings, the flag of `from __future__ import annotations`. Some is not, and does not run alike: names
    with two underscores are mangled with another class, text that spans lines is indented with its class.
    So the whole file is compiled, as it stands, but for its own imports, and code is taken for that of a
    definition there when it is the same in everything but these three.

Invariants:
    1. What is found runs as the definition in the file does: all else about its code is equal.
    2. Of several that are alike in one place of the file, none is found: what else is said of them, in
       annotations, may differ.
"""

from __future__ import annotations
import __future__

import ast
import inspect
from itertools import zip_longest
from types import CodeType, FunctionType

from prepcache.keys.code.compiled import codes_of, const_shape, shape
from prepcache.keys.code.syntax import code_of, syntax_of
from prepcache.opens import is_library_file

_CLASS = "__autoreload_class__"
"""The class in which IPython compiles a method."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPILING = {"exec", "eval", "compile"}
_DOCSTRING = "\0docstring: "
"""Begins docstrings in what is compiled here, so that none is a value of the function as well."""


def is_compiled_alone(method: FunctionType) -> bool:
    """Whether autoreload has replaced a method's code, whose lines are then not those of its file."""
    return method.__code__.co_qualname.startswith(f"{_CLASS}.")


def qualname_of(function: FunctionType) -> str:
    """The qualified name that a function's code was compiled under, in its file."""
    return function.__qualname__ if is_compiled_alone(function) else function.__code__.co_qualname


def file_name_of(function: FunctionType) -> str:
    """The name of the file that a function's text is in.

    IPython gives no name for properties, and that of a library for functions that a library has decorated.
    """
    name, home = function.__code__.co_filename, function.__globals__.get("__file__")
    if not isinstance(home, str) or is_library_file(home):
        return name
    is_elsewhere = is_library_file(name) or (name == "<string>" and is_compiled_alone(function))
    return home if is_elsewhere else name


def codes_but_imports(text: bytes, name: str) -> dict[str, list[CodeType]]:
    """The code objects of a file, by their names, compiled without the imports of the module.

    Raises:
        SyntaxError: as `compile` gives it.
    """
    tree = syntax_of(text, name)
    _drop_imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES[:2]) and ast.get_docstring(node) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            first.value.value = _DOCSTRING + str(first.value.value)
    found: dict[str, list[CodeType]] = {}
    for code in codes_of(code_of(tree, name)):
        found.setdefault(code.co_name, []).append(code)
    return found


def found_among(codes: list[CodeType], function: FunctionType) -> CodeType | None:
    """The one that runs as a function's code does and stands in its place; None if there is none, or several.

    Args:
        codes: of the code's name, from `codes_but_imports`.
    """
    code, qualname = function.__code__, qualname_of(function)
    placed = [one for one in codes if one.co_qualname == qualname]
    if not placed and is_compiled_alone(function):  # what such a method made when it ran
        tail = code.co_qualname.removeprefix(_CLASS)
        placed = [one for one in codes if one.co_qualname.endswith(tail)]
    alike = [one for one in placed if _is_alike(one, code)]
    return alike[0] if len(alike) == 1 else None


def _drop_imports(module: ast.Module) -> None:
    """Takes away the imports of a module's own scope, but for future statements."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, field, [])
            for i, one in enumerate(inside):
                if isinstance(one, ast.Import | ast.ImportFrom):
                    if getattr(one, "module", None) != "__future__":
                        inside[i] = ast.copy_location(ast.Pass(), one)
                elif not isinstance(one, _SCOPES):
                    waiting.append(one)


def _is_alike(code: CodeType, alone: CodeType) -> bool:
    """Whether code of a file, but for its imports, and code that was compiled alone are the same."""
    pairs = list(zip_longest(code.co_consts, alone.co_consts))
    same = [(one, other) for one, other in pairs if not isinstance(one, CodeType)]
    nested = [(one, other) for one, other in pairs if isinstance(one, CodeType)]
    is_ignored = not _COMPILING & {*alone.co_names}  # what they compile has the flags of their caller
    return (
        _outline(code, is_ignored) == _outline(alone, is_ignored)
        and all(_is_docstring_of(one, other) or const_shape(one) == const_shape(other) for one, other in same)
        and all(isinstance(other, CodeType) and _is_alike(one, other) for one, other in nested)
    )


def _outline(code: CodeType, is_ignored: bool) -> tuple[object, ...]:
    flags = code.co_flags & ~__future__.annotations.compiler_flag if is_ignored else code.co_flags
    return shape(code.replace(co_consts=(), co_flags=flags))


def _is_docstring_of(const: object, alone: object) -> bool:
    if not isinstance(const, str) or not const.startswith(_DOCSTRING) or not isinstance(alone, str):
        return False
    return inspect.cleandoc(const.removeprefix(_DOCSTRING)) == inspect.cleandoc(alone)
