"""Batches of items on their way to their digests.

A batch goes in three steps: stat every path and write every item, leaving room for the digests of files;
look all stamps up in the stat cache at once, and read the files that it does not know; fill in and hash.

Most data sets are lists of paths or values, or of tuples or dicts of a path and some labels. Runs of items
of one such shape are written column by column, at a third of the cost.

Invariants:
    1. Column by column the same bytes are written as one by one (a test compares them).
    2. The stamp and the digest of a slot come from one reading.
"""

from __future__ import annotations

import os
import pathlib
import stat
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from prepcache.digests import DIGEST_BYTES
from prepcache.keys.encoding.builtins import float_bytes, int_bytes, simple_key
from prepcache.keys.encoding.encoder import ENCODING_VERSION, is_registered, length, text_bytes
from prepcache.keys.files.digest import read_files
from prepcache.keys.files.stamps import mix_columns
from prepcache.keys.item_encoder import ItemEncoder
from prepcache.keys.observation import context
from prepcache.keys.paths import PathRules, looks_like_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ITEM_DOMAIN = b"prepcache item v1\0"
"""Prefix of what an item digest is taken over. Its number rises when the inputs change."""

_PREFIX = ITEM_DOMAIN + bytes([ENCODING_VERSION])
_RUN_ITEMS = 1024
"""Items tried together column by column."""
_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_MODE = attrgetter("st_mode")
_STAMP = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


class Digests(NamedTuple):
    """What was learned of a batch.

    Args:
        of_items: uint8[n, 32].
        hashes: of the stamps of all slots.
        ends: for each item, the number of slots up to its end.
        is_racy: for each item, whether the stamp of a file in it was young.
        missing: paths that named nothing.
        files_read: how many files the stat cache did not know.
    """

    of_items: NDArray[np.uint8]
    hashes: NDArray[np.uint64]
    ends: NDArray[np.int64]
    is_racy: NDArray[np.bool_]
    missing: list[str | bytes]
    files_read: int


class Batch:
    """Some items and what is known of them so far.

    Args:
        encoder: a new one; its slots are those of this batch.
        first, step: the number of the first item, and from each to the next, for messages.
    """

    def __init__(self, encoder: ItemEncoder, first: int = 0, step: int = 1) -> None:
        self.encoder = encoder
        self.first = first
        self.step = step
        self.ends: list[int] = []
        """For each item, the number of slots up to its end."""
        self._runs: list[list[Any] | tuple[Any, ...]] = []
        """A list: the pieces of an item, and numbers of slots. A tuple: columns of such pieces."""

    def collect(self, items: Sequence[Any]) -> None:
        """Stat every path and write every item."""
        for start in range(0, len(items), _RUN_ITEMS):
            run = items[start : start + _RUN_ITEMS]
            written = columns(run, self.encoder.rules)
            if written is None:
                for item in run:
                    self._collect_one(item)
            else:
                self._collect_columns(written, len(run))

    def _collect_one(self, item: Any) -> None:
        pieces: list[Any] = [_PREFIX]
        number = self.first + len(self.ends) * self.step
        self.encoder.write(item, pieces.append, f"items[{number}]")
        self._runs.append(pieces)
        self.ends.append(len(self.encoder.names))

    def _collect_columns(self, written: Sequence[Column | bytes], count: int) -> None:
        encoder = self.encoder
        base = len(encoder.names)
        files = [column.files for column in written if isinstance(column, Column) and column.files]
        width, slot = len(files), base
        pieces: list[Sequence[Any]] = []
        bodies = [_PREFIX] * count
        for column in written:
            if isinstance(column, bytes):
                bodies = [before + column for before in bodies]
                continue
            bodies = list(map(add, bodies, column.bodies))
            if column.files is not None:
                pieces += [bodies, range(slot, base + width * count, width)]
                bodies = [b""] * count
                slot += 1
        if any(bodies):
            pieces.append(bodies)
        self._runs.append(tuple(pieces))
        self.ends.extend([base + width * (i + 1) for i in range(count)])
        encoder.names.extend(chain.from_iterable(zip(*(some.names for some in files), strict=True)))
        encoder.rows.frombytes(_interleaved([some.rows for some in files], count))
        for some in files:
            if some.are_text:
                encoder.note_text_files(some.names[0], count)

    def read(self) -> Digests:
        """Learn the digests of all files, and with them those of the items."""
        import numpy as np

        encoder = self.encoder
        stamps = np.array(encoder.rows, np.int64).reshape(-1, 5)
        context.depend_on(encoder.names)
        is_racy = np.zeros(len(stamps), np.bool_)
        if encoder.stat_cache is not None and encoder.trust == "stat":
            is_known, digests = encoder.stat_cache.lookup(stamps)
        else:
            is_known = np.zeros(len(stamps), np.bool_)
            digests = np.zeros((len(stamps), DIGEST_BYTES), np.uint8)
        for slot, digested in encoder.known.items():
            is_known[slot], is_racy[slot] = True, digested.is_racy
        to_read = np.flatnonzero(~is_known).tolist()
        if to_read:
            names = list(dict.fromkeys(encoder.names[slot] for slot in to_read))
            read = dict(zip(names, read_files(names, encoder.stat_cache), strict=True))
            for slot in to_read:
                digested = read[encoder.names[slot]]
                digests[slot] = np.frombuffer(digested.digest, np.uint8)
                stamps[slot], is_racy[slot] = digested.stamp, digested.is_racy
        ends = np.array(self.ends, np.int64)
        racy_before = np.concatenate([[0], np.cumsum(is_racy)])
        starts = np.concatenate([[0], ends[:-1]])
        found = b"".join(self._digests(digests.tobytes()))
        return Digests(
            np.frombuffer(found, np.uint8).reshape(-1, DIGEST_BYTES),
            mix_columns(list(stamps.T)),
            ends,
            racy_before[ends] > racy_before[starts],
            encoder.missing,
            len(set(map(encoder.names.__getitem__, to_read))),
        )

    def _digests(self, files: bytes) -> list[bytes]:
        """The digests of the items, given those of all slots, 32 bytes each."""
        rows = [files[at : at + DIGEST_BYTES] for at in range(0, len(files), DIGEST_BYTES)]
        found: list[bytes] = []
        for run in self._runs:
            whole: Iterable[Iterable[bytes]]
            if type(run) is tuple:
                parts = (map(rows.__getitem__, c) if type(c) is range else c for c in run)
                whole = zip(*parts, strict=True)
            else:
                whole = [[rows[piece] if type(piece) is int else piece for piece in run]]
            found += [blake3(b"".join(pieces)).digest() for pieces in whole]
        return found


