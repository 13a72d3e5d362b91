"""Samples that cannot be collated: which leaf, along which axes its rows differ, and what pads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from prepcache.artifact.sample_tree import leaves_of


def leaf_text(path: str) -> str:
    """A leaf by its dotted path in the sample, which is empty where the sample is one leaf."""
    return f"leaf {path!r}" if path else "leaf '' (the sample itself)"


def raise_explained(
    error: RuntimeError | TypeError,
    samples: Sequence[Any],
    indices: npt.NDArray[np.int64] | None,
    padded: Mapping[str, int],
) -> NoReturn:
    """Raises the error of a collation, with what it does not say.

    Args:
        samples: those of the batch.
        indices: their positions in the data set, where they are known.
        padded: the leaves that the collation pads or packs, and along which axis.
    """
    rows: dict[str, list[Any]] = {}
    for sample in samples:
        for path, leaf in leaves_of(sample):
            rows.setdefault(".".join(path), []).append(leaf)
    if isinstance(error, TypeError):
        nothing = next((path for path, leaves in rows.items() if leaves[0] is None), None)
        if nothing is None:
            raise error
        mend = "leave it out of the sample, return a number, or pass a collate_fn"
        raise TypeError(f"{error} ({leaf_text(nothing)} is None: {mend})") from error
    shapes = {
        path: [leaf.shape for leaf in leaves]
        for path, leaves in rows.items()
        if len(leaves) == len(samples) and all(hasattr(leaf, "shape") for leaf in leaves)
    }
    raise RuntimeError(f"{error}{_told(shapes, indices, padded)}") from error


def _told(
    shapes: Mapping[str, Sequence[Sequence[int]]],
    indices: npt.NDArray[np.int64] | None,
    padded: Mapping[str, int],
) -> str:
    """The first leaf whose rows differ in more than the axis along which they are padded; or nothing."""
    differing: dict[str, list[int]] = {}
    for path, found in shapes.items():
        if len(counts := sorted(set(map(len, found)))) > 1:
            return f" ({leaf_text(path)} has rows with {counts[0]} and {counts[-1]} axes)"
        if axes := np.flatnonzero((np.array(found) != found[0]).any(axis=0)).tolist():
            differing[path] = axes
    for path, axes in differing.items():
        found = shapes[path]
        if path not in padded or axes != [padded[path] % len(found[0])]:
            other = next(number for number, shape in enumerate(found) if shape != found[0])
            first, second = "entry 0", f"entry {other}"
            if indices is not None:
                first += f", sample {int(indices[0])} of the data set,"
                second += f", sample {int(indices[other])}"
            return (
                f" ({leaf_text(path)}: {first} has shape {list(found[0])}, {second}, {list(found[other])}; "
                f"they differ along {_remedy(path, differing, shapes, padded)})"
            )
    return ""


def _remedy(
    path: str,
    differing: Mapping[str, list[int]],
    shapes: Mapping[str, Sequence[Sequence[int]]],
    padded: Mapping[str, int],
) -> str:
    axes = differing[path]
    if len(axes) > 1:
        return f"axes {' and '.join(map(str, axes))}; prepcache.pad_collate pads one axis"
    leaves = {**padded, **{name: along[0] for name, along in differing.items() if len(along) == 1}}
    is_default = not padded and all(len(shapes[name][0]) == 1 for name in differing)
    return f"axis {axes[0]}, which prepcache.pad_collate({'' if is_default else f'{leaves=}'}) pads"
