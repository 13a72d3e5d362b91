"""What code asks for beside what it names: docstrings, subclasses, environment variables, the command line,
names in texts (`globals()`, `table.query("size > @LIMIT")`), files whose paths stand in it.

Most code asks for none of these, and then they do not count; once some code that is reached does, they count
for all that is reached.

Invariants:
    1. What was asked for once stays asked for: the order in which code is noted does not matter.
    2. Whenever a question comes up, its answer is given: once, or the same again, which counts once.
"""

from __future__ import annotations

import ast
import dis
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, ForwardRef, Literal, get_args, get_origin

from prepcache.keys.code.fingerprint import docstrings, nested
from prepcache.keys.code.names import all_names, global_chains

_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
FRAME_READERS = frozenset(
    {
        "query", "eval", "evaluate", "re_evaluate", "sql", "from_query", "execute", "read_where", "dmatrix",
        "dmatrices",
    }
)  # fmt: skip
"""They look up globals of their caller by a text: pandas, numexpr, duckdb, polars, PyTables, patsy."""
_TOPICS = {
    "docs": {"__doc__", "getdoc"},
    "sources": {"getsource", "getsourcelines", "getcomments"},
    "modules": {"getmodule", "__globals__", "f_globals"},
    "subclasses": {"__subclasses__"},
    "variables": {*_ENVIRONMENT, "BaseSettings"},
    # What takes the command line where it is given none: argparse's, transformers', omegaconf's.
    "arguments": {
        "parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args",
        "parse_args_into_dataclasses", "from_cli", "docopt", "argv",
    },
    "cwd": {"cwd", "getcwd", "getcwdb"},
    "home": {"expanduser"},
}  # fmt: skip
"""What is asked for, to the names of those that ask."""
_ABSOLUTE_MAKERS = frozenset({"absolute", "abspath", "realpath", "resolve"})
_DYNAMIC = frozenset({"globals", "eval", "exec"})
_BETWEEN = frozenset({"PUSH_NULL", "PRECALL", "EXTENDED_ARG", "NOP", "CACHE"})
_VARIABLE = re.compile("_*[A-Za-z][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
"""As a shell, `os.path.expandvars` and libraries that read settings write a variable into a text."""
_FIELD = re.compile(r"\{[\w.\[\]]+[!:}]|%\(\w+\)")
"""What `str.format` and `%` put something in place of: `{NAME}`, `{e[NAME]}`, `%(NAME)s`."""
_CONSTANT = re.compile("[A-Z][A-Z0-9_]+")
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_MOST_WORDS = 1000
"""Texts in values, of which each may be the name of a global."""
_LONGEST_ANNOTATION = 200
_LONGEST_PATH = 4096
_LONGEST = 10_000
"""Characters of a text that may be an expression or a statement."""
_OF_SESSION = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|TERM|LANG|LANGUAGE|DISPLAY|HOST|HOSTNAME|NAME|MAIL|EDITOR"
    "|TMPDIR|COLUMNS|LINES|RANK|WORLD_SIZE|CUDA_VISIBLE_DEVICES|(LC|SSH|XDG|LOCAL|MASTER|SLURM)_.*"
)
"""Variables that differ from job to job, and whose names are used for other things."""


