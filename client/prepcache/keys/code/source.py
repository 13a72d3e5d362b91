"""The source of what is loaded, and whether it is still what is on disk.

NOTE [ Loaded and on disk ]
    Python runs what it loaded, and the recipe is made of text. They may differ: the file was edited after
    it was imported, the checkout was replaced under the process, or a bytecode cache was believed because
    an edit kept size and mtime. So each function that is reached is looked for among the code objects
    that the text compiles to now, compared without positions (their digests are kept with the parse
    results). One that is not there is refused (`SourceChangedError`), or counts by its code object where
    something other than the import system made it.

Invariants:
    1. A definition's syntax tree is used for a function only when the text was shown to compile to it, or to
       what runs alike (alone.py). One exception: pytest's rewritten assertions compile to other code; such a
       function is only dated (its file is older than this process).
    2. What a text says beside code is used only if the loaded text said it too, as far as that is known.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

from blake3 import blake3

from prepcache import loaded
from prepcache.errors import SourceChangedError, UnkeyableError
from prepcache.keys.code.alone import (
    codes_but_imports,
    file_name_of,
    found_among,
    is_compiled_alone,
)
from prepcache.keys.code.compiled import code_digest, codes_of
from prepcache.keys.code.memory import Memory, read_stamped
from prepcache.keys.code.origins import UNREADABLE, heads_of, load_of, own_functions, tree_of
from prepcache.keys.code.parsed import Definition, Parsed, parse
from prepcache.keys.code.syntax import code_of
from prepcache.opens import is_library_file

_EXTENSIONS = tuple(EXTENSION_SUFFIXES)
MARGIN_S = 2.0
"""Seconds that a file must be older than the process: clocks of filesystems lag."""


Codes = dict[str, list[tuple[int, str]]]
"""Name of a code object to the lines and digests of those that have it."""


@dataclass(slots=True)
class Unit:
    """One loaded source that functions were compiled from: a file, or a cell of a notebook (no path)."""

    name: str
    path: str | None
    parsed: Parsed
    codes: Codes


MADE_AT_RUN_TIME = "made at run time"
"""Stands for the definition of a class that no text holds."""


class Sources:
    """Finds the definitions of loaded functions and classes. Lives for one fingerprint.

    Attributes:
        is_again: all was found before: it is looked for in the texts that were loaded, so it is no error if a
            file was edited since, or is gone.
        is_unsure: of something that is looked for again it is not known from which text it was loaded.
    """

    def __init__(self, memory: Memory) -> None:
        self.is_again = self.is_unsure = False
        self._memory = memory
        self._units: dict[str, Unit | None] = {}
        self._alone: dict[str, dict[str, list[CodeType]]] = {}
        self._loaded: dict[str, list[tuple[bytes, Unit]]] = {}
        self._differs: dict[str, bool] = {}
        self._texts: dict[str, bytes] = {}

    def unit(self, filename: str, module: dict[str, Any] | None = None) -> Unit | None:
        """The source that code with this `co_filename` was compiled from; None where there is none.

        Args:
            filename: the code object's file name: a path, or the name of a notebook cell.
            module: the globals of a function from there, for its `__file__`.
        """
        if filename not in self._units:
            self._units[filename] = self._find(filename, module or {})
        return self._units[filename]

    def _find(self, filename: str, module: dict[str, Any]) -> Unit | None:
        path = filename if filename.startswith("<") else _path_of(filename, module)
        if os.path.isfile(path) and not path.startswith("<"):
            try:
                return Unit(path, path, *self._memory.compiled(path, _codes_in))
            except UnkeyableError:
                if not module or "__name__" in module:
                    raise
                return None  # a template, in a language of its own: what was compiled from it counts
        lines = _cell_lines(filename)
        if lines:
            text = "".join(lines).encode("utf-8", "surrogatepass")
            try:
                return Unit(filename, None, parse(text, filename), _codes_in(text, filename))
            except SyntaxError:
                return None  # a cell with shell or magic lines, kept as typed: code objects count instead
        if path == module.get("__file__") and not path.startswith("<"):  # as templates are, made from text
            raise UnkeyableError(
                f"{path} is no file that can be read again, so its source cannot be counted: put the code "
                f"into a file, or give it with `python -c`, or count by hand with code=None and version=",
                path=path,
            )
        return None

    def definition(self, function: FunctionType, *, is_lazy: bool = False) -> tuple[Unit, Definition] | None:
        """The definition of a loaded function, or None where its code object must count instead.

        Args:
            is_lazy: of it only the text of its file counts; see lazy.py.

        Raises:
            SourceChangedError: if the text does not hold what is loaded.
        """
        if not self.is_again:
            return self._definition(function, is_lazy)
        texts = self._loaded_texts(file_name_of(function), function.__globals__)
        origin = load_of(function, file_name_of(function))
        for _, unit in sorted(texts, key=lambda pair: origin is None or pair[0] is not origin.text):
            if (found := _in(unit, function)) is not None:
                return found
        try:
            return self._definition(function, is_lazy)
        except UnkeyableError:
            self.is_unsure |= not texts
            return None

    def _definition(self, function: FunctionType, is_lazy: bool) -> tuple[Unit, Definition] | None:
        code, name = function.__code__, file_name_of(function)
        if is_library_file(code.co_filename) and name != code.co_filename:
            copied = self.unit(code.co_filename, function.__globals__)
            if copied is not None and (known := _in(copied, function)) is not None:
                return known  # a function of the library's, with other globals
            raise SourceChangedError(
                f"{function.__module__}.{function.__qualname__} was compiled anew, under the name of "
                f"{code.co_filename}, as %autoreload does with functions that a library has decorated: "
                f"importlib.reload the module, and import from it again",
                path=name,
            )
        unit = self.unit(name, function.__globals__)
        if unit is None:
            return None
        if is_lazy and self._is_edited(function, unit):
            raise _changed(function, unit)
        if (known := _in(unit, function)) is not None:
            return self._as_loaded(function, known)
        found = _chosen(unit, code, code.co_firstlineno)
        if found is not None and found[1].is_debug and _is_rewritten(function) and _is_old(unit):
            return found
        if unit.path is None or not _is_imported(function):
            return None  # made from other text under this name: its code counts
        # Of a function that is decorated, autoreload says that it is from the decorator's file.
        home = self.unit(str(function.__globals__.get("__file__", name)))
        for one in () if is_lazy else (unit, home):
            if one is None or _is_old(one):
                continue
            alone = found_among(self._but_imports(one).get(code.co_name, []), function)
            if alone is not None and (found := _chosen(one, alone, alone.co_firstlineno)) is not None:
                return self._as_loaded(function, found)
        if _is_old(unit):
            return None  # rewritten by a decorator: its code counts
        raise _changed(function, unit)

    def _loaded_texts(self, filename: str, module: dict[str, Any]) -> list[tuple[bytes, Unit]]:
        """The texts that were loaded from a file, the last one first; none where that is not known."""
        own = str(module.get("__file__") or "")
        path = own if filename.startswith("<") else _path_of(filename, module)
        if path not in self._loaded:
            there, loads = None, loaded.loads(path)
            with contextlib.suppress(UnkeyableError):
                there = self.unit(filename, module) if loads else None
            self._loaded[path] = found = []
            for load in reversed(loads):
                if there is not None and there.parsed.digest == blake3(load.text).hexdigest():
                    found.append((load.text, there))
                elif (compiled := _compiled(load.text, path)) is not None:
                    found.append((load.text, Unit(path, path, *compiled)))
        return self._loaded[path]

    def _has_other_text(self, unit: Unit) -> bool:
        """Whether another text than a unit's is known to have been loaded from its file."""
        if unit.name not in self._differs:
            texts = {blake3(load.text).hexdigest() for load in loaded.loads(unit.path or "")}
            self._differs[unit.name] = not texts <= {unit.parsed.digest}
        return self._differs[unit.name]

    def _is_edited(self, what: FunctionType | type, unit: Unit) -> bool:
        """Whether the text that something was loaded from is known to say something else than a unit."""
        load = load_of(what, unit.name) if self._has_other_text(unit) else None
        return load is not None and tree_of(load.text) != tree_of(self._text(unit))

    def _but_imports(self, unit: Unit) -> dict[str, list[CodeType]]:
        """What the file of a unit compiles to without its imports."""
        if unit.name not in self._alone:
            self._alone[unit.name] = codes_but_imports(self._text(unit), unit.name)
        return self._alone[unit.name]

    def _text(self, unit: Unit) -> bytes:
        """The text of a unit's file, as it was parsed."""
        if unit.name not in self._texts:
            text = b""
            with contextlib.suppress(OSError):
                text, _ = read_stamped(unit.name)
            if blake3(text).hexdigest() != unit.parsed.digest:
                raise UnkeyableError(f"{unit.name} was edited while it was read", path=unit.path)
            self._texts[unit.name] = text
        return self._texts[unit.name]

    def _as_loaded(
        self, function: FunctionType, found: tuple[Unit, Definition] | None
    ) -> tuple[Unit, Definition] | None:
        """What was found, if its head is the one that was loaded; see heads.py."""
        if found is not None and not self._is_head_loaded(function, found[0], found[1].qualname):
            raise _changed(function, found[0])
        return found

    def _is_head_loaded(self, what: FunctionType | type, unit: Unit, qualname: str) -> bool:
        """Whether a head is, as far as is known, that of the text which something was loaded from."""
        load = load_of(what, unit.name) if self._has_other_text(unit) else None
        if load is None:
            return True
        then, now = heads_of(load.text, unit.name), heads_of(self._text(unit), unit.name)
        return qualname not in then or now.get(qualname) == then[qualname]

    def class_definitions(self, cls: type, *, is_lazy: bool = False) -> tuple[Unit, list[Definition]] | None:
        """The definitions that a class may have come from: one, or several where a file repeats a name; none
        where it was written in C, or compiled to it.

        Args:
            is_lazy: as of `definition`.

        Raises:
            SourceChangedError: if the text is known to say something else than what was loaded.
        """
        module = sys.modules.get(cls.__module__)
        space = getattr(module, "__dict__", {})
        filename = _class_file(cls, space) or space.get("__file__")
        if not isinstance(filename, str) or filename.endswith(_EXTENSIONS):
            return None
        if not self.is_again:
            unit = self.unit(filename, space)
            named = [] if unit is None else _classes(unit, cls, filename)
            if unit is not None and named:
                is_edited = self._is_edited(cls, unit)
                is_lost = is_lazy and is_edited
                if is_lost or not self._is_head_loaded(cls, unit, cls.__qualname__):
                    raise _changed(cls, unit)
                if is_edited:
                    named = [d._replace(doc_digest=_loaded_docstring(cls)) for d in named]
            return None if unit is None else (unit, named)
        origin = load_of(cls, filename)
        for text, unit in self._loaded_texts(filename, space):
            if origin is not None and text is origin.text:
                return unit, _classes(unit, cls, filename)
        with contextlib.suppress(UnkeyableError):
            if (unit := self.unit(filename, space)) is not None:
                return unit, _classes(unit, cls, filename)
        return None


