"""What code asks for beside what it names: docstrings, annotations, subclasses, environment variables,
the command line, the working directory, the user's home and folder for temporary files, the backends of
tokenizers, and the words that spaCy met.

Most code asks for none of these, and then they do not count; once some code that is reached does, they count
for all that is reached.

Invariants:
    1. What was asked for once stays asked for: the order in which code is noted does not matter.
"""

from __future__ import annotations

import dis
import itertools
import os
import re
import sys
import types
import typing
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from prepcache.databases import file_under
from prepcache.keys.code.describe import SCALARS
from prepcache.keys.code.fingerprint import nested
from prepcache.keys.code.names import all_names, global_chains

_DOC_READERS = frozenset({"__doc__", "getdoc"})
_SOURCE_READERS = frozenset({"getsource", "getsourcelines", "getcomments"})
_MODULE_READERS = frozenset({"getmodule", "__globals__", "f_globals"})
_ANNOTATION_READERS = frozenset(
    {"__annotations__", "get_annotations", "get_type_hints", "getfullargspec", "signature"}
)
_BACKEND_READERS = frozenset({"backend_tokenizer", "_tokenizer"})
_STRING_READERS = frozenset({"strings", "StringStore"})
_VARIABLE_READERS = frozenset({"environ", "environb", "getenv", "getenvb"})
_ARGUMENT_READERS = frozenset(
    {
        "parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args",
        "parse_args_into_dataclasses", "from_cli", "docopt", "argv",
    }
)  # fmt: skip
"""They take the command line where they are given none: argparse's, transformers', omegaconf's."""
_CWD_READERS = frozenset({"cwd", "getcwd", "getcwdb"})
_ABSOLUTE_MAKERS = frozenset({"absolute", "abspath", "realpath", "resolve"})
_SETTINGS_READERS = frozenset({"BaseSettings"})
_TEMPORARY_READERS = frozenset({"gettempdir", "gettempdirb"})
_PATHS = frozenset({"Path", "PurePath"})
_DYNAMIC = frozenset({"globals", "eval", "exec"})
_BETWEEN = frozenset({"PUSH_NULL", "PRECALL", "EXTENDED_ARG", "NOP", "CACHE"})
_VARIABLE = re.compile("_*[A-Za-z][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
"""As a shell, `os.path.expandvars` and libraries that read settings write a variable into a text."""
_FIELD = re.compile(r"\{[\w.\[\]]+[!:}]|%\(\w+\)")
"""What `str.format` and `%` put something in place of: `{NAME}`, `{e[NAME]}`, `%(NAME)s`."""
_CONSTANT = re.compile("[A-Z][A-Z0-9_]+")
_LONGEST_PATH = 4096
_OF_SESSION = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|TERM|LANG|LANGUAGE|DISPLAY|HOST|HOSTNAME|NAME|MAIL|EDITOR"
    "|TMPDIR|COLUMNS|LINES|RANK|WORLD_SIZE|CUDA_VISIBLE_DEVICES|(LC|SSH|XDG|LOCAL|MASTER|SLURM)_.*"
)
"""Variables that differ from job to job, and whose names are used for other things."""


