"""What code asks for beside what it names: docstrings, subclasses, environment variables, the command line,
names in texts (`globals()`, `table.query("size > @LIMIT")`), files whose paths stand in it.

Most code asks for none of these, and then they do not count. Once some reached code does, they count for
all that is reached, in whatever order code is noted.
"""

from __future__ import annotations

import dis
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, ForwardRef, Literal, get_args, get_origin

from prepcache.keys.code.fingerprint import nested
from prepcache.keys.code.names import FRAME_READERS, all_names, global_chains

_TOPICS = {
    "docs": {"__doc__", "getdoc"},
    "sources": {"getsource", "getsourcelines", "getcomments"},
    "modules": {"getmodule", "__globals__", "f_globals"},
    "subclasses": {"__subclasses__"},
    # What a started process reads: `subprocess.run("ls $DATA_ROOT", shell=True)`.
    "variables": {
        "environ", "environb", "getenv", "getenvb", "BaseSettings", "expandvars",
        "subprocess", "Popen", "popen", "system",
    },
    # What takes the command line where it is given none: argparse's, transformers', omegaconf's.
    "arguments": {
        "parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args",
        "parse_args_into_dataclasses", "from_cli", "docopt", "argv",
    },
    "cwd": {"cwd", "getcwd", "getcwdb", "absolute", "abspath", "realpath", "resolve"},
    "home": {"expanduser"},
    "frames": FRAME_READERS,
}  # fmt: skip
OF_REACHED, ANY = "modules", "any module"
"""The topics of code that looks modules up by their names."""
_DYNAMIC = frozenset({"globals", "eval", "exec"})
_BETWEEN = frozenset({"PUSH_NULL", "PRECALL", "EXTENDED_ARG", "NOP", "CACHE"})
_TAKES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM"})
_LOOKS_UP = frozenset({"BINARY_SUBSCR", "CALL", "LOAD_CONST"})
"""What follows a name that stands in the code: its use, or what is given beside it."""
_VARIABLE = re.compile("_*[A-Za-z][A-Za-z0-9_]*")
_CONSTANT = re.compile("[A-Z][A-Z0-9_]+")
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_LITERAL = re.compile(r"\bLiteral\[[^]]*]")
_LONGEST_PATH = 4096
_LONGEST = 10_000
"""Characters of a text that may be an expression or a statement."""
_OF_SESSION = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|TERM|LANG|LANGUAGE|DISPLAY|HOST|HOSTNAME|NAME|MAIL|EDITOR"
    "|TMPDIR|COLUMNS|LINES|RANK|WORLD_SIZE|CUDA_VISIBLE_DEVICES|(LC|SSH|XDG|LOCAL|MASTER|SLURM)_.*"
)
"""Variables that differ from job to job, and whose names are used for other things."""


class Questions:
    """What the code that is reached asks for. `held`: what stands as text in values."""

    def __init__(self, held: set[str]) -> None:
        self.topics: set[str] = set()
        self.texts: set[str] = set()
        self._held = held
        self._words: set[str] = set()
        """The words in texts of the code and of values, as far as they were looked into."""
        self._seen = 0

    def note_code(self, code: CodeType) -> None:
        names = all_names(code)
        self._note_names(names)
        self.topics |= module_look_ups(code)
        texts = set(texts_in(code))
        self.texts |= texts
        if "BaseSettings" in names:  # of fields, in the body of a class
            self.texts.update(map(str.upper, texts))
        # `getattr(kind, "__doc__")` asks as `kind.__doc__` does.
        self._note_names({text for text in texts if text.startswith("__")})

    def note_global(self, value: Any) -> None:
        """Notes a global that code reads: one may be `os.environ` by another name, or a variable's name."""
        if any(value is one for one in (os.environ, os.environb, os.getenv, os.getenvb)):
            self.topics.add("variables")
        if isinstance(value, str | bytes):
            self.texts.add(os.fsdecode(value))
            if os.fsdecode(value).startswith("__"):
                self._note_names({os.fsdecode(value)})

    def _note_names(self, names: set[str]) -> None:
        for topic, askers in _TOPICS.items():
            # `Path(__file__).resolve()` leads to the same place from everywhere.
            if not askers.isdisjoint(names) and not (topic == "cwd" and "__file__" in names):
                self.topics.add(topic)
        if "home" in names and not names.isdisjoint({"Path", "PurePath"}):
            self.topics.add("home")

    def variables(self) -> list[str]:
        """The environment variables that are set and whose names stand in the code or in a value.

        Where reached code reads the environment, the name may also stand within a text
        (`"{NAME}/x".format(**os.environ)`), and what ends in `_` is the beginning of one.
        """
        if "variables" not in self.topics:
            named = {*os.environ}.intersection(self.texts | self._held)
            return sorted(n for n in named if _CONSTANT.fullmatch(n) and not _OF_SESSION.fullmatch(n))
        if self._seen != (size := len(self.texts) + len(self._held)):  # they only grow, and may be a million
            self._seen = size
            self._words.update(word for text in self.texts | self._held for word in _VARIABLE.findall(text))
        words = {word for word in self._words if not _OF_SESSION.fullmatch(word)}
        prefixes = tuple(word for word in words if word.endswith("_"))
        wanted = words | {text for text in self.texts if text.strip("_")}  # a shell sets `_`
        return sorted(name for name in os.environ if name in wanted or name.startswith(prefixes))


def names_in_texts(texts: Iterable[str]) -> set[str]:
    return {name for text in texts if len(text) <= _LONGEST for name in _NAME.findall(text)}


def names_in_annotations(annotations: Iterable[Any], space: Mapping[str, Any]) -> set[str]:
    """Dotted names in texts in annotations (not in `Literal`), also of globals that they name."""
    found: set[str] = set()
    waiting = list(annotations)
    while waiting:
        one = waiting.pop()
        one = one.__forward_arg__ if isinstance(one, ForwardRef) else one
        if isinstance(one, str):
            names = names_in_texts([_LITERAL.sub("", one)]) - found
            found |= names
            waiting.extend(space[name] for name in names if name in space)
        elif get_origin(one) is not Literal:
            waiting.extend(one if isinstance(one, list) else get_args(one))  # a list of a `Callable`'s
    return found


def is_dynamic(code: CodeType) -> bool:
    """Whether code looks up globals or modules by text (`globals()`, `eval`, `sys.modules[...]`)."""
    chains = global_chains(code)
    by_module = {chain[0] for chain in chains.get("builtins", ()) if chain}
    return not _DYNAMIC.isdisjoint(chains.keys() | by_module) or OF_REACHED in module_look_ups(code)


@functools.lru_cache(maxsize=20_000)
def module_look_ups(code: CodeType) -> set[str]:
    """What code may find in `sys.modules`, or by `__import__`: modules of what is reached, or any.

    A module's own name (`sys.modules[__name__]`, `sys.modules[cls.__module__]`) leads to what is reached.
    """
    found = set()
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
            first, then, *_ = (*(s for s in steps[at + 1 : at + 4] if s.argval != "get"), step, step)
            is_literal = first.opname == "LOAD_CONST" and then.opname in _LOOKS_UP
            is_own = first.argval == "__name__" or then.argval == "__module__"
            if step.argval == "modules":
                found.add(OF_REACHED)
            if not (is_literal or is_own or first.opname == "CONTAINS_OP"):
                found.add(ANY)
    return found


def texts_in(code: CodeType) -> Iterator[str]:
    """The texts among the constants of code, nested code included; bytes as names of files."""
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
