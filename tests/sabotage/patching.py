"""Replaces one thing of the product by name, so that a test can be seen to fail without it."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

Make = Callable[[Any], Any]
"""The replacement of a function, property, class or constant, given the original."""


def replace(target: str, make: Make) -> None:
    """Replaces `module:name` or `module:Class.name`, wherever it was imported to or is listed in a table."""
    module_name, _, path = target.partition(":")
    owner: Any = import_module(module_name)
    *classes, name = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    original = vars(owner)[name]
    changed = make(original)
    setattr(owner, name, changed)
    if isinstance(owner, ModuleType) and not isinstance(original, ModuleType):
        for module in [
            m for n, m in sys.modules.items() if n.partition(".")[0] in ("prepcache", "prepcached")
        ]:
            for other, value in list(vars(module).items()):
                if value is original:
                    setattr(module, other, changed)
                elif isinstance(value, dict) and other != "__builtins__":
                    value.update({key: changed for key, listed in value.items() if listed is original})


def gives(value: Any) -> Make:
    """A function that does nothing but return this."""
    return lambda original: lambda *args, **kwargs: value


nothing = gives(None)


def becomes(value: Any) -> Make:
    return lambda original: value


def without(*names: str, **others: Any) -> Make:
    """A module in whose place these functions do nothing, or are others."""
    return lambda module: SimpleNamespace(**{**vars(module), **dict.fromkeys(names, _ignore), **others})


def unchecked(condition: str) -> Make:
    """A function without its one `if` whose condition contains this text, as `ast.unparse` writes it."""

    def make(original: Any) -> Any:
        tree = ast.parse(textwrap.dedent(inspect.getsource(original)))
        found = [n for n in ast.walk(tree) if isinstance(n, ast.If) and condition in ast.unparse(n.test)]
        assert len(found) == 1, f"{condition!r} is in {len(found)} conditions of {original.__qualname__}"
        found[0].test = ast.Constant(False)
        (function,) = tree.body
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        namespace: dict[str, Any] = {}
        code = compile(ast.fix_missing_locations(tree), inspect.getsourcefile(original) or "", "exec")
        exec(code, original.__globals__, namespace)
        return namespace[function.name]

    return make


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""