class Questions:
    """What the code that is reached asks for. Grows by `note` and `note_global`."""

    def __init__(self) -> None:
        self.docs = False
        self.sources = False
        self.modules = False
        self.dynamic = False
        self.annotations = False
        self.subclasses = False
        self.variables = False
        self.backends = False
        self.strings = False
        self.arguments = False
        self.cwd = False
        self.home = False
        self.temporary = False
        self._texts: set[str] = set()
        """What stands as text in the code: any of it may name an environment variable."""
        self._references: set[str] = set()
        """Names that stand as `$NAME` or `${NAME}` in texts."""
        self._words: set[str] = set()
        """The words of longer texts in the code, which may name a variable where the code reads them."""
        self._fields: set[str] = set()
        """The words in the fields of texts that are formats."""
        self._prefixes: set[str] = set()
        self._held = 0

    def note(self, code: CodeType) -> None:
        """Notes what a code object, nested code included, may ask for."""
        names = all_names(code)
        self._note_names(names)
        self.modules |= _looks_far(code)
        has_settings = not _SETTINGS_READERS.isdisjoint(names)
        for const in constants_in(code):
            self._note_constant(const)
            if has_settings and isinstance(const, str):  # of fields, in the body of a class
                self._texts.add(const.upper())

    def _note_names(self, names: set[str]) -> None:
        self.docs |= not _DOC_READERS.isdisjoint(names)
        self.sources |= not _SOURCE_READERS.isdisjoint(names)
        self.modules |= not _MODULE_READERS.isdisjoint(names)
        self.annotations |= not _ANNOTATION_READERS.isdisjoint(names)
        self.subclasses |= "__subclasses__" in names
        self.strings |= not _STRING_READERS.isdisjoint(names)
        self.variables |= not (_VARIABLE_READERS | _SETTINGS_READERS).isdisjoint(names)
        self.arguments |= not _ARGUMENT_READERS.isdisjoint(names)
        self.cwd |= not _CWD_READERS.isdisjoint(names) or _makes_absolute(names)
        self.home |= "expanduser" in names or ("home" in names and not _PATHS.isdisjoint(names))
        self.temporary |= not _TEMPORARY_READERS.isdisjoint(names)
        self.backends |= not _BACKEND_READERS.isdisjoint(names)

    def note_global(self, value: Any) -> None:
        """Notes a global that code reads: one may be `os.environ` by another name, or a variable's name."""
        self.variables |= any(value is one for one in (os.environ, os.environb, os.getenv, os.getenvb))
        self.modules |= value is sys.modules
        self._note_constant(value)

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
            self._note_places(text)

    def _note_places(self, text: str) -> None:
        """Notes the names in a text in place of which something is put."""
        if "$" in text:
            self._references.update(one or other for one, other in _REFERENCE.findall(text))
        if "{" in text or "%(" in text:
            self._fields.update(word for field in _FIELD.findall(text) for word in _VARIABLE.findall(field))

    def named_variables(self, held: set[str]) -> list[str]:
        """The environment variables that are set and that some text in the code, or in a value, names.

        Where no code that is reached reads the environment, a library may, by a name that is given to it.
        Where some does, it may put a name together, or choose names, by a text that ends in `_`, and find
        one within a text: `"{NAME}/x".format(**os.environ)`, `"ONE TWO".split()`.

        Args:
            held: what stands as text in values, which may be words of a vocabulary: those of the session
                do not count.
        """
        if len(held) != self._held:
            self._held = len(held)  # they only grow, and may be a million
            for text in held:
                self._note_places(text)
                if text.endswith("_"):
                    self._prefixes.add(text)
        in_values = held.intersection(os.environ) | self._prefixes
        in_values = {t for t in in_values if _VARIABLE.fullmatch(t) and not _OF_SESSION.fullmatch(t)}
        names = self._texts | in_values
        prefixes: tuple[str, ...] = ()
        if self.variables:
            names |= self._fields | {word for word in self._words if not _OF_SESSION.fullmatch(word)}
            prefixes = tuple(n for n in names if n.endswith("_") and not _OF_SESSION.fullmatch(n))
        else:
            names = {n for n in names if _CONSTANT.fullmatch(n) and not _OF_SESSION.fullmatch(n)}
        wanted = names | self._references
        return sorted(name for name in os.environ if name in wanted or name.startswith(prefixes))


def is_dynamic(code: CodeType) -> bool:
    """Whether code looks up globals or modules by text (`globals()`, `eval`, `sys.modules[...]`)."""
    chains = global_chains(code)
    by_module = {chain[0] for chain in chains.get("builtins", ()) if chain}
    return not _DYNAMIC.isdisjoint(chains.keys() | by_module) or looks_up_modules(code)


def looks_up_modules(code: CodeType) -> bool:
    """Whether code looks modules up in `sys.modules`."""
    return any(chain[:1] == ("modules",) for chain in global_chains(code).get("sys", ()))


def _looks_far(code: CodeType) -> bool:
    """Whether code looks modules up by names that do not stand there (`sys.modules[kind.__module__]`)."""
    for one in nested(code) if looks_up_modules(code) else ():
        steps = [step for step in dis.get_instructions(one) if step.opname not in _BETWEEN]
        for step, following in itertools.pairwise(steps):
            is_there = following.opname == "LOAD_CONST" or following.argval == "__name__"
            if step.argval == "modules" and not is_there:
                return True
    return False


def variables_in(code: CodeType, space: dict[str, Any]) -> Iterator[str]:
    """The environment variables that code names where it asks for them, by a literal or by a global."""
    for one in nested(code):
        if _VARIABLE_READERS.isdisjoint(one.co_names):
            continue
        steps = [step for step in dis.get_instructions(one) if step.opname not in _BETWEEN]
        for at, step in enumerate(steps):
            if step.argval not in _VARIABLE_READERS:
                continue
            if steps[at + 1 : at + 2] and steps[at + 1].opname == "CONTAINS_OP":
                near = steps[max(at - 2, 0) : at]  # `"NAME" in os.environ`
            else:
                near = steps[
                    at + 1 : at + 3
                ]  # `os.environ["NAME"]`, `os.environ.get("NAME")`, `getenv("NAME")`
            for other in near:
                is_global = other.opname == "LOAD_GLOBAL"
                value = space.get(other.argval) if is_global else other.argval
                value = os.fsdecode(value) if isinstance(value, bytes) else value
                if isinstance(value, str) and (is_global or other.opname == "LOAD_CONST"):
                    yield value
                    break