class Questions:
    """What the code that is reached asks for, and the answers. Grows as functions and classes are visited.

    Args:
        held: what stands as text in values; it grows.
    """

    def __init__(self, held: set[str]) -> None:
        self.topics: set[str] = set()
        self._held = held
        self._classes: list[tuple[str, type]] = []
        self._documented: list[tuple[str, Any]] = []
        self._homes: dict[int, dict[str, Any]] = {}
        """The namespaces that functions and classes are of."""
        self._callers: dict[int, dict[str, Any]] = {}
        """Those of functions that look up globals by a text."""
        self._expressions: set[str] = set()
        self._texts: set[str] = set()
        """What stands as text in the code and may name an environment variable."""
        self._words: set[str] = set()
        """The words of longer texts."""
        self._references: set[str] = set()
        """Names that stand as `$NAME`, `${NAME}` or `{NAME}` in texts."""
        self._prefixes: set[str] = set()
        self._seen_held = 0

    # -- questions -------------------------------------------------------------------------------------

    def note_function(self, label: str, function: FunctionType) -> None:
        self._documented.append((label, [function.__doc__, *docstrings(function.__code__)]))
        self._homes[id(function.__globals__)] = function.__globals__
        self._expressions.update(text for text in texts_in(function.__code__) if text != function.__doc__)
        if looks_up_by_text(function.__code__):
            self._callers[id(function.__globals__)] = function.__globals__

    def note_class(self, label: str, cls: type, home: ModuleType | None) -> None:
        self._classes.append((label, cls))
        self._documented.append((label, vars(cls).get("__doc__")))
        if home is not None:
            self._homes[id(vars(home))] = vars(home)

    def note_code(self, code: CodeType) -> None:
        """Notes what a code object, nested code included, may ask for."""
        names = all_names(code)
        self._note_names(names)
        if looks_up_modules(code):
            self.topics.add("modules")
        for const in constants_in(code):
            self._note_constant(const)
            if "BaseSettings" in names and isinstance(const, str):  # of fields, in the body of a class
                self._texts.add(const.upper())

    def note_global(self, value: Any) -> None:
        """Notes a global that code reads: one may be `os.environ` by another name, or a variable's name."""
        if any(value is one for one in (os.environ, os.environb, os.getenv, os.getenvb)):
            self.topics.add("variables")
        if value is sys.modules:
            self.topics.add("modules")
        if isinstance(value, str):
            self._expressions.add(value)
        self._note_constant(value)

    def _note_names(self, names: set[str]) -> None:
        self.topics.update(topic for topic, askers in _TOPICS.items() if not askers.isdisjoint(names))
        if not _ABSOLUTE_MAKERS.isdisjoint(names) and "__file__" not in names:
            self.topics.add("cwd")
        if "home" in names and not names.isdisjoint({"Path", "PurePath"}):
            self.topics.add("home")

    def _note_constant(self, const: Any) -> None:
        text = os.fsdecode(const) if isinstance(const, bytes) else const
        if not isinstance(text, str):
            return
        if text.startswith("__"):
            self._note_names({text})  # `getattr(kind, "__doc__")` asks as `kind.__doc__` does
        if _VARIABLE.fullmatch(text):
            self._texts.add(text)
        else:
            self._words.update(_VARIABLE.findall(text))
            self._note_references(text)

    def _note_references(self, text: str) -> None:
        if "$" in text:
            self._references.update(one or other for one, other in _REFERENCE.findall(text))
        if "{" in text or "%(" in text:
            fields = _FIELD.findall(text)
            self._references.update(word for field in fields for word in _VARIABLE.findall(field))

    # -- answers ---------------------------------------------------------------------------------------

    def values(self) -> Iterator[tuple[str, Any, Any]]:
        """What counts by value: labels, values, and who holds them."""
        if "docs" in self.topics:
            yield from ((f"{label}.__doc__", doc, self) for label, doc in _drained(self._documented))
        if "subclasses" in self.topics:
            for label, cls in _drained(self._classes):
                yield f"{label}.__subclasses__()", type.__subclasses__(cls), cls
        if "arguments" in self.topics:
            yield "sys.argv", sys.argv[1:], self
        if "home" in self.topics:  # files of one name are others in another's
            yield "~", os.path.expanduser("~"), self

    def modules(self) -> Iterator[ModuleType]:
        """The modules that count whole: those of all that is reached."""
        for space in list(self._homes.values()) if "modules" in self.topics else ():
            if isinstance(module := sys.modules.get(str(space.get("__name__"))), ModuleType):
                yield module

    def named_globals(self) -> Iterator[tuple[dict[str, Any], set[str]]]:
        """Namespaces of code that looks up globals by texts, and what texts name. Of very many texts in
        values, only those of more than one word count: vocabularies are full of words."""
        if self._callers:
            is_short = len(self._held) <= _MOST_WORDS
            held = [text for text in self._held if is_short or not text.isidentifier()]
            names = names_in_texts([*self._expressions, *held])
            yield from ((space, names) for space in list(self._callers.values()))

    def variables(self) -> list[str]:
        """The environment variables that are set and that some text in the code, or in a value, names.

        Where no code that is reached reads the environment, a library may, by a name that is given to it.
        Where some does, it may put a name together, or choose names, by a text that ends in `_`, and find
        one within a text: `"{NAME}/x".format(**os.environ)`, `"ONE TWO".split()`.
        """
        if len(self._held) != self._seen_held:
            self._seen_held = len(self._held)  # they only grow, and may be a million
            for text in self._held:
                self._note_references(text)
                if text.endswith("_") and _VARIABLE.fullmatch(text):
                    self._prefixes.add(text)
        named = self._held.intersection(os.environ) | self._prefixes
        named |= self._words if "variables" in self.topics else set()
        named = {n for n in named if _VARIABLE.fullmatch(n) and not _OF_SESSION.fullmatch(n)} | self._texts
        if "variables" not in self.topics:
            named = {one for one in named if _CONSTANT.fullmatch(one) and not _OF_SESSION.fullmatch(one)}
            return sorted(os.environ.keys() & (named | self._references))
        prefixes = tuple(one for one in named if one.endswith("_") and not _OF_SESSION.fullmatch(one))
        wanted = named | self._references
        return sorted(name for name in os.environ if name in wanted or name.startswith(prefixes))


def looks_up_by_text(code: CodeType) -> bool:
    """Whether code calls what looks up globals of its caller by a text."""
    return not FRAME_READERS.isdisjoint(all_names(code))


