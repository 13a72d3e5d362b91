"""What the text of a module binds at its top level, statement by statement.

Of a module that is not loaded nothing else tells what its names stand for, and of one that is loaded, what
its values were made from.

Invariants:
    1. Every name that is bound when the module is loaded is in `bound`, `statements`, or behind a star.
    2. What a name stands for is in its statements, conditions around them included; what only speaks of it
       (`CONFIG.update(...)`, `@register` where `register` writes into it) is among them.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType

from prepcache.keys.code.facts import Facts, Import, asked_in, facts_of
from prepcache.keys.code.local_imports import Bound
from prepcache.keys.code.questions import READERS
from prepcache.keys.code.syntax import code_of, syntax_of

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_PLAIN = (*_SCOPES, *_IMPORTS, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Delete)
_OPENING = (b"globals()", b"setattr(", b"exec(", b"vars()", b"locals()", b"sys.modules")
_AS_TEXT = __future__.annotations.compiler_flag


@dataclass(eq=False)
class Statement:
    """A statement, or what a compound one asks before it runs those within."""

    nodes: list[ast.stmt]
    """Itself, and the conditions around it."""
    is_definition: bool = False
    """Whether it is a function or class without decorators."""

    @cached_property
    def code(self) -> CodeType:
        """What it compiles to; annotations, which count by text alone, are not evaluated."""
        module = ast.fix_missing_locations(ast.Module(list(self.nodes), []))
        return code_of(module, "<outline>", _AS_TEXT)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """What is imported when what it binds is called, or by a call."""
        return tuple(one for facts in self._facts for one in facts.imports)

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether it looks names or modules up by text."""
        return any(facts.is_dynamic for facts in self._facts)

    @cached_property
    def asked(self) -> tuple[list[str], list[str]]:
        """Names by which it asks for what it does not name (questions.py), and what stands in it as text and
        may name environment variables."""
        return asked_in(ast.Module(list(self.nodes), []), READERS)

    @cached_property
    def variables(self) -> list[str]:
        """The environment variables that it names."""
        return [name for facts in self._facts for name in facts.variables]

    @cached_property
    def _facts(self) -> list[Facts]:
        return [facts_of(node) for node in self.nodes]


@dataclass(slots=True)
class Outline:
    """The names of one module's top level."""

    bound: dict[str, list[Bound]] = field(default_factory=dict)
    """By imports."""
    statements: dict[str, list[Statement]] = field(default_factory=dict)
    """By all else, and what speaks of them."""
    assigned: set[str] = field(default_factory=set)
    """Names that something other than an import binds."""
    stars: list[Bound] = field(default_factory=list)
    dynamic: list[Statement] = field(default_factory=list)
    """Those that run by themselves and may bind any name."""
    is_open: bool = False
    """Whether the module may bind names that do not stand in it (`globals().update(...)`)."""
    _bodies: dict[str, set[str]] = field(default_factory=dict)
    _acting: list[tuple[set[str], Statement]] = field(default_factory=list)

    def names(self) -> list[str]:
        """What may be looked up in the module."""
        return sorted(self.bound.keys() | self.assigned)

    def _add(self, node: ast.stmt, around: list[ast.stmt]) -> None:
        if not isinstance(node, _PLAIN):
            self._add_compound(node, around)
        elif isinstance(node, _IMPORTS):
            for name, what in _bound_by(node):
                if name == "*":
                    self.stars.append(what)
                    continue
                self.bound.setdefault(name, []).append(what)
                self._note([name] if around else [], Statement(around))
        else:
            statement = Statement([*around, node], isinstance(node, _SCOPES) and not node.decorator_list)
            binds = {node.name} if isinstance(node, _SCOPES) else set(_stored(node))
            self.assigned |= binds
            self._note(binds | _spoken_of(node), statement)
            if isinstance(node, _SCOPES):
                self._bodies.setdefault(node.name, set()).update(_names(node))
            elif statement.is_dynamic:
                self.dynamic.append(statement)
            if acting := _acting(node):
                self._acting.append((acting, statement))

    def _add_spoken_of(self) -> None:
        """Notes what is spoken of by functions of the module that run when it is loaded."""
        for acting, statement in self._acting:
            spoken, waiting = set(acting), list(acting)
            while waiting:
                more = self._bodies.get(waiting.pop(), set()) - spoken
                spoken |= more
                waiting += more
            self._note(sorted(spoken - acting), statement)

    def _add_compound(self, node: ast.stmt, around: list[ast.stmt]) -> None:
        asked, within = _parts(node)
        conditions: list[ast.stmt] = [*around, *(ast.Expr(part) for part in asked)]
        binds = set(_stored_by(node))
        self.assigned |= binds
        spoken = {name for part in asked for name in _names(part)}
        self._note(binds | spoken, Statement(conditions))
        for child in within:
            self._add(child, conditions)

    def _note(self, names: set[str] | list[str], statement: Statement) -> None:
        for name in names:
            self.statements.setdefault(name, []).append(statement)