def _makes_absolute(names: set[str]) -> bool:
    """Whether code makes paths absolute, other than that of its own file."""
    return not _ABSOLUTE_MAKERS.isdisjoint(names) and "__file__" not in names


def constants_in(code: CodeType) -> Iterator[Any]:
    """The constants of a code object, nested code included."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from constants_in(const)
        else:
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


def files_named_in(function: FunctionType) -> Iterator[str]:
    """The texts that stand in a function's code, nested code included, and name a file that is there now.

    Not those that are only handed to `open`, of which an event tells, or to a `Path`, whose text counts
    when it is built: these also tell whether a file is written.
    """
    code, has_own_open = function.__code__, "open" in function.__globals__
    for text in texts_in(code):
        if _names_file(text) and not _is_told(code, text, has_own_open):
            yield text
        yield from files_quoted_in(text)


def files_quoted_in(text: str) -> Iterator[str]:
    """The paths in quotation marks within a text that name a file that is there now, as those in SQL do."""
    for mark in ("'", '"'):
        pieces = text.split(mark)
        yield from filter(_names_file, pieces if len(pieces) > 1 else ())


def _names_file(text: str) -> bool:
    is_path = not {"/", "."}.isdisjoint(text) and len(text) <= _LONGEST_PATH and "\n" not in text
    return is_path and file_under(text) is not None


def _is_told(code: CodeType, text: str, has_own_open: bool) -> bool:
    """Whether each place where a text stands is the first argument of a call that tells of it."""
    is_told = False
    for step in dis.get_instructions(code):
        if step.opname == "PUSH_NULL":
            continue
        const = step.argval if step.opname in ("LOAD_CONST", "RETURN_CONST") else None
        parts = const if isinstance(const, tuple | frozenset) else (const,)
        if text in parts and not (const == text and is_told):
            return False
        is_told = step.argval in _PATHS and step.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD")
        is_told |= step.argval == "open" and step.opname == "LOAD_GLOBAL" and not has_own_open
    return all(_is_told(const, text, has_own_open) for const in code.co_consts if isinstance(const, CodeType))


def is_alias(value: Any) -> bool:
    """Whether a value stands for types, and may hold code: `Annotated[int, AfterValidator(check)]`."""
    return typing.get_origin(value) is not None or type(value).__name__ == "TypeAliasType"


def named_in(annotation: Any) -> Iterator[Any]:
    """The classes and functions in an annotation, and the annotation itself if it may hold more."""
    if isinstance(annotation, FunctionType | type) or is_alias(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        yield from named_in(part)


def annotation_shape(annotation: Any) -> str:
    """What an annotation says, by names: whatever is given a function may read its annotations."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return f"{annotation.__module__}.{annotation.__qualname__}"
    if isinstance(annotation, SCALARS):
        return repr(annotation)
    kind = typing.get_origin(annotation) or type(annotation)
    parts = annotation if isinstance(annotation, list | tuple) else typing.get_args(annotation)
    name = getattr(annotation, "__name__", "")
    return f"{annotation_shape(kind)} {name}[{', '.join(map(annotation_shape, parts))}]"


_TYPING = frozenset({"typing", "typing_extensions", "annotationlib"})
_NO_DATA = type | types.EllipsisType | ModuleType


def data_in(annotation: Any) -> Iterator[Any]:
    """What an annotation holds that is no type: `LIMIT` in `Annotated[int, LIMIT]`."""
    parts = annotation if isinstance(annotation, list) else typing.get_args(annotation)
    for part in parts:
        yield from data_in(part)
    is_type = annotation is None or isinstance(annotation, _NO_DATA) or type(annotation).__module__ in _TYPING
    if not (is_type or is_alias(annotation) or isinstance(annotation, list)):
        yield annotation


def may_be_named(value: Any, rest: list[str], in_text: bool) -> bool:
    """Whether what an annotation or decorator names counts: code, what stands for types, in text also data.

    Args:
        value: what the first name stands for; None for what is not there.
        rest: the names behind it.
        in_text: whether the annotation is text.
    """
    if isinstance(value, ModuleType):
        return bool(rest)
    is_code = isinstance(value, FunctionType | type) or is_alias(value)
    return is_code or (in_text and any(True for _ in data_in(value)))
