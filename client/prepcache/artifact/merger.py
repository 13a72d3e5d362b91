"""Merging: the samples of several artifacts of one recipe in one file, in bounded memory.

Invariants:
    1. Items keep their order (file by file), rows, costs and samples, to the bit. Observed inputs are
       the union; files that observed the same input differently do not merge.
    2. Nothing is decoded: columns of equal trees and leaves are chained. A column that is dense in every
       file with one shape stays dense, else it becomes ragged.
    3. Memory holds item tables, one table of a file's rows (offsets, shapes or groups), and one folio of the
       values at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prepcache.artifact.columns import Array
from prepcache.artifact.header import (
    MAX_GROUPS,
    ROW_GROUP,
    ColumnSpec,
    GroupSpec,
    Header,
    has_twice,
    pack_observed,
    read_array,
)
from prepcache.artifact.writer import ColumnNames, FilePart, Written, write_artifact
from prepcache.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class _Part:
    """One group of one source file."""

    fd: int
    header: Header
    group: GroupSpec


def merge(fds: Sequence[int], headers: Sequence[Header], fd: int, *, producer: dict[str, Any]) -> Written:
    """Writes one artifact that holds what the given ones hold.

    Args:
        headers: of each file, from `check`.
        fd: of an empty file, which is neither synced nor closed here.

    Raises:
        ArtifactError: recipes or editions differ, an item is in two files, or an input has two digests.
    """
    if len({header.recipe for header in headers}) != 1:
        raise ArtifactError("cannot merge artifacts of different recipes")
    if len({header.edition for header in headers}) != 1:
        raise ArtifactError("cannot merge artifacts of different editions")
    digests = np.concatenate([header.item_digests for header in headers])
    if has_twice(digests):
        raise ArtifactError("cannot merge artifacts that share an item")
    merged: dict[str, list[_Part]] = {}
    for source, header in zip(fds, headers, strict=True):
        for group in header.groups:
            merged.setdefault(_signature(group), []).append(_Part(source, header, group))
    order = {sign: number for number, sign in enumerate(merged)}
    numbers = [[order[_signature(group)] for group in header.groups] for header in headers]
    if len(merged) > MAX_GROUPS:
        raise ArtifactError(f"cannot merge artifacts with over {MAX_GROUPS} different trees")
    names = ColumnNames()
    totals: dict[str, int] = {}
    bodies: list[Iterator[Any]] = []
    groups = [
        _merge_group(number, parts, names, totals, bodies) for number, parts in enumerate(merged.values())
    ]
    return write_artifact(
        fd,
        recipe=headers[0].recipe,
        digests=digests.tobytes(),
        row_counts=np.concatenate([header.row_count for header in headers]),
        costs=np.concatenate([header.item_cost for header in headers]),
        row_groups=_row_groups(fds, headers, numbers),
        groups=groups,
        totals=totals,
        bodies=bodies,
        producer=producer,
        observed=pack_observed(_union(headers)),
        edition=headers[0].edition,
    )


def _signature(group: GroupSpec) -> str:
    """Equal exactly for groups whose rows may lie in one: the tree and the leaves, no shape, no name."""
    leaves = [[column.kind, column.dtype, column.ndim] for column in group.columns]
    return json.dumps([group.tree, leaves])


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


def _row_groups(fds: Sequence[int], headers: Sequence[Header], numbers: list[list[int]]) -> Iterator[Array]:
    """The group of each row, in the new numbers."""
    for source, header, new in zip(fds, headers, numbers, strict=True):
        if len(new) > 1:
            yield np.array(new, "<u2")[read_array(source, header.spans[ROW_GROUP], "<u2")]
        else:
            yield np.full(header.rows, new[0] if new else 0, "<u2")


def _merge_group(
    number: int,
    parts: list[_Part],
    names: ColumnNames,
    totals: dict[str, int],
    bodies: list[Iterator[Any]],
) -> GroupSpec:
    """One group of all parts; adds its columns' totals and tensors."""
    specs = []
    for position, first in enumerate(parts[0].group.columns):
        sources = [(part, part.group.columns[position]) for part in parts]
        shapes = {column.shape for _, column in sources}
        name = names.take(number, first.name.split("~")[0])
        spec = replace(first, name=name, shape=shapes.pop() if len(shapes) == 1 else None)
        specs.append(spec)
        if spec.shape is None:
            totals[name] = sum(_elements(part, column) for part, column in sources)
            bodies.append(_offsets(sources))
            if spec.ndim >= 2:
                bodies.append(_shapes(sources))
        if spec.kind != "none":
            bodies.append(_values(sources))
    return GroupSpec(sum(part.group.rows for part in parts), parts[0].group.tree, tuple(specs))


def _elements(part: _Part, column: ColumnSpec) -> int:
    """How many values a column has in a file."""
    if column.shape is not None:
        return part.group.rows * math.prod(column.shape)
    return part.header.spans[column.name].shape[0]


def _values(sources: list[tuple[_Part, ColumnSpec]]) -> Iterator[FilePart]:
    for part, column in sources:
        span = part.header.spans[column.name]
        yield FilePart(part.fd, span.begin, span.end)


def _offsets(sources: list[tuple[_Part, ColumnSpec]]) -> Iterator[Array]:
    base = 0
    yield np.zeros(1, "<i8")
    for part, column in sources:
        if column.shape is not None:
            yield base + np.arange(1, part.group.rows + 1, dtype="<i8") * math.prod(column.shape)
        else:
            yield base + read_array(part.fd, part.header.spans[column.name + ".offsets"], "<i8", 1)
        base += _elements(part, column)


def _shapes(sources: list[tuple[_Part, ColumnSpec]]) -> Iterator[Array]:
    for part, column in sources:
        if column.shape is not None:
            yield np.tile(np.array(column.shape, "<i8"), (part.group.rows, 1))
        else:
            yield read_array(part.fd, part.header.spans[column.name + ".shapes"], "<i8")