def _path_of(filename: str, module: dict[str, Any]) -> str:
    """Where the file is that code names.

    `python script.py` compiles under the path as typed, and the job may have changed folder since. What a
    module compiled itself, as by `exec(compile(text, "rules.py", "exec"))`, has another name than its file.
    """
    own = module.get("__file__")
    is_own = isinstance(own, str) and os.path.basename(own) == os.path.basename(filename)
    return os.path.abspath(str(own) if is_own and not os.path.isabs(filename) else filename)


def _in(unit: Unit, function: FunctionType) -> tuple[Unit, Definition] | None:
    """The definition that compiles to a function's code."""
    code = function.__code__
    digest = code_digest(code)
    lines = [line for line, known in unit.codes.get(code.co_name, ()) if known == digest]
    if not lines:
        return None
    return _chosen(unit, code, code.co_firstlineno if code.co_firstlineno in lines else min(lines))


def _classes(unit: Unit, cls: type, filename: str) -> list[Definition]:
    """The definitions of a class in a text; of several, those that its methods stand in."""
    named = unit.parsed.classes(cls.__qualname__)
    written = [f.__code__ for f in own_functions(cls) if not is_compiled_alone(f)]
    lines = [code.co_firstlineno for code in written if code.co_filename == filename]
    inside = [d for d in named if any(d.line <= line <= d.end_line for line in lines)]
    return inside if len(named) > 1 and inside else named


