"""What a text says of its functions and classes beside the code of functions.

NOTE [ Heads ]
    A function that is loaded is found in its file by its code (source.py). Its annotations are not in that
    code, and of a class nothing is but its methods: what pydantic makes of a field, slots, the arguments of a
    class decorator. Where the file was edited after it was loaded, these say what is loaded only if they are
    as they were in the text that was loaded.

    Left out is what is counted by its value: defaults and decorators of functions, and what a class's own
    names are bound to, if not by calls. (So what `%autoreload` puts in place, which is these and code, is
    none of a head.)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from prepcache.keys.code.syntax import syntax_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def heads(text: bytes, name: str) -> dict[str, list[str]]:
    """The heads of all functions and classes of a text, by qualified names, in their order.

    Args:
        text: of a file.
        name: what to call it in an error.

    Raises:
        SyntaxError: as `ast.parse` gives it.
    """
    found: dict[str, list[str]] = {}
    waiting: list[tuple[str, ast.AST]] = [("", syntax_of(text, name))]
    while waiting:
        scope, node = waiting.pop()
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.ClassDef):
                waiting.append((f"{scope}{inner.name}.", inner))
                found.setdefault(f"{scope}{inner.name}", []).append(_of_class(inner))
            elif isinstance(inner, _Function):
                waiting.append((f"{scope}{inner.name}.<locals>.", inner))
                found.setdefault(f"{scope}{inner.name}", []).append(_of_function(inner))
            else:
                waiting.append((scope, inner))
    return found


def _of_function(node: _Function) -> str:
    every = [
        *node.args.posonlyargs,
        *node.args.args,
        node.args.vararg,
        *node.args.kwonlyargs,
        node.args.kwarg,
    ]
    arguments = [ast.dump(argument) for argument in every if argument is not None]
    return repr((arguments, _dumped(node.returns), _dumped(getattr(node, "type_params", []))))


def _of_class(node: ast.ClassDef) -> str:
    around = (node.bases, node.keywords, node.decorator_list, getattr(node, "type_params", []))
    return repr(([_dumped(part) for part in around], list(_of_body(node.body))))


def _of_body(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, _Function | ast.ClassDef):
            continue  # has a head of its own
        if isinstance(node, ast.AnnAssign) and not _calls(node.value):
            yield _dumped((node.target, node.annotation))
        elif isinstance(node, ast.Assign) and all(map(_is_plain, node.targets)) and not _calls(node.value):
            yield _dumped(node.targets)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield _dumped(node)


def _calls(value: ast.expr | None) -> bool:
    """Whether a value is made by a call: a library may take it away and keep something else of it."""
    return value is not None and any(isinstance(node, ast.Call) for node in ast.walk(value))


def _is_plain(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and not target.id.startswith("__")


def _dumped(part: Any) -> str:
    if isinstance(part, list | tuple):
        return repr([_dumped(one) for one in part])
    return ast.dump(part) if isinstance(part, ast.AST) else repr(part)
