"""What one source file says: its imports, its definitions, the environment variables it names.

Definitions are compared as normalised syntax trees: no positions, comments, formatting or docstrings
(their text has a digest of its own, for code that reads `__doc__`).

Invariants:
    1. Two definitions have one digest exactly when their syntax trees, docstrings left out, are equal.
    2. The dump holds no field that a Python version adds empty, so digests outlive minor versions of
       `ast` where the syntax did not change.
    3. `PARSE_VERSION` rises whenever the same text would give another `Parsed`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blake3 import blake3

from prepcache.keys.code.facts import Import, facts_of
from prepcache.keys.code.syntax import syntax_of

PARSE_VERSION = 4
"""Joins the recipe and names the folder of kept parse results."""

LITERAL_LIMIT = 2000
"""Characters of a module constant's literal text that are kept; longer ones count by file only."""

DECIMAL_BITS = 2048
"""Longer ints count by their hexadecimal digits: a job may forbid decimals of 640 digits (2,126 bits)."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_SKIPPED_FIELDS = frozenset({"ctx", "type_comment", "kind", "type_ignores"})


class Definition(NamedTuple):
    """A function, class or lambda. `line` is where its first decorator or keyword stands."""

    kind: str
    qualname: str
    line: int
    end_line: int
    column: int
    end_column: int
    digest: str
    doc_digest: str
    is_debug: bool
    is_dynamic: bool
    is_far: bool
    variables: tuple[str, ...] = ()
    variable_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Dotted names that its text needs beside its code: in annotations and decorators, in a class body."""
    imports: tuple[Import, ...] = ()