@lru_cache(maxsize=512)
def outline_of(text: bytes) -> Outline:
    """The outline of a module's text.

    Raises:
        SyntaxError, ValueError: it is no text of Python's.
    """
    outline = Outline(is_open=any(word in text for word in _OPENING))
    for node in syntax_of(text).body:
        outline._add(node, [])
    outline._add_spoken_of()
    return outline


def _bound_by(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Bound]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, Bound(node.level, node.module or "", alias.name)
        elif alias.asname:
            yield alias.asname, Bound(0, alias.name)
        else:
            top = alias.name.partition(".")[0]
            yield top, Bound(0, top)


def _parts(node: ast.AST) -> tuple[list[ast.expr], list[ast.stmt]]:
    """What a compound statement evaluates itself, and the statements in it that an import may run."""
    if isinstance(node, ast.If) and _is_never(node.test):
        return [], node.orelse
    asked: list[ast.expr] = []
    within: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            within.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case | ast.withitem):
            more, inner = _parts(child)
            asked += more
            within += inner
        elif isinstance(child, ast.expr) and isinstance(getattr(child, "ctx", ast.Load()), ast.Load):
            asked.append(child)
    return asked, within


def _is_never(test: ast.expr) -> bool:
    """Whether a condition does not hold in an imported module: that of scripts or type checkers."""
    if isinstance(test, ast.Compare):
        return getattr(test.left, "id", "") == "__name__" and isinstance(test.ops[0], ast.Eq)
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _stored(node: ast.AST) -> Iterator[str]:
    """The names that a node stores or deletes."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            yield child.id


def _stored_by(node: ast.stmt) -> Iterator[str]:
    """The names that a compound statement binds itself: targets of loops and contexts, and of handlers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.withitem):
            yield from _stored(child)
        elif isinstance(child, ast.match_case):
            for inner in ast.walk(child.pattern):
                if isinstance(name := getattr(inner, "name", getattr(inner, "rest", None)), str):
                    yield name


def _spoken_of(node: ast.stmt) -> set[str]:
    """The names whose objects a statement may change: of calls all, of assignments those before a dot."""
    if isinstance(node, ast.Expr):
        return set(_names(node))
    if isinstance(node, _SCOPES):
        return set()
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", node)]
    held = (t for target in targets for t in ast.walk(target) if isinstance(t, ast.Attribute | ast.Subscript))
    return {name for one in held for name in _names(one.value)}


def _acting(node: ast.stmt) -> set[str]:
    """The names of what a statement calls for what that does: decorators, calls whose result is let go."""
    if isinstance(node, _SCOPES):
        return {name for one in node.decorator_list for name in _names(one)}
    return set(_names(node)) if isinstance(node, ast.Expr) else set()


def _names(node: ast.AST) -> Iterator[str]:
    return (child.id for child in ast.walk(node) if isinstance(child, ast.Name))
