"""The writer: collects the samples of some items, or whole artifacts, then writes them as one artifact.

Invariants:
    1. `add` takes all samples of an item or, raising SampleError, none. After anything else that was raised
       there (an interrupt), a writer is of no use.
    2. What is collected is a copy: the preprocessing function may reuse its buffers.
    3. A sample costs its copy and a constant: nothing is built per sample that the file does not hold.
    4. Until they are written, values may lie in other files: spilled ones (`spill`), and those of artifacts
       (`add_artifact`), which are not decoded. Memory then holds tables alone (items, offsets, shapes). A
       column that is dense in all artifacts, with one shape, stays dense.
    5. A merge keeps items in their order, file by file, with their rows and costs. Observed inputs are the
       union; files that observed the same input differently do not merge.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from prepcache.artifact import columns, sample_tree
from prepcache.artifact.columns import Array, FilePart, Leaf
from prepcache.artifact.header import (
    FILLER,
    FOLIO_BYTES,
    MAX_GROUPS,
    MAX_HEADER_BYTES,
    MAX_ITEM_COST_S,
    ROW_GROUP,
    ColumnSpec,
    Document,
    GroupSpec,
    Header,
    encode,
    has_twice,
    pack_observed,
    read_array,
)
from prepcache.digests import DIGEST_BYTES, RecipeDigest, entry_key
from prepcache.errors import ArtifactError, SampleError

_COLUMN_HEADER_BYTES = 1200
"""At most what the header says of one column: three tensors, three fillers, and itself."""
_ZEROS = memoryview(bytes(FOLIO_BYTES))


class Writer:
    """Collects samples of one recipe; `edition`: as in index/recipe_index.py."""

    def __init__(self, recipe: RecipeDigest, edition: int = 0) -> None:
        self.recipe = recipe
        self.edition = edition
        self._digests = bytearray()
        self._row_counts = array("q")
        self._costs = array("d")
        self._row_groups = array("H")
        self._groups: dict[Any, _Group] = {}
        self._tree_bytes = 0

    @property
    def items(self) -> int:
        return len(self._row_counts)

    @property
    def rows(self) -> int:
        return len(self._row_groups)

    @property
    def nbytes(self) -> int:
        """Bytes that are collected; the file has these and a header."""
        held: int = sum(column.nbytes for group in self._groups.values() for column in group.columns)
        return held + self.items * (DIGEST_BYTES + 16) + self.rows * 2

    def add(self, item_digest: bytes, samples: Sequence[Any], cost_s: float) -> None:
        """Takes the samples of an item that was not added before, and the seconds that they took. Raises
        SampleError, with the path of the leaf, where no column can hold a sample."""
        self._row_counts.append(self._take(samples))
        self._costs.append(_cost(cost_s))
        self._digests += item_digest

    def extend(self, samples: Sequence[Any], cost_s: float) -> None:
        """Takes further samples of the item that was added last. Raises as `add`."""
        self._row_counts[-1] += self._take(samples)
        self._costs[-1] = _cost(self._costs[-1] + cost_s)

    def add_artifact(self, fd: int, header: Header) -> None:
        """Takes the items of an artifact of the same recipe, before any are added one by one. Its file stays
        open until all is written."""
        numbers = []
        for spec in header.groups:
            sign = json.dumps(spec.tree), *(column.leaf for column in spec.columns)
            if (group := self._groups.get(sign)) is None:
                leaves = [column.leaf for column in spec.columns]
                paths = [column.name.partition("~")[0] for column in spec.columns]
                group = self._groups[sign] = _Group(len(self._groups), spec.tree, leaves, paths)
            group.add_file(fd, header, spec)
            numbers.append(group.number)
        if len(self._groups) > MAX_GROUPS:
            raise ArtifactError(f"one artifact cannot hold over {MAX_GROUPS} different trees")
        group_of = np.zeros(header.rows, "<u2")
        if len(numbers) > 1:
            group_of = read_array(fd, header.spans[ROW_GROUP], "<u2")
        self._row_groups.frombytes(np.array(numbers or [0], "<u2")[group_of].tobytes())
        self._row_counts.frombytes(header.row_count.tobytes())
        self._costs.frombytes(header.item_cost.tobytes())
        self._digests += header.item_digests.tobytes()

    def spill(self, fd: int) -> None:
        """Moves the values that are collected to the end of a file, which stays open until all is written."""
        for group in self._groups.values():
            for column in group.columns:
                begin = os.lseek(fd, 0, os.SEEK_END)
                write(fd, column.held)
                column.let_go(FilePart(fd, begin, os.lseek(fd, 0, os.SEEK_END)))

    def _take(self, samples: Sequence[Any]) -> int:
        taken, tree_bytes = [], self._tree_bytes
        new: dict[Any, _Group] = {}
        for sample in samples:  # all are looked at before the first is taken
            sign, leaves = sample_tree.signature(sample)
            group = self._groups.get(sign) or new.get(sign)
            if group is None:
                group = new[sign] = _Group(len(self._groups) + len(new), *sample_tree.describe(sample, sign))
                # Refused here, one item is lost; in `write`, all are.
                tree_bytes += group.header_bytes
                if group.number >= MAX_GROUPS or tree_bytes > MAX_HEADER_BYTES // 2:
                    raise SampleError(
                        f"sample: too many different structures ({group.number}), or too large ones; "
                        f"if keys differ from sample to sample, return them as values",
                        leaf="sample",
                    )
            taken.append((group, leaves))
        self._groups.update(new)
        self._tree_bytes = tree_bytes
        for group, leaves in taken:
            group.add(leaves)
            self._row_groups.append(group.number)
        return len(taken)

    def write(
        self, file: Any, *, producer: dict[str, Any], observed: Sequence[dict[str, Any]] = ()
    ) -> Document:
        """Writes the artifact to a descriptor (or what has one) at its start, unsynced; may be called again.

        Args:
            producer: who made it, for people; JSON.
            observed: inputs beside the item and the recipe: dicts of kind, name and digest.
        """
        names: set[str] = set()
        groups = [group.spec(names) for group in self._groups.values()]
        digests, seen = bytes(self._digests), pack_observed(observed)
        key = entry_key(self.recipe, digests)
        document = Document(self.recipe, key, self.items, producer, seen, self.edition, tuple(groups))
        head, spans = encode(document)
        tables = [digests, self._row_counts, self._costs, *([self._row_groups] if len(groups) > 1 else [])]
        collected = (column for group in self._groups.values() for column in group.columns)
        tensors = chain(([one] for one in tables), chain.from_iterable(one.pieces() for one in collected))
        laid = (
            [_ZEROS[: span.end - span.begin]] if name.startswith(FILLER) else next(tensors)
            for name, span in spans.items()
        )
        _write_all(file if isinstance(file, int) else file.fileno(), chain([head], chain.from_iterable(laid)))
        return document


def _cost(cost_s: float) -> float:
    return cost_s if 0.0 < cost_s <= MAX_ITEM_COST_S else 0.0


class _Group:
    """Samples of one tree, leaf by leaf."""

    def __init__(
        self, number: int, tree: sample_tree.Tree, leaves: Sequence[Leaf], paths: Sequence[str]
    ) -> None:
        self.number = number
        self.rows = 0
        self._tree = tree
        self._paths = paths
        self.columns = [columns.collected(leaf) for leaf in leaves]
        self._appends = [column.append for column in self.columns]

    @property
    def header_bytes(self) -> int:
        """At most what the header says of it, where the tree is quoted twice."""
        return len(json.dumps(json.dumps(self._tree))) + len(self.columns) * _COLUMN_HEADER_BYTES

    def add(self, leaves: list[Any]) -> None:
        for append, leaf in zip(self._appends, leaves, strict=True):
            append(leaf)
        self.rows += 1

    def add_file(self, fd: int, header: Header, group: GroupSpec) -> None:
        for column, spec in zip(self.columns, group.columns, strict=True):
            if span := header.spans.get(spec.name):
                part = FilePart(fd, span.begin, span.end)
                column.add_part(part, group.rows, spec.shape, _table(fd, header, spec))
        self.rows += group.rows

    def spec(self, names: set[str]) -> GroupSpec:
        specs = []
        for path, column in zip(self._paths, self.columns, strict=True):
            # No dot, so that no name is that of another column's offsets or shapes.
            base = re.sub(r"[^A-Za-z0-9_-]", "_", path)[:80].lstrip("_") or "sample"
            name = f"{base}~{len(names)}" if base in names else base
            names.add(name)
            total = column.total if column.shape is None else 0
            specs.append(ColumnSpec(name, column.leaf, column.shape, total))
        return GroupSpec(self.rows, self._tree, tuple(specs))


def _table(fd: int, header: Header, spec: ColumnSpec) -> Array | None:
    """What tells the rows of a ragged column apart: their shapes, or their offsets if that is all."""
    if spec.shape is not None:
        return None
    name = spec.name + (".shapes" if spec.leaf.ndim >= 2 else ".offsets")
    return read_array(fd, header.spans[name], "<i8")


# --- merging ---


def merge(fds: Sequence[int], headers: Sequence[Header], fd: int, *, producer: dict[str, Any]) -> Document:
    """Writes one artifact that holds what the given ones hold.

    Args:
        headers: of each file, from `check`.
        fd: of an empty file, which is neither synced nor closed here.

    Raises:
        ArtifactError: recipes or editions differ, an item is in two files, or an input has two digests.
    """
    recipe, edition = headers[0].recipe, headers[0].edition
    if {(header.recipe, header.edition) for header in headers} != {(recipe, edition)}:
        raise ArtifactError("cannot merge artifacts of different recipes or editions")
    if has_twice(np.concatenate([header.item_digests for header in headers])):
        raise ArtifactError("cannot merge artifacts that share an item")
    writer = Writer(recipe, edition)
    for source, header in zip(fds, headers, strict=True):
        writer.add_artifact(source, header)
    return writer.write(fd, producer=producer, observed=_union(headers))


def _union(headers: Sequence[Header]) -> list[dict[str, Any]]:
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for header in {header.observed: header for header in headers}.values():
        for entry in header.inputs:
            first = seen.setdefault((entry["kind"], entry["name"]), entry)
            if first["digest"] != entry["digest"]:
                raise ArtifactError(
                    f"cannot merge artifacts that observed {entry['name']!r} with different digests"
                )
    return list(seen.values())


# --- the file ---


def copy(fd: int, to_fd: int, size_bytes: int) -> None:
    """Copies the first bytes of a file into an empty one. Raises ArtifactError where it is shorter."""
    _write_all(to_fd, [FilePart(fd, 0, size_bytes)])


def _write_all(fd: int, pieces: Iterable[Any]) -> None:
    """Writes pieces end to end, from the file's start.

    NOTE [ Large folios ]
        The page cache takes folios as large as one write, as far as both lie on a border of that size, and a
        map has one entry for a folio of 2 MiB instead of 512: random rows are copied a sixth faster. So calls
        end on borders of 2 MiB.
    """
    folio, filled = memoryview(bytearray(FOLIO_BYTES)), 0
    for piece in pieces:
        at, end = piece[1:] if isinstance(piece, FilePart) else (0, memoryview(piece).nbytes)
        while at < end:
            count = _put(piece, at, folio[filled : filled + end - at])
            at, filled = at + count, filled + count
            if filled == FOLIO_BYTES:
                write(fd, folio)
                filled = 0
    write(fd, folio[:filled])


def _put(piece: Any, at: int, into: memoryview) -> int:
    """Fills a buffer with the bytes of a piece from `at` on; how many."""
    if isinstance(piece, FilePart):
        if count := os.preadv(piece.fd, [into], at):
            return count
        raise ArtifactError(f"the file ends before byte {piece.end}: it was cut while it was read")
    into[:] = memoryview(piece).cast("B")[at : at + len(into)]
    return len(into)


def write(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.writev(fd, [view]) :]