@dataclass(slots=True)
class Parsed:
    """A source file, read once. `literals` holds module constants bound once, to a literal.

    Definitions are made from their rows when they are asked for: most are not.
    """

    digest: str
    imports: tuple[Import, ...]
    variables: tuple[str, ...]
    is_debug: bool
    literals: dict[str, str]
    rows: list[list[Any]]
    _by_line: dict[int, list[int]] | None = None
    _made: dict[int, Definition] = field(default_factory=dict)

    @property
    def definitions(self) -> list[Definition]:
        return [self._definition(i) for i in range(len(self.rows))]

    def at_line(self, line: int) -> list[Definition]:
        """The definitions that start on a line."""
        if self._by_line is None:
            self._by_line = {}
            for i, row in enumerate(self.rows):
                self._by_line.setdefault(row[_LINE], []).append(i)
        return [self._definition(i) for i in self._by_line.get(line, ())]

    def classes(self, qualname: str) -> list[Definition]:
        """The class definitions of a qualified name."""
        return [
            self._definition(i)
            for i, row in enumerate(self.rows)
            if row[_QUALNAME] == qualname and row[_KIND] == "class"
        ]

    def _definition(self, index: int) -> Definition:
        made = self._made.get(index)
        if made is None:
            *head, variables, variable_names, names, imports = self.rows[index]
            lists = tuple(variables), tuple(variable_names), tuple(names), _imports_from(imports)
            made = self._made[index] = Definition._make((*head, *lists))
        return made

    def to_json(self) -> list[Any]:
        """A JSON-able form, the rows as they are."""
        return [
            self.digest,
            [_import_row(i) for i in self.imports],
            list(self.variables),
            self.is_debug,
            self.literals,
            self.rows,
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> Parsed:
        digest, imports, variables, is_debug, literals, rows = data
        if any(len(row) != _ROW_LENGTH for row in rows):
            raise ValueError("rows of another form")
        return cls(digest, _imports_from(imports), tuple(variables), is_debug, dict(literals), list(rows))


_KIND, _QUALNAME, _LINE, _DOC_DIGEST = 0, 1, 2, 7
_ROW_LENGTH = len(Definition._fields)


def _import_row(statement: Import) -> list[Any]:
    uses = statement.uses
    return [statement.level, statement.module, list(statement.names), None if uses is None else list(uses)]


def _imports_from(rows: list[list[Any]]) -> tuple[Import, ...]:
    return tuple(
        Import(level, module, tuple(names), None if uses is None else tuple(uses))
        for level, module, names, uses in rows
    )


def parse(source: bytes, name: str) -> Parsed:
    """Reads one source file.

    Args:
        source: the bytes of the file, in the encoding it declares.
        name: what to call it in an error.

    Raises:
        SyntaxError: as `ast.parse` gives it; also for bytes that no encoding fits.
    """
    try:
        tree = syntax_of(source, name)
    except ValueError as error:  # null bytes
        raise SyntaxError(str(error)) from error
    reader = _Reader()
    reader.module(tree)
    whole = facts_of(tree)
    return Parsed(
        digest=blake3(source).hexdigest(),
        imports=whole.imports,
        variables=whole.variables,
        is_debug=whole.is_debug,
        literals=_literals(tree),
        rows=reader.rows,
    )


def text_of(constant: Any) -> str:
    """A constant's text; Python refuses decimals for a long int, from a length on that a job may set."""
    is_long = type(constant) is int and constant.bit_length() > DECIMAL_BITS
    return hex(constant) if is_long else repr(constant)


class _Reader:
    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def module(self, tree: ast.Module) -> None:
        for node in tree.body:
            self._dump(node, "", [])

    def _define(self, node: ast.AST, scope: str) -> bytes:
        """Records one definition and returns its digest, which stands for it in the tree around it."""
        assert isinstance(node, _DEFINITIONS)
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        qualname = f"{scope}{name}"
        inner = f"{qualname}." if isinstance(node, ast.ClassDef) else f"{qualname}.<locals>."
        out: list[bytes] = [type(node).__name__.encode()]
        docs: list[bytes] = []
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        for key in node._fields:
            value = getattr(node, key, None)
            if key in _SKIPPED_FIELDS or value is None or value == []:
                continue
            if key == "body" and isinstance(value, list):
                doc = _docstring(value)
                if doc is not None:
                    docs.append(doc.encode("utf-8", "surrogatepass"))
                    value = value[1:]
            # Decorators, defaults, annotations and bases belong to the scope around the definition.
            where = inner if key == "body" else scope
            self._field(key, value, where, out, docs)
        digest = blake3(b"\0".join(out)).hexdigest()
        facts = facts_of(node)
        line = min([node.lineno, *(d.lineno for d in decorators)])
        self.rows.append(
            [
                "class" if isinstance(node, ast.ClassDef) else "function",
                qualname,
                line,
                node.end_lineno or node.lineno,
                node.col_offset,
                node.end_col_offset or 0,
                digest,
                blake3(b"\0".join(docs)).hexdigest(),
                facts.is_debug,
                facts.is_dynamic,
                facts.is_far,
                list(facts.variables),
                list(facts.variable_names),
                _names_of(node),
                [_import_row(statement) for statement in facts.imports],
            ]
        )
        return bytes.fromhex(digest)

    def _field(self, key: str, value: Any, scope: str, out: list[bytes], docs: list[bytes]) -> None:
        out.append(b"." + key.encode())
        if isinstance(value, list):
            out.append(b"[%d" % len(value))
            for child in value:
                self._value(child, scope, out, docs)
        else:
            self._value(value, scope, out, docs)

    def _value(self, value: Any, scope: str, out: list[bytes], docs: list[bytes]) -> None:
        if isinstance(value, _DEFINITIONS):
            out.append(b"d" + self._define(value, scope))
            docs.append(bytes.fromhex(self.rows[-1][_DOC_DIGEST]))
        elif isinstance(value, ast.AST):
            self._dump(value, scope, out, docs)
        else:
            text = text_of(value).encode("utf-8", "surrogatepass")
            out.append(b"%s:%d:%s" % (type(value).__name__.encode(), len(text), text))

    def _dump(self, node: ast.AST, scope: str, out: list[bytes], docs: list[bytes] | None = None) -> None:
        docs = [] if docs is None else docs
        if isinstance(node, _DEFINITIONS):
            self._value(node, scope, out, docs)
            return
        out.append(b"(" + type(node).__name__.encode())
        for key in node._fields:
            value = getattr(node, key, None)
            if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds an empty text behind `{x:{width}}`
                value = [p for p in node.values if not (isinstance(p, ast.Constant) and p.value == "")]
            if key in _SKIPPED_FIELDS or value is None or value == []:
                continue
            self._field(key, value, scope, out, docs)
        out.append(b")")


def _docstring(body: list[ast.stmt]) -> str | None:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        value = first.value.value
        if isinstance(value, str):
            return value
    return None


def _names_of(node: ast.AST) -> list[str]:
    """What a definition's text names beside its code; see `Definition.names`."""
    found: set[str] = set()
    if isinstance(node, ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, _DEFINITIONS):
                _collect_names(child, found)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
        # What decorates a function may read its annotations (validation, dispatch).
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for part in (*node.decorator_list, *(a.annotation for a in arguments), node.returns):
            if part is not None:
                _collect_names(part, found)
    return sorted(found)


def names_in(*annotations: str) -> list[str]:
    """The dotted names in annotations that are written as text."""
    found: set[str] = set()
    for annotation in annotations:
        _collect_names(ast.Constant(annotation), found)
    return sorted(found)


def _collect_names(node: ast.AST, found: set[str]) -> None:
    dotted = _dotted(node)
    if dotted is not None:
        found.add(dotted)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= 200:
        try:
            inner = ast.parse(node.value, mode="eval").body  # an annotation written as text
        except (SyntaxError, ValueError):
            return
        if not isinstance(inner, ast.Constant):
            _collect_names(inner, found)
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _DEFINITIONS):
            _collect_names(child, found)


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return None


def _literals(tree: ast.Module) -> dict[str, str]:
    """Constants of the module and of its classes, bound once, to a literal: dotted name to its text."""
    found = _literals_in(tree.body, tree, "")
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.update(_literals_in(node.body, node, f"{node.name}."))
    return found


def _literals_in(body: list[ast.stmt], scope: ast.AST, prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    stored = [
        node.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del)
    ]
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if not isinstance(target, ast.Name) or stored.count(target.id) != 1:
            continue
        try:
            ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        try:
            text = ast.unparse(value)
        except ValueError:  # an int too long for decimals
            continue
        if len(text) <= LITERAL_LIMIT:
            found[prefix + target.id] = text
    return found
