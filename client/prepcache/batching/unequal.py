"""Samples that cannot be collated: which leaf it is, and how its rows differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt


def leaf_text(path: Sequence[str]) -> str:
    """A leaf by its dotted path in the sample, which is empty where the sample is one leaf."""
    return f"leaf {'.'.join(path)!r}" if path else "leaf '' (the sample itself)"


def raise_explained(
    error: RuntimeError | TypeError,
    leaves: Mapping[tuple[str, ...], Sequence[Any]],
    indices: npt.NDArray[np.int64] | None,
) -> NoReturn:
    """Raises the error of a collation, with the first leaf that may be the reason.

    Args:
        leaves: the rows of each leaf, by its path.
        indices: the positions of the samples in the data set, where they are known.
    """
    for path, rows in leaves.items():
        if isinstance(error, TypeError) and rows[0] is None:
            mend = "leave it out of the sample, return a number, or pass a collate_fn"
            raise TypeError(f"{error} ({leaf_text(path)} is None: {mend})") from error
        if isinstance(error, TypeError) or not all(hasattr(row, "shape") for row in rows):
            continue
        shapes = [tuple(row.shape) for row in rows]
        if len(set(shapes)) == 1:
            continue
        other = next(number for number, shape in enumerate(shapes) if shape != shapes[0])
        names = [f"entry {number}" for number in (0, other)]
        if indices is not None:
            names = [f"sample {int(indices[number])} of the data set" for number in (0, other)]
        told = f"{names[0]} has shape {list(shapes[0])}, {names[1]} {list(shapes[other])}"
        axes = [n for n, sizes in enumerate(zip(*shapes, strict=False)) if len(set(sizes)) > 1]
        mend = "prepcache.pad_collate pads one axis"
        if len(axes) == 1 and len(set(map(len, shapes))) == 1:
            mend = f"prepcache.pad_collate(leaves={ {'.'.join(path): axes[0]} }) pads them"
        raise RuntimeError(f"{error} ({leaf_text(path)}: {told}; {mend})") from error
    raise error
