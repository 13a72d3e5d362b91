"""Source files of the project, read without importing them: their bytes, their code and what they import.

The code is what an import would run: that of the bytecode cache if it is of this state of the file, else what
the text compiles to.

Invariants:
    1. What was read of a file is used again only under the very stamp that it was read under, and only if
       that stamp was old enough to tell a later write.
    2. Nothing is executed and nothing is written.
"""

from __future__ import annotations

import ast
import dis
import marshal
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from importlib.machinery import SourceFileLoader
from io import BytesIO
from types import CodeType
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.alters import Alters
from prepcache.keys.code.fingerprint import fingerprint, instructions, nested
from prepcache.keys.code.names import all_names
from prepcache.keys.files.stamps import Stamp, is_racy, racy_window_ns, stamp_of

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_LOAD_CONST, _LOAD_SMALL_INT = dis.opmap["LOAD_CONST"], dis.opmap.get("LOAD_SMALL_INT", -1)
_IMPORTERS = frozenset({"import_module", "__import__"})
_LOOKED_FOR = _IMPORTERS | {"TYPE_CHECKING"}
_FALSE_JUMPS = frozenset(op for name, op in dis.opmap.items() if "JUMP" in name and name.endswith("IF_FALSE"))
_read: dict[str, tuple[SourceFile, int]] = {}
_READ_LIMIT = 4096


class Import(NamedTuple):
    """One import statement, or a call of `import_module` with a literal.

    `names` are what `from` takes (`*` for all; empty for a plain import).
    """

    level: int
    module: str
    names: tuple[str, ...] = ()


class SourceFile:
    """One state of a source file.

    Args:
        stamp: device, inode, size, mtime and ctime in ns.
        data: its bytes.
        code: what they compile to.
    """

    def __init__(self, path: str, stamp: Stamp, data: bytes, code: CodeType) -> None:
        self.path = path
        self.stamp = stamp
        self.digest = blake3(data).hexdigest()
        self.code = code
        self._data = data

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """What it imports, wherever that stands."""
        return tuple(dict.fromkeys(imports_in(self.code)))

    @cached_property
    def names(self) -> set[str]:
        """Every attribute and global name in its code."""
        return all_names(self.code)

    @cached_property
    def alters(self) -> Alters:
        """What its own code may alter."""
        return Alters([self.code])

    @cached_property
    def _codes(self) -> dict[str, list[CodeType]]:
        found: dict[str, list[CodeType]] = {}
        for code in nested(self.code):
            found.setdefault(code.co_name, []).append(code)
        return found

    def makes(self, code: CodeType, *, is_only: bool = False) -> bool:
        """Whether loading the file makes code that does the same as this.

        Args:
            is_only: and no other code under the qualified name.
        """
        same = self._codes.get(code.co_name, ())
        if is_only:
            prints = {fingerprint(one) for one in same if one.co_qualname == code.co_qualname}
            return prints == {fingerprint(code)}
        return code in same or fingerprint(code) in map(fingerprint, same)

    @cached_property
    def literals(self) -> dict[str, Any]:
        """The names that its text binds once, at the top level to a literal. Others are computed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(self._data, self.path)
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        bound = Counter(name.id for name in names if not isinstance(name.ctx, ast.Load))
        found = {}
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and bound[target.id] == 1:
                with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    found[target.id] = ast.literal_eval(node.value)
        return found

    def says(self, name: str, value: Any) -> bool:
        """Whether it binds a name to this literal; an instance of a subclass is none."""
        try:
            return name in self.literals and marshal.dumps(value, 2) == marshal.dumps(self.literals[name], 2)
        except ValueError:
            return False


def archive_of(path: str) -> str | None:
    """The archive that holds a module's source, which has this path in there; None for other paths."""
    above = os.path.dirname(path)
    while above and not os.path.isdir(above):
        if os.path.isfile(above):
            return above
        above = os.path.dirname(above)
    return None


