"""Merging: the samples of several artifacts of one recipe in one file.

Invariants:
    1. Items keep their order (file by file), rows, costs and samples, to the bit. Observed inputs are
       the union; files that observed the same input differently do not merge.
    2. Memory holds the tables (items, offsets, shapes, groups), and one folio of the values at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prepcache.artifact.header import Document, Header, has_twice
from prepcache.artifact.writer import Writer
from prepcache.errors import ArtifactError


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
