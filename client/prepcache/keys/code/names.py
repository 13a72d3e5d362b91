"""What code names: globals and what it reads of them, attributes of an object, what it may alter; and what
most code does not ask for (docstrings, environment variables, names in texts ...): once some reached code
does, it counts for all that is reached.

Invariants:
    1. Every global that code, or code nested in it, loads by name is among its chains, with what follows in a
       chain of attribute loads; `()` stands for a use as a whole.
    2. Where an object may be read otherwise than by its attributes' names (it is passed on or stored, its
       class has own code for attributes, a text or the frame may lead to it), all of it counts.
"""

from __future__ import annotations

import builtins
import dis
import functools
import os
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from inspect import CO_OPTIMIZED
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    SimpleNamespace,
)
from typing import Any

from prepcache.keys.code.fingerprint import NAME_SHIFTS, instructions, nested
from prepcache.keys.encoding.builtins import attributes_of

_GLOBAL_LOADS = {dis.opmap.get(name) for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")}
_ATTRIBUTE_LOADS = {dis.opmap.get(name) for name in ("LOAD_ATTR", "LOAD_METHOD")}
SCALARS = (bool, int, float, complex, str, bytes, type(None))

SKIPPED_GLOBALS = {
    "__builtins__", "__name__", "__file__", "__path__", "__spec__", "__loader__", "__package__",
    "__cached__", "__annotations__", "__warningregistry__", "__debug__", "__class__",
}  # fmt: skip
QUERIES = {
    "query", "eval", "evaluate", "re_evaluate", "sql", "from_query", "execute", "read_where", "dmatrix",
    "dmatrices",
}  # fmt: skip
"""They look up globals of their caller by a text (`table.query("size > @LIMIT")`)."""
_BY_FRAME = QUERIES | {
    "dir", "exec", "globals", "locals", "vars", "f_locals", "_getframe", "currentframe", "stack",
}  # fmt: skip
_USES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_OF_VARIABLES = (*_LOADS, "STORE_FAST", "STORE_DEREF", "DELETE_")
_WHOLE = ""
_PLAIN = (staticmethod, classmethod)
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_DEREF"})
_WRITES_OF_ITEMS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_READERS = {name for kind in (tuple, frozenset, MappingProxyType) for name in dir(kind)}
_WRITERS = {name for kind in (list, dict, set, OrderedDict, deque) for name in dir(kind)} - _READERS
_WRITERS |= {"__dict__", "vars"}
"""Methods of containers that change them, and what gives the dict behind an object."""
_ANYTHING = frozenset({"setattr", "delattr", "globals", "exec", "__setattr__"})
_FIXED = (*SCALARS, tuple, frozenset, type, FunctionType, os.PathLike)
_CONTAINERS = (dict, list, set, bytearray)


@functools.lru_cache(maxsize=20_000)
def global_chains(code: CodeType) -> dict[str, set[tuple[str, ...]]]:
    """Global name to the attribute chains read from it, nested code included."""
    chains: dict[str, set[tuple[str, ...]]] = {}
    for one in nested(code):
        root = ""
        chain: tuple[str, ...] = ()
        for _, op, arg in (*instructions(one), (0, 0, 0)) if one.co_names else ():
            at = arg >> NAME_SHIFTS.get(op, 0)
            if op in _ATTRIBUTE_LOADS:
                chain = (*chain, one.co_names[at])
                continue
            if root:
                chains.setdefault(root, set()).add(chain)
            root, chain = one.co_names[at] if op in _GLOBAL_LOADS else "", ()
    return chains


@functools.lru_cache(maxsize=20_000)
def all_names(code: CodeType) -> set[str]:
    names: set[str] = set()
    for one in nested(code):  # a class body stores its docstring under the name `__doc__`
        names.update(one.co_names if one.co_flags & CO_OPTIMIZED else {*one.co_names} - {"__doc__"})
    return names


def attributes_read(owner: Any, function: Any) -> list[tuple[str, Any]] | None:
    """The attributes that a method reads of its object, also through others that it reaches; None for all."""
    cls, own = type(owner), attributes_of(owner)
    ways = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__")
    is_any, is_asked, *is_told = (_member(cls, way) is not vars(object).get(way) for way in ways)
    found: set[str] = set()
    queue, seen = [function], set()
    while queue:
        code = getattr(queue.pop(), "__code__", None)
        if code in seen:
            continue
        seen.add(code)
        if is_any or not isinstance(code, CodeType) or not code.co_argcount:
            return None
        uses = set(_uses(code, code.co_varnames[0]))
        if (_WHOLE, True) in uses or not all_names(code).isdisjoint(_BY_FRAME | {"super", "__dict__"}):
            return None
        found.update(name for name, is_read in uses if is_read)
        for name, is_read in uses:
            member = _member(cls, name)
            kind = type(member)  # exactly: a subclass may have a `__get__` of its own
            is_there = name in own or kind is FunctionType or kind in _PLAIN
            # `__getattr__` is asked for what is not there, as by torch's modules.
            if (any(is_told) and not is_read) or (is_asked and (kind is property or not is_there)):
                return None
            if kind is FunctionType:
                queue.append(member)
            elif kind is property:
                queue += [part for part in (member.fget, member.fset, member.fdel) if part is not None]
            elif kind is functools.cached_property:
                queue.append(member.func)
            elif kind in _PLAIN or (kind is MemberDescriptorType and name in own):
                continue
            elif any(hasattr(kind, way) for way in ("__get__", "__set__", "__delete__")):
                return None
    return sorted((name, own[name]) for name in found & own.keys())


def cell_chains(code: CodeType, name: str) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = {(used,) if used else () for used, _ in _uses(code, name)}
    return found if found and _BY_FRAME.isdisjoint(all_names(code)) else {()}


def is_attribute_bag(value: Any) -> bool:
    cls = type(value)
    return cls is SimpleNamespace or (cls.__module__ == "argparse" and cls.__name__ == "Namespace")


def _member(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _uses(code: CodeType, name: str) -> Iterator[tuple[str, bool]]:
    """The attributes of a variable that code uses, and whether they are read; `_WHOLE` for another use."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    for at, step in enumerate(steps):
        operand = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name not in operand or not step.opname.startswith(_OF_VARIABLES):
            continue
        is_augmented = steps[at + 1].opname == "COPY" and steps[at + 1].arg == 1  # `self.n += 1`
        is_alone = operand[-1] == name and operand.count(name) == 1 and step.opname.startswith(_LOADS)
        after = steps[at + 1 + is_augmented]
        if not is_alone or after.opname not in _USES:
            yield _WHOLE, True
            continue
        yield str(after.argval), after.opname != "STORE_ATTR"
        if is_augmented or after.opname == "DELETE_ATTR":  # which fails where there is none
            yield str(after.argval), False
    for const in code.co_consts:
        if isinstance(const, CodeType) and name in const.co_freevars:
            yield from _uses(const, name)


class Alters:
    """What some code may alter itself while it runs, told by names."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self._assigned, self._written, self._is_any = set[str](), set[str](), False
        for code in (one for outer in codes for one in nested(outer)):
            steps = list(dis.get_instructions(code))
            self._assigned.update(str(step.argval) for step in steps if step.opname in _STORES)
            self._is_any |= not _ANYTHING.isdisjoint(code.co_names)
            if not _WRITERS.isdisjoint(code.co_names) or any(s.opname in _WRITES_OF_ITEMS for s in steps):
                self._written.update(code.co_names, code.co_freevars, code.co_varnames)

    def may_alter(self, label: str, kind: type) -> bool:
        """Whether the code itself may have changed a value, whose label ends in its name."""
        name = re.findall(r"\w+", re.sub(r"#\d+$", "", label))[-1]
        if self._is_any or name in self._assigned:
            return True
        return not issubclass(kind, _FIXED) and (not issubclass(kind, _CONTAINERS) or name in self._written)


_TOPICS = {
    "docs": {"__doc__", "getdoc", "help", "render_doc"},
    "sources": {"getsource", "getsourcelines", "getcomments"},
    "modules": {"getmodule", "__globals__", "f_globals"},
    "subclasses": {"__subclasses__"},
    # What a started process reads: `subprocess.run("ls $DATA_ROOT", shell=True)`.
    "variables": {"environ", "environb", "getenv", "getenvb", "BaseSettings", "expandvars",
                  "subprocess", "Popen", "popen", "system"},
    # What takes the command line where it is given none: argparse's, transformers', omegaconf's.
    "arguments": {"parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args",
                  "parse_args_into_dataclasses", "from_cli", "docopt", "argv"},
    "cwd": {"cwd", "getcwd", "getcwdb", "absolute", "abspath", "realpath", "resolve"},
    "home": {"expanduser"},
    "frames": QUERIES,
    # Whether something is there, imports by text, and processes of Python, also in libraries.
    "questions": {"exists", "lexists", "isfile", "isdir", "getsize", "getmtime", "is_file", "is_dir", "stat",
                  "glob", "import_module", "find_spec", "find_loader", "get_loader", "resolve_name",
                  "instantiate", "locate", "get_class", "get_object", "get_method", "import_string",
                  "Process", "Pool", "ProcessPoolExecutor", "get_context", "Parallel", "Manager", "spawn",
                  "start_processes"},
    # What makes objects of classes that no code names.
    "pickles": {"load", "loads", "read_pickle", "Unpickler"},
}  # fmt: skip
ASKING = frozenset(_TOPICS["questions"])
_BETWEEN = frozenset({"PUSH_NULL", "PRECALL", "EXTENDED_ARG", "NOP", "CACHE"})
_TAKES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM"})
_LOOKS_UP = frozenset({"BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "CALL", "LOAD_CONST"})
"""What follows a name that stands in the code: its use, or what is given beside it."""
_VARIABLE = re.compile("_*[A-Za-z][A-Za-z0-9_]*")
_CONSTANT = re.compile("[A-Z][A-Z0-9_]+")
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_LONGEST_PATH = 4096
_LONGEST = 10_000
_OF_SESSION = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|TERM|LANG|LANGUAGE|DISPLAY|HOST|HOSTNAME|NAME|MAIL|EDITOR"
    "|TMPDIR|COLUMNS|LINES|RANK|WORLD_SIZE|CUDA_VISIBLE_DEVICES|(LC|SSH|XDG|LOCAL|MASTER|SLURM)_.*"
)
"""Variables that differ from job to job, and whose names are used for other things."""


class Questions:
    """What the code that is reached asks for."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.held: set[str] = set()  # texts in values
        self.texts: set[str] = set()  # in code and in globals
        self.literals: set[str] = set()  # in code alone
        self.library: set[str] = set()  # names of functions and classes of libraries in values
        self.finder = ""  # code that may look any module up

    def note_code(self, code: CodeType) -> None:
        names = all_names(code)
        self._note_names(names)
        is_found, is_any = module_look_ups(code)
        if is_found:
            self.topics.add("modules")
        if is_any:
            self.finder = self.finder or f"{code.co_name} ({os.path.basename(code.co_filename)})"
        for text in texts_in(code):
            self.literals.add(text)
            self._note_text(text)
            if "BaseSettings" in names:  # of fields, in the body of a class
                self.texts.add(text.upper())

    def note_global(self, label: str, value: Any, chains: set[tuple[str, ...]]) -> None:
        """Notes a global that code reads: what stands there by another name asks by its own."""
        if value is os.environ or value is os.environb:
            self.topics.add("variables")
        has_name = issubclass(type(value), FunctionType | BuiltinFunctionType | type)
        if has_name and value.__name__ != label.rpartition(".")[2]:
            self._note_names({value.__name__})
        is_renamed = value is sys and not label.endswith(".sys")
        is_renamed &= any(chain[:1] in ((), ("modules",)) for chain in chains)
        if is_renamed or value is sys.modules or value is builtins.__import__:
            self.finder = self.finder or label
        if isinstance(value, str | bytes):
            self._note_text(os.fsdecode(value))

    def _note_text(self, text: str) -> None:
        self.texts.add(text)
        if text.startswith("__"):  # `getattr(kind, "__doc__")` asks as `kind.__doc__` does
            self._note_names({text})

    def _note_names(self, names: set[str]) -> None:
        for topic, askers in _TOPICS.items():
            # `Path(__file__).resolve()` leads to the same place from everywhere.
            if not askers.isdisjoint(names) and not (topic == "cwd" and "__file__" in names):
                self.topics.add(topic)
        if "home" in names and not names.isdisjoint({"Path", "PurePath"}):
            self.topics.add("home")

    def may_ask(self, *, is_whole: bool) -> bool | None:
        """Whether what is reached asks "questions"; None if more may be reached than what is known."""
        if "questions" in self.topics or not ASKING.isdisjoint(self.texts | self.held | self.library):
            return True
        return False if is_whole and "pickles" not in self.topics else None

    def variables(self) -> list[str]:
        """The variables that are set and stand in texts; where code asks, also words and prefixes in them."""
        if "variables" not in self.topics:
            named = {*os.environ}.intersection(self.texts | self.held)
            return sorted(n for n in named if _CONSTANT.fullmatch(n) and not _OF_SESSION.fullmatch(n))
        found = {word for text in self.texts | self.held for word in _VARIABLE.findall(text)}
        words = {word for word in found if not _OF_SESSION.fullmatch(word)}
        prefixes = tuple(word for word in words if word.endswith("_"))
        wanted = words | {text for text in self.texts if text.strip("_")}  # a shell sets `_`
        return sorted(name for name in os.environ if name in wanted or name.startswith(prefixes))


def names_in_texts(texts: Iterable[str]) -> set[str]:
    return {name for text in texts if len(text) <= _LONGEST for name in _NAME.findall(text)}


def is_dynamic(code: CodeType) -> bool:
    """Whether code looks up globals or modules by text (`globals()`, `eval`, `sys.modules[...]`)."""
    chains = global_chains(code)
    by_module = {chain[0] for chain in chains.get("builtins", ()) if chain}
    is_by_text = not {"globals", "eval", "exec"}.isdisjoint(chains.keys() | by_module)
    return is_by_text or module_look_ups(code)[0]


@functools.lru_cache(maxsize=20_000)
def module_look_ups(code: CodeType) -> tuple[bool, bool]:
    """Whether code finds modules in `sys.modules`, and whether any: a literal counts as an import."""
    is_found = is_any = False
    tables = {"__import__", "modules"} if "sys" in all_names(code) else {"__import__"}
    for one in nested(code):
        if tables.isdisjoint((*one.co_names, *one.co_consts)):
            continue
        steps = [step for step in dis.get_instructions(one) if step.opname not in _BETWEEN]
        for at, step in enumerate(steps):
            is_call = step.opname == "LOAD_METHOD" or "NULL|self" in step.argrepr
            is_other = step.argval == "modules" and is_call  # of a network, which has such a method
            if step.opname not in _TAKES or step.argval not in tables or is_other:
                continue
            after = [s for s in steps[at + 1 : at + 4] if s.argval not in ("get", "pop")]
            first, then = (*after, step, step)[:2]
            is_literal = first.opname == "LOAD_CONST" and then.opname in _LOOKS_UP
            is_own = first.argval == "__name__" or then.argval == "__module__"
            is_found |= step.argval == "modules"
            is_any |= not (is_literal or is_own or first.opname == "CONTAINS_OP" or first.argval == "keys")
    return is_found, is_any


def texts_in(code: CodeType) -> Iterator[str]:
    """The texts among the constants of code; bytes as names of files."""
    for one in nested(code):
        for const in one.co_consts:
            for part in const if isinstance(const, tuple | frozenset) else (const,):
                if isinstance(part, str | bytes):
                    yield os.fsdecode(part)


def files_named_in(text: str) -> Iterator[str]:
    """The files that are there now under a text, or under what stands in quotation marks in it, as in SQL."""
    for piece in (text, *(piece for mark in ("'", '"') if mark in text for piece in text.split(mark))):
        is_path = not {"/", "."}.isdisjoint(piece) and len(piece) <= _LONGEST_PATH and "\n" not in piece
        if is_path and os.path.isfile(piece):
            yield piece