def read_source(path: str, name: str) -> SourceFile:
    """Reads a source file.

    Args:
        name: what to call it in an error.

    Raises:
        UnkeyableError: it cannot be read or compiled; the message names it and the ways out.
    """
    read_at_ns = time.time_ns()
    try:
        archive = None if os.path.isfile(path) else archive_of(path)
        known, stamp = _read.get(path), stamp_of(os.stat(archive or path))
        if (
            known is not None
            and known[0].stamp == stamp
            and not is_racy(stamp, known[1], racy_window_ns(stamp[0]))
        ):
            return known[0]
        data, stamp = _read_stamped(archive or path)
        if archive is not None:
            with ZipFile(BytesIO(data)) as files:
                data = files.read(os.path.relpath(path, archive))
        found = SourceFile(path, stamp, data, _code_of(path, stamp, data))
    except (OSError, BadZipFile, KeyError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnkeyableError(
            f"{name}: its source cannot be read ({reason}: {path}); restore it, or use "
            f"code=None and version=",
            path=path,
        ) from error
    except (SyntaxError, ValueError, EOFError, RecursionError, MemoryError) as error:
        raise UnkeyableError(
            f"{name} cannot be parsed ({error}), so what it imports is unknown; correct it, or name the "
            f"files that count with code=[paths], or use code=None and version=",
            path=path,
        ) from error
    if len(_read) >= _READ_LIMIT:
        _read.clear()
    _read[path] = (found, read_at_ns)
    return found


def imports_in(code: CodeType) -> Iterator[Import]:
    """The imports of a code object, nested code included, but for those that only type checkers see."""
    for one in nested(code):
        if not _LOOKED_FOR.isdisjoint(one.co_names):
            yield from _chosen(one)
        elif _IMPORT_NAME in one.co_code[::2]:
            yield from _statements(one)


def _statements(code: CodeType) -> Iterator[Import]:
    level: Any = None
    names: Any = None
    for op, arg in instructions(code):
        if op == _IMPORT_NAME:
            yield Import(int(level), code.co_names[arg], tuple(names or ()))
        elif op in (_LOAD_CONST, _LOAD_SMALL_INT):
            level, names = names, arg if op == _LOAD_SMALL_INT else code.co_consts[arg]


def _chosen(code: CodeType) -> Iterator[Import]:
    """As `_statements`, with calls of importers, and without what stands under `if TYPE_CHECKING`."""
    constants: list[Any] = [0, None]
    skipped_to, name = -1, ""
    for step in dis.get_instructions(code):
        if step.offset < skipped_to:
            continue
        if step.opcode in _FALSE_JUMPS and name == "TYPE_CHECKING" and step.argval > step.offset:
            skipped_to = step.argval
        elif step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants.append(step.argval)
            if name in _IMPORTERS and isinstance(step.argval, str):
                module = step.argval.lstrip(".")
                if module.replace(".", "_").isidentifier() and not module.endswith("."):
                    yield Import(len(step.argval) - len(module), module)
        elif step.opcode == _IMPORT_NAME:
            yield Import(int(constants[-2]), step.argval, tuple(constants[-1] or ()))
        if step.opname not in ("TO_BOOL", "PUSH_NULL", "PRECALL", "EXTENDED_ARG", "NOP"):
            name = step.argval if isinstance(step.argval, str) and step.opname.startswith("LOAD") else ""


def _read_stamped(path: str) -> tuple[bytes, Stamp]:
    for _ in range(3):
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC)) as file:
            before = stamp_of(os.fstat(file.fileno()))
            data = file.read()
            if stamp_of(os.fstat(file.fileno())) == before:
                return data, before
    raise UnkeyableError(f"{path} is being written: it changed during every attempt to read it", path=path)


class _Loader(SourceFileLoader):
    """Makes the code of bytes that were read, as an import would, and writes nothing."""

    def __init__(self, path: str, stamp: Stamp, data: bytes) -> None:
        super().__init__("source", path)
        self._stamp, self._data = stamp, data

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        return {"mtime": self._stamp[3] // 1_000_000_000, "size": self._stamp[2]}

    def get_data(self, path: Any) -> bytes:
        return self._data if path == self.path else super().get_data(path)

    def set_data(self, path: Any, data: Any, *, _mode: int = 0) -> None:
        """Bytecode is left to imports."""


def _code_of(path: str, stamp: Stamp, data: bytes) -> CodeType:
    with warnings.catch_warnings():  # a job has seen them when it loaded the file, and may raise them
        warnings.simplefilter("ignore")
        code = _Loader(path, stamp, data).get_code("source")
    assert code is not None, "only modules without source have none"
    return code
