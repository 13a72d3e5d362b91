"""Rows that cannot be stacked, in words: of which leaf, along which axis they differ, and what pads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Shapes = npt.NDArray[np.int64]
"""Of one leaf in each row of a batch: `[B, ndim]`."""


def leaf_text(path: str) -> str:
    """A leaf by its dotted path in the sample, which is empty where the sample is one leaf."""
    return f"leaf {path!r}" if path else "leaf '' (the sample itself)"


def differing_axes(shapes: Shapes) -> list[int]:
    """Along which axes rows differ."""
    return list(np.flatnonzero((shapes != shapes[0]).any(axis=0)).tolist())


def hint(
    path: str, shapes: Shapes, indices: npt.NDArray[np.int64] | None, others: Mapping[str, int] | None
) -> str:
    """What torch's error does not say, to be put behind it; nothing where the rows do not differ.

    Args:
        path: of the leaf.
        shapes: of its rows.
        indices: the positions of the rows in the data set, where they are known.
        others: what else is to be padded, and along which axis; None where `pad_collate` finds all itself.
    """
    axes = differing_axes(shapes)
    if not axes:
        return ""
    other = int(np.flatnonzero((shapes != shapes[0]).any(axis=1))[0])
    first, second = "entry 0", f"entry {other}"
    if indices is not None:
        first += f", sample {int(indices[0])} of the data set,"
        second += f", sample {int(indices[other])}"
    return (
        f" ({leaf_text(path)}: {first} has shape {shapes[0].tolist()}, {second}, {shapes[other].tolist()}; "
        f"they differ along {_remedy(path, axes, others)})"
    )


def apart(
    path: str,
    axis: int,
    shapes: Sequence[Sequence[int]],
    indices: npt.NDArray[np.int64] | None,
    others: Mapping[str, int] | None,
) -> RuntimeError:
    """Of rows that differ along other axes than the one along which they are padded or packed."""
    told = f"rows cannot be concatenated along axis {axis}"
    if len(counts := sorted(set(map(len, shapes)))) > 1:
        return RuntimeError(f"{told} ({leaf_text(path)} has rows with {counts[0]} and {counts[-1]} axes)")
    return RuntimeError(told + hint(path, np.array(shapes), indices, others))


def none_hint(path: str) -> str:
    """What torch's error does not say of a leaf that is None: no batch can be made of it."""
    return f" ({leaf_text(path)} is None: leave it out of the sample, return a number, or pass a collate_fn)"


def _remedy(path: str, axes: list[int], others: Mapping[str, int] | None) -> str:
    if len(axes) > 1:
        return f"axes {' and '.join(map(str, axes))}; prepcache.pad_collate pads one axis"
    leaves = "" if others is None else f"leaves={ {**others, path: axes[0]} }"
    return f"axis {axes[0]}, which prepcache.pad_collate({leaves}) pads"