@lru_cache(maxsize=16)
def _compiled(text: bytes, path: str) -> tuple[Parsed, Codes] | None:
    """What a loaded text says; None if it was read in the middle of being written."""
    try:
        return parse(text, path), _codes_in(text, path)
    except UNREADABLE:
        return None


def _loaded_docstring(cls: type) -> str:
    return f"loaded:{vars(cls).get('__doc__')!r}"


def _changed(what: FunctionType | type, unit: Unit) -> SourceChangedError:
    return SourceChangedError(
        f"{what.__module__}.{what.__qualname__} is not in {unit.name} any more as it was loaded: "
        f"the file was edited after it was imported, so its text does not say what runs; start the "
        f"process again (in a notebook: run the cell again, or importlib.reload the module and import "
        f"from it again)",
        path=unit.path,
    )


def _chosen(unit: Unit, code: CodeType, line: int) -> tuple[Unit, Definition] | None:
    """The definition at a line; of two lambdas on one line, the one whose columns hold the code."""
    named = [
        d
        for d in unit.parsed.at_line(line)
        if d.kind == "function" and d.qualname.rpartition(".")[2] == code.co_name
    ]
    if len(named) > 1 and len({d.digest for d in named}) > 1:
        columns = _columns(code)
        inside = [d for d in named if columns and _holds(d, columns)]
        # Lambdas nest: the innermost that holds all of the code is the one.
        named = sorted(inside, key=lambda d: (d.end_line - d.line, d.end_column - d.column))[:1]
    return (unit, named[0]) if named else None


