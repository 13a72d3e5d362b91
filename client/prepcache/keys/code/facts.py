"""What stands in syntax beside definitions: imports, environment variables, asserts, dynamic look-ups.

Invariants:
    1. What these functions find joins `Parsed`: whoever changes it raises `PARSE_VERSION`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

_IMPORTERS = frozenset({"import_module", "__import__"})
_DYNAMIC = frozenset({"globals", "eval", "exec"})
_OF_ENVIRONMENT = re.compile(r"[A-Z_][A-Z0-9_]*|.*\$.*", re.DOTALL)
_TEXT_LIMIT = 1000


class Import(NamedTuple):
    """One import statement, or a call of `import_module` with a literal.

    `names` are what `from` takes (`*` for all; empty for a plain import). `uses` are the attributes
    read from the name that a function-local import binds, or None when it is used as a whole.
    """

    level: int
    module: str
    names: tuple[str, ...] = ()
    uses: tuple[str, ...] | None = None


@dataclass(slots=True)
class Facts:
    """What `facts_of` found."""

    imports: tuple[Import, ...]
    variables: tuple[str, ...]
    variable_names: tuple[str, ...]
    is_debug: bool
    is_dynamic: bool
    is_far: bool
    """Whether modules are looked up under names that do not stand there (`sys.modules[kind.__module__]`)."""


def facts_of(node: ast.AST) -> Facts:
    """What stands under a node, definitions within it included."""
    finder = _Finder(node)
    for child in ast.iter_child_nodes(node):
        finder.visit(child)
    return finder.facts()


def asked_in(tree: ast.Module, readers: Container[str]) -> tuple[list[str], list[str]]:
    """The readers that a text names, and what stands in it as text and may name environment variables; of a
    text that speaks of settings, the names of fields are such, too."""
    asked: set[str] = set()
    texts: set[str] = set()
    fields: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            asked.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute):
            asked.add(str(_last_name(node)))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields.add(node.target.id.upper())
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= _TEXT_LIMIT
        ):
            texts.add(node.value)
    if "BaseSettings" in asked:
        texts |= fields | {text.upper() for text in texts}
    return sorted(filter(readers.__contains__, asked)), sorted(filter(_OF_ENVIRONMENT.fullmatch, texts))


class _Finder(ast.NodeVisitor):
    """Imports, environment variables, and signs of `assert` and dynamic look-ups under one node."""

    def __init__(self, node: ast.AST) -> None:
        self._is_local = not isinstance(node, ast.Module)
        self._imports: list[tuple[int, str, tuple[str, ...], str | None]] = []
        self._attributes: dict[str, set[str]] = {}
        self._bare: set[str] = set()
        self._variables: set[str] = set()
        self._variable_names: set[str] = set()
        self._is_debug = False
        self._is_dynamic = self._is_far = False

    def facts(self) -> Facts:
        imports = []
        for level, module, names, bound in self._imports:
            uses: tuple[str, ...] | None = None
            if self._is_local and bound is not None and bound not in self._bare:
                uses = tuple(sorted(self._attributes.get(bound, ())))
            imports.append(Import(level, module, names, uses))
        return Facts(
            imports=tuple(dict.fromkeys(imports)),
            variables=tuple(sorted(self._variables)),
            variable_names=tuple(sorted(self._variable_names)),
            is_debug=self._is_debug,
            is_dynamic=self._is_dynamic,
            is_far=self._is_far,
        )

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.asname or (alias.name if "." not in alias.name else None)
            self._imports.append((0, alias.name, (), bound))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = tuple(alias.name for alias in node.names)
        self._imports.append((node.level, node.module or "", names, None))

    def visit_If(self, node: ast.If) -> None:
        test = node.test
        name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", None)
        if name == "TYPE_CHECKING" and isinstance(test, ast.Name | ast.Attribute):
            for child in node.orelse:  # its body never runs
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        self._is_debug = True
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._bare.add(node.id)
        self._is_debug |= node.id == "__debug__"

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self._attributes.setdefault(node.value.id, set()).add(node.attr)
            self._is_debug |= node.value.id == "__debug__"
            if _is_modules(node):
                self._is_dynamic = self._is_far = True
        else:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        function = _last_name(node.func)
        first = node.args[0] if node.args else None
        if function in _IMPORTERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
            name = first.value.lstrip(".")
            self._imports.append((len(first.value) - len(name), name, (), None))
        elif function in _DYNAMIC and (node.args or isinstance(node.func, ast.Name)):
            self._is_dynamic = True  # `model.eval()` looks nothing up
        elif function == "vars" and first is None:
            self._is_dynamic = True
        if function == "getenv" or (
            function in ("get", "pop", "setdefault")
            and isinstance(node.func, ast.Attribute)
            and _last_name(node.func.value) in ("environ", "environb")
        ):
            self._variable(first)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        is_told = isinstance(node.slice, ast.Constant) or getattr(node.slice, "id", "") == "__name__"
        if _is_modules(node.value) and is_told:
            self._is_dynamic = True
            return
        if _last_name(node.value) in ("environ", "environb"):
            self._variable(node.slice)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if any(_last_name(other) in ("environ", "environb") for other in node.comparators):
            self._variable(node.left)
        self.generic_visit(node)

    def _variable(self, node: ast.AST | None) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            value = node.value
            self._variables.add(value if isinstance(value, str) else value.decode("utf-8", "replace"))
        elif isinstance(node, ast.Name):
            self._variable_names.add(node.id)


def _is_modules(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "modules" and _last_name(node.value) == "sys"


def _last_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None
