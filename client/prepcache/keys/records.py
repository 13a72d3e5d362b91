"""Records: runs of items of one shape, encoded column by column.

Most data sets are lists of paths, or of tuples or dicts of a path and some labels. Written one by one by
the general encoder they cost several times their stats; column by column they cost little more.

Invariants:
    1. What is written is what the general encoder writes, to the byte; where a run is not of one shape,
       or holds anything that asks for care, the answer is None and the general encoder does it.
"""

from __future__ import annotations

import os
import pathlib
import stat
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from prepcache.keys.encoding.builtins import float_bytes, int_bytes, simple_key
from prepcache.keys.encoding.encoder import is_registered, length, text_bytes
from prepcache.keys.paths import PathRules, looks_like_path, name_bytes

PATH_KINDS: tuple[type, ...] = (str, pathlib.PosixPath)
"""Types whose `os.fspath` is all there is to them."""
NOT_THERE = (FileNotFoundError, NotADirectoryError)

_mode = attrgetter("st_mode")
_stamp = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


class Files(NamedTuple):
    """A column of paths or str that all name regular files."""

    names: Sequence[str]
    rows: array[int]
    """Five numbers of a stamp for each."""
    is_text: bool


class Column(NamedTuple):
    """The bytes of one element of every item; of files without the digest that comes last."""

    bodies: list[bytes]
    files: Files | None


def columns(run: Sequence[Any], rules: PathRules) -> list[Column] | None:
    """The columns of a run of items, in the order in which they are written."""
    count = len(run)
    written: list[Column] = []
    for part in _parts(run):
        column = Column([part] * count, None) if type(part) is bytes else _column(part, rules)
        if column is None:
            return None
        written.append(column)
    return written


def _parts(run: Sequence[Any]) -> list[Any]:
    """What the items of a run have in common, as bytes, and where they differ, as columns."""
    kind = type(run[0])
    if kind is tuple and not is_registered(tuple):
        width = len(run[0])
        if width and all(type(item) is tuple and len(item) == width for item in run):
            return [b"t" + length(width), *zip(*run, strict=True)]
    elif kind is dict and not is_registered(dict):
        keys = tuple(run[0])
        are_labels = all(type(key) is str and key.isidentifier() for key in keys) and not is_registered(str)
        if are_labels and all(type(item) is dict and tuple(item) == keys for item in run):
            parts: list[Any] = [b"d" + length(len(keys))]
            for key in sorted(keys, key=simple_key):
                parts += [text_bytes(key), [item[key] for item in run]]
            return parts
    return [run]


def _column(values: Sequence[Any], rules: PathRules) -> Column | None:
    kinds = set(map(type, values))
    kind = kinds.pop()
    if kinds or is_registered(kind):
        return None
    if kind in _SIMPLE:
        return Column(list(map(_SIMPLE[kind], values)), None)
    if kind not in PATH_KINDS or rules.read != "path":
        return None
    if kind is str:
        looking = list(filter(looks_like_path, values))
        if len(looking) < len(values) or not names_file(values[0]):
            return None if any(map(names_file, looking)) else Column(list(map(text_bytes, values)), None)
    names = values if kind is str else list(map(os.fspath, values))
    try:
        infos = list(map(os.stat, names))
        rows = array("q", chain.from_iterable(map(_stamp, infos)))
    except (OSError, ValueError, OverflowError):
        return None
    if not all(map(stat.S_ISREG, set(map(_mode, infos)))):
        return None
    return Column(_path_bodies(kind, names, rules), Files(names, rows, kind is str))


def names_file(text: str) -> bool:
    """Whether a str is to be looked at closely: False only if it is surely text."""
    if not looks_like_path(text):
        return False
    try:
        os.stat(text)
    except (OSError, ValueError) as error:
        return type(error) not in NOT_THERE
    return True


def path_body(kind: type, named: bytes) -> bytes:
    """The bytes of a path or str that names a regular file, but for its digest."""
    return (b"S" if kind is str else b"p") + length(len(named) + 33) + b"f" + named


def _path_bodies(kind: type, names: Sequence[str], rules: PathRules) -> list[bytes]:
    if rules.root is not None:
        return [path_body(kind, rules.named(name)) for name in names]
    heads = _Heads(lambda size: path_body(kind, b"n" + length(size) + bytes(size))[: -size or None])
    return [heads[len(raw)] + raw for raw in map(name_bytes, names)]


class _Heads(dict[int, bytes]):
    """What comes before a name, by the length of the name."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> bytes:
        head = self[size] = self._make(size)
        return head


_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    int: int_bytes,
    float: float_bytes,
    bool: lambda value: b"T" if value else b"F",
    type(None): lambda value: b"n",
    bytes: lambda value: b"b" + length(len(value)) + value,
}