def _columns(code: CodeType) -> list[tuple[int, int, int, int]]:
    found = []
    for line, end_line, column, end_column in code.co_positions():
        if line and end_line and column is not None and end_column:
            found.append((line, end_line, column, end_column))
    return found


def _holds(definition: Definition, columns: list[tuple[int, int, int, int]]) -> bool:
    start, end = (definition.line, definition.column), (definition.end_line, definition.end_column)
    return all(
        start <= (line, column) and (last, last_column) <= end for line, last, column, last_column in columns
    )


def _class_file(cls: type, space: dict[str, Any]) -> str | None:
    """The file of a class's own methods, not of those that a library gave it: `dataclass`'s `__repr__`."""
    for function in own_functions(cls):
        if function.__globals__ is space and not function.__code__.co_filename.startswith("<"):
            return function.__code__.co_filename
    return None


def _cell_lines(filename: str) -> list[str]:
    """The lines of a notebook cell or of interactive input, as they were loaded."""
    entry = linecache.cache.get(filename)
    if entry is not None and len(entry) == 4:
        return list(entry[2])
    return linecache.getlines(filename) if filename.startswith("<") else []


def _codes_in(text: bytes, name: str) -> Codes:
    codes: Codes = {}
    for code in codes_of(code_of(text, name)):
        codes.setdefault(code.co_name, []).append((code.co_firstlineno, code_digest(code)))
    return codes


def _is_old(unit: Unit) -> bool:
    """Whether the file did not change since this process started; ctime cannot be set back."""
    if unit.path is None:
        return False
    return os.stat(unit.path).st_ctime + MARGIN_S <= interpreter_start()


def _is_imported(function: FunctionType) -> bool:
    """Whether the import system compiled this function from its file as it stands, with no hook between."""
    space = function.__globals__
    module = sys.modules.get(str(space.get("__name__")))
    is_plain = type(space.get("__loader__")) is SourceFileLoader
    return is_plain and module is not None and vars(module) is space


def _is_rewritten(function: FunctionType) -> bool:
    loader = function.__globals__.get("__loader__")
    return type(loader).__name__ == "AssertionRewritingHook"


@lru_cache(maxsize=1)
def interpreter_start() -> float:
    """When the oldest ancestor that runs this interpreter started, in seconds since the epoch.

    A forked worker is younger than what it inherited, so its own start would prove nothing.
    Units: seconds. 0.0 where it cannot be found, which proves nothing about any file.
    """
    try:
        boot_age = time.clock_gettime(time.CLOCK_BOOTTIME)
        ticks = os.sysconf("SC_CLK_TCK")
        mine = os.stat("/proc/self/exe")
        pid, start_ticks = os.getpid(), _start_ticks(os.getpid())
        while True:
            parent = _parent(pid)
            if parent <= 1:
                break
            exe = os.stat(f"/proc/{parent}/exe")
            if (exe.st_dev, exe.st_ino) != (mine.st_dev, mine.st_ino):
                break
            start_ticks, pid = _start_ticks(parent), parent
    except (OSError, ValueError, IndexError):
        if "start_ticks" not in locals():
            return 0.0
    return time.time() - (boot_age - start_ticks / ticks)


def _stat_fields(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _start_ticks(pid: int) -> int:
    return int(_stat_fields(pid)[19])


def _parent(pid: int) -> int:
    return int(_stat_fields(pid)[1])