def _interleaved(rows: list[array[int]], count: int) -> bytes:
    """Stamps of several columns of files, item by item."""
    import numpy as np

    if len(rows) == 1:
        return rows[0].tobytes()
    by_column = [np.frombuffer(column, np.int64).reshape(count, 5) for column in rows]
    return np.stack(by_column, axis=1).tobytes() if rows else b""


class Files(NamedTuple):
    """Paths or str that all name regular files: one of each item."""

    names: Sequence[str]
    rows: array[int]
    """Five numbers of a stamp for each."""
    are_text: bool


class Column(NamedTuple):
    """The bytes of one element of every item; of files without the digest that comes last."""

    bodies: list[bytes]
    files: Files | None


def columns(run: Sequence[Any], rules: PathRules) -> list[Column | bytes] | None:
    """What a run of items is written as, in order: bytes that all have in common, and columns.

    None where the items are not of one shape, or hold anything that asks for more care.
    """
    written: list[Column | bytes] = []
    for part in _parts(run):
        column = part if type(part) is bytes else _column(part, rules)
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
    if any(map(is_registered, kinds)):
        return None
    if kinds <= _SIMPLE.keys():
        return Column([_SIMPLE[type(value)](value) for value in values], None)
    if rules.read != "path":
        return None
    if kinds == {pathlib.PosixPath}:
        return _files(list(map(os.fspath, values)), b"p", rules)
    if kinds != {str}:
        return None
    looking = list(filter(looks_like_path, values))
    first = next(filter(_may_name_a_file, looking), None)
    if first is None:
        return Column(list(map(text_bytes, values)), None)
    return _files(values, b"S", rules) if len(looking) == len(values) and first is values[0] else None


def _may_name_a_file(text: str) -> bool:
    try:
        os.stat(text)
    except (OSError, ValueError) as error:
        return type(error) not in _NOT_THERE
    return True


def _files(names: Sequence[str], tag: bytes, rules: PathRules) -> Column | None:
    try:
        infos = list(map(os.stat, names))
        rows = array("q", chain.from_iterable(map(_STAMP, infos)))
    except (OSError, ValueError, OverflowError):
        return None
    if not all(map(stat.S_ISREG, set(map(_MODE, infos)))):
        return None
    counted = map(rules.named, names)
    bodies = [tag + length(1 + len(name) + DIGEST_BYTES) + b"f" + name for name in counted]
    return Column(bodies, Files(names, rows, tag == b"S"))


_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    int: int_bytes,
    float: float_bytes,
    bool: lambda value: b"T" if value else b"F",
    type(None): lambda value: b"n",
    bytes: lambda value: b"b" + length(len(value)) + value,
}