def names_in_texts(texts: Iterable[str]) -> set[str]:
    """The dotted names in texts that may be expressions or statements."""
    return {name for text in texts if len(text) <= _LONGEST for name in _NAME.findall(text)}


def names_in_annotations(annotations: Iterable[Any], space: Mapping[str, Any]) -> set[str]:
    """The dotted names in texts in annotations, but for `Literal`'s, and in the globals that they name:
    `Optional["Inner"]`, and `list[Alias]` where `Alias = Optional["Inner"]`."""
    found: set[str] = set()
    waiting = list(annotations)
    while waiting:
        names = {name for text in _texts_within(waiting.pop()) for name in _names_in(text)} - found
        found |= names
        waiting.extend(space[name] for name in names if name in space)
    return found


def _texts_within(annotation: Any) -> Iterator[str]:
    if isinstance(annotation, str):
        yield annotation
    elif isinstance(annotation, ForwardRef):
        yield annotation.__forward_arg__
    elif isinstance(annotation, list):  # the arguments of a `Callable`
        for part in annotation:
            yield from _texts_within(part)
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from _texts_within(part)


@lru_cache(maxsize=4096)
def _names_in(text: str) -> frozenset[str]:
    if len(text) > _LONGEST_ANNOTATION:
        return frozenset()
    if text.isidentifier():  # most
        return frozenset((text,))
    with suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return frozenset(_named(ast.parse(text.strip(), mode="eval").body))
    return frozenset()


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
    elif isinstance(node, ast.Constant):
        yield from _names_in(node.value) if isinstance(node.value, str) else ()
    elif not (isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")):
        for part in ast.iter_child_nodes(node):
            yield from _named(part)


def is_dynamic(code: CodeType) -> bool:
    """Whether code looks up globals or modules by text (`globals()`, `eval`, `sys.modules[...]`)."""
    chains = global_chains(code)
    by_module = {chain[0] for chain in chains.get("builtins", ()) if chain}
    return not _DYNAMIC.isdisjoint(chains.keys() | by_module) or looks_up_modules(code)


def looks_up_modules(code: CodeType) -> bool:
    """Whether code looks modules up in `sys.modules`."""
    return any(chain[:1] == ("modules",) for chain in global_chains(code).get("sys", ()))


def variables_in(code: CodeType, space: dict[str, Any]) -> Iterator[str]:
    """The environment variables that code names where it asks for them, by a literal or by a global."""
    for one in nested(code):
        if _ENVIRONMENT.isdisjoint(one.co_names):
            continue
        steps = [step for step in dis.get_instructions(one) if step.opname not in _BETWEEN]
        for at, step in enumerate(steps):
            if step.argval not in _ENVIRONMENT:
                continue
            near = steps[at + 1 : at + 3]  # `os.environ["NAME"]`, `os.environ.get("NAME")`, `getenv("NAME")`
            if near and near[0].opname == "CONTAINS_OP":
                near = steps[max(at - 2, 0) : at]  # `"NAME" in os.environ`
            for other in near:
                is_global = other.opname == "LOAD_GLOBAL"
                value = space.get(other.argval) if is_global else other.argval
                value = os.fsdecode(value) if isinstance(value, bytes) else value
                if isinstance(value, str) and (is_global or other.opname == "LOAD_CONST"):
                    yield value
                    break


def constants_in(code: CodeType) -> Iterator[Any]:
    """The constants of a code object, nested code included."""
    for one in nested(code):
        for const in one.co_consts:
            if not isinstance(const, CodeType):
                yield from const if isinstance(const, tuple | frozenset) else (const,)


def texts_in(code: CodeType) -> Iterator[str]:
    """The str constants of a code object, nested code included."""
    return (const for const in constants_in(code) if isinstance(const, str))


def paths_below(root: str | None, code: CodeType) -> set[str]:
    """The absolute paths in the checkout that stand in the code."""
    return {text for text in texts_in(code) if text.startswith(root + os.sep)} if root is not None else set()


def modules_named_in(code: CodeType) -> list[Any]:
    """What is loaded as a module that the code names by text (`sys.modules["helper"]`)."""
    found = (sys.modules.get(text) for text in sorted(set(texts_in(code))))
    return [module for module in found if module is not None]


def files_named_in(text: str) -> Iterator[str]:
    """The files that are there now under a text, or under what stands in quotation marks in it, as in SQL."""
    pieces = [piece for mark in ("'", '"') if mark in text for piece in text.split(mark)]
    return filter(_names_file, [text, *pieces])


def _names_file(text: str) -> bool:
    is_path = not {"/", "."}.isdisjoint(text) and len(text) <= _LONGEST_PATH and "\n" not in text
    return is_path and os.path.isfile(text)


def _drained(entries: list[Any]) -> list[Any]:
    found = entries.copy()
    entries.clear()
    return found
