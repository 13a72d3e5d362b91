"""Collation of rows that differ in length: padded to one length, or packed end to end.

    DataLoader(ds, batch_size=32, collate_fn=prepcache.pad_collate(0, multiple_of=8, also="lengths"))
    DataLoader(ds, batch_size=32, collate_fn=prepcache.pack_collate())

Which leaves are sequences does not depend on the batch: those named in `leaves`, by their dotted path in
the sample (`"tokens"`, `"1"`, `""` for a sample that is one tensor); without names, every tensor or array
leaf with one axis. All other leaves are collated as torch's default does.

Invariants:
    1. A `Batch` and a plain list of the same samples give the same values: the first is copied from the
       artifacts, the second from the samples.
    2. Collation functions are picklable, as DataLoader workers need, and hold no batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from prepcache.artifact import columns, tree
from prepcache.batch import Batch
from prepcache.default_collate import NotAStack, builder, collation_of
from prepcache.tables import Ragged, join


class Padded(NamedTuple):
    """Rows padded to one length, and how long each was (after the cut): `[B, ...]` and `int64[B]`."""

    values: Any
    lengths: Any


class Masked(NamedTuple):
    """Rows padded to one length, and which elements are no padding: `[B, L, ...]` and `bool[B, L]`."""

    values: Any
    mask: Any


class Packed(NamedTuple):
    """Rows end to end: row i is `values[offsets[i]:offsets[i + 1]]`; `[total, ...]` and `int64[B + 1]`."""

    values: Any
    offsets: Any


def pad_collate(
    value: float = 0,
    *,
    side: Literal["left", "right"] = "right",
    multiple_of: int = 1,
    cut: int | None = None,
    also: Literal["lengths", "mask"] | None = None,
    leaves: Sequence[str] | Mapping[str, int] | None = None,
) -> _Pad:
    """Makes a `collate_fn` that pads sequences to the longest of the batch.

    Args:
        value: what is put where a row has no element.
        side: where it is put.
        multiple_of: the padded length is rounded up to a multiple of this.
        cut: rows keep at most this many elements, their first.
        also: what comes beside the values: `Padded` with lengths, or `Masked` with a mask.
        leaves: which leaves are sequences, and (a mapping) along which axis; along the first otherwise.

    Returns:
        A picklable function: samples -> batch.
    """
    if side not in ("left", "right") or also not in (None, "lengths", "mask"):
        raise ValueError(f"side is 'left' or 'right', also 'lengths', 'mask' or None; not {side!r}, {also!r}")
    if multiple_of < 1 or (cut is not None and cut < 0):
        raise ValueError(f"multiple_of must be positive and cut not negative; not {multiple_of}, {cut}")
    return _Pad(_axes(leaves), value, side, multiple_of, cut, also)


def pack_collate(*, leaves: Sequence[str] | None = None) -> _Pack:
    """Makes a `collate_fn` that puts sequences end to end, as `Packed` values and offsets.

    Args:
        leaves: which leaves are sequences.

    Returns:
        A picklable function: samples -> batch.
    """
    return _Pack(_axes(leaves))


def _axes(leaves: Sequence[str] | Mapping[str, int] | None) -> dict[str, int] | None:
    if leaves is None:
        return None
    if isinstance(leaves, str):
        raise TypeError(f"leaves is a list of names, not the text {leaves!r}")
    return dict(leaves) if isinstance(leaves, Mapping) else dict.fromkeys(leaves, 0)


_DIFFER = "rows that differ in more than the padded axis"


@dataclass(frozen=True)
class _Collate:
    """Walks samples, or the columns of a batch, and gives sequences to `rows` and `ragged`."""

    axes: dict[str, int] | None

    def __call__(self, samples: Any) -> Any:
        if isinstance(samples, Batch) and samples.is_untouched:
            names = list(_paths(samples.table.tree, ()))
            self._check(names)
            leaves = [self._column(samples, number, name) for number, name in enumerate(names)]
            return builder(samples.table.tree, list)(leaves)
        samples = list(samples)
        self._check(_paths_of(samples[0], ()))
        return self._walk(samples, ())

    def _check(self, paths: Iterable[str]) -> None:
        unknown = set(self.axes or ()) - set(paths)
        if unknown:
            raise KeyError(f"no leaf of the samples is called {sorted(unknown)}")

    def axis(self, path: str, ndim: int) -> int | None:
        """Along which axis a tensor or array leaf is a sequence; None if it is none."""
        if self.axes is not None:
            return self.axes.get(path)
        return 0 if ndim == 1 else None

    def _column(self, batch: Batch, number: int, path: str) -> Any:
        column = batch.table.columns[number]
        is_array = column.leaf.kind in ("tensor", "ndarray")
        axis = self.axis(path, column.leaf.ndim) if is_array else None
        if axis is None:
            return _default(batch, number)
        if isinstance(column, Ragged) and axis in (0, -column.leaf.ndim):
            return self.ragged(batch, column, *self._lengths(batch, column))
        return self.rows(batch.leaf(number), axis)

    def _walk(self, samples: list[Any], path: tuple[str, ...]) -> Any:
        from torch.utils.data import default_collate

        first = samples[0]
        if isinstance(first, Mapping):
            made = {key: self._walk([s[key] for s in samples], (*path, str(key))) for key in first}
            return made if type(first) is dict else type(first)(made)  # type: ignore[call-arg]
        if isinstance(first, (tuple, list)):
            transposed = zip(_fields(first), zip(*samples, strict=True), strict=True)
            children = [self._walk(list(column), (*path, str(name))) for name, column in transposed]
            return type(first)(*children) if hasattr(first, "_fields") else children
        if hasattr(first, "ndim") and hasattr(first, "shape") and not isinstance(first, np.generic):
            axis = self.axis(".".join(path), first.ndim)
            if axis is not None:
                return self.rows(samples, axis)
        return default_collate(samples)

    def rows(self, rows: list[Any], axis: int) -> Any:
        """A batch of rows: tensors, or arrays."""
        raise NotImplementedError

    def ragged(self, batch: Batch, column: Ragged, lengths: Any, tail: tuple[int, ...]) -> Any:
        """A batch of a column whose rows are `lengths` long and of shape `tail` beside."""
        raise NotImplementedError

    def _lengths(self, batch: Batch, column: Ragged) -> tuple[Any, tuple[int, ...]]:
        shapes = column.shapes(batch.picked)
        if shapes is None:
            return column.lengths(batch.picked), ()
        if (shapes[:, 1:] != shapes[0, 1:]).any():
            raise RuntimeError(f"{_DIFFER} 0: {shapes.tolist()}")
        return shapes[:, 0], tuple(shapes[0, 1:].tolist())


def _default(batch: Batch, number: int) -> Any:
    """A leaf of a batch, collated as torch does."""
    from torch.utils.data import default_collate

    try:
        return collation_of(batch.table).leaves[number](batch.picked, batch.pool)
    except NotAStack:
        return default_collate(batch.leaf(number))


@dataclass(frozen=True)
class _Pad(_Collate):
    value: float
    side: str
    multiple_of: int
    cut: int | None
    also: str | None

    def rows(self, rows: list[Any], axis: int) -> Any:
        import torch

        tensors = [torch.as_tensor(row).movedim(axis, 0) for row in rows]
        kept = [tensor if self.cut is None else tensor[: self.cut] for tensor in tensors]
        lengths = np.array([len(tensor) for tensor in kept], np.int64)
        width = self._width(lengths)
        padded = torch.full((len(kept), width, *kept[0].shape[1:]), self.value, dtype=kept[0].dtype)
        for place, tensor in zip(padded, kept, strict=True):
            if tensor.shape[1:] != place.shape[1:] or tensor.dtype != place.dtype:
                shapes = [list(row.shape) for row in rows]
                raise RuntimeError(f"{_DIFFER} {axis}: {shapes}")
            place[slice(len(tensor)) if self.side == "right" else slice(width - len(tensor), None)] = tensor
        return self._with(padded.movedim(1, axis + 1 if axis >= 0 else axis), lengths)

    def ragged(self, batch: Batch, column: Ragged, lengths: Any, tail: tuple[int, ...]) -> Any:
        import torch

        unit = math.prod(tail)
        if self.cut is not None:
            lengths = np.minimum(lengths, self.cut)
        width = self._width(lengths)
        empty = columns.to_leaf(np.empty(0, column.dtype), column.leaf)
        dtype = torch.as_tensor(empty).dtype
        octets: Any = torch.full((width * unit,), self.value, dtype=dtype).view(torch.uint8).numpy()
        padding = memoryview(octets)
        pieces: list[Any] = [None] * (2 * len(lengths))
        at = 0 if self.side == "right" else 1
        pieces[at::2] = column.pieces(batch.picked, None if self.cut is None else self.cut * unit)
        begins = (lengths * (unit * column.dtype.itemsize)).tolist()
        pieces[1 - at :: 2] = [padding[begin:] for begin in begins]
        values = join(pieces, len(lengths) * width * unit, column.dtype, batch.pool)
        padded = columns.to_leaf(values.reshape(len(lengths), width, *tail), column.leaf)
        return self._with(torch.as_tensor(padded), lengths)

    def _width(self, lengths: Any) -> int:
        return -(-int(lengths.max()) // self.multiple_of) * self.multiple_of

    def _with(self, padded: Any, lengths: Any) -> Any:
        """`padded` and what was asked for beside it."""
        import torch

        if self.also is None:
            return padded
        if self.also == "lengths":
            return Padded(padded, torch.from_numpy(lengths))
        places = np.arange(self._width(lengths))
        held = lengths[:, None] if self.side == "right" else len(places) - lengths[:, None]
        return Masked(padded, torch.from_numpy(places < held if self.side == "right" else places >= held))


@dataclass(frozen=True)
class _Pack(_Collate):
    def rows(self, rows: list[Any], axis: int) -> Any:
        import torch

        tensors = [torch.as_tensor(row) for row in rows]
        offsets = np.cumsum([0, *(len(tensor) for tensor in tensors)])
        return Packed(torch.cat(tensors), torch.from_numpy(offsets))

    def ragged(self, batch: Batch, column: Ragged, lengths: Any, tail: tuple[int, ...]) -> Any:
        import torch

        ranges = column.take(batch.picked, batch.pool)
        values = columns.to_leaf(ranges.values.reshape(int(lengths.sum()), *tail), column.leaf)
        offsets = np.cumsum([0, *lengths.tolist()])
        return Packed(torch.as_tensor(values), torch.from_numpy(offsets))


def _paths(spec: tree.Tree, path: tuple[str, ...]) -> Iterator[str]:
    """The dotted path of each leaf, in walking order."""
    if isinstance(spec, int):
        yield ".".join(path)
    elif spec[0] in ("dict", "ordered"):
        for key, child in spec[1]:
            yield from _paths(child, (*path, str(key)))
    else:
        names = spec[3] if spec[0] == "named" else range(len(spec[-1]))
        for name, child in zip(names, spec[-1], strict=True):
            yield from _paths(child, (*path, str(name)))


def _paths_of(sample: Any, path: tuple[str, ...]) -> Iterator[str]:
    """The same of a sample."""
    if isinstance(sample, Mapping):
        children = [(str(key), child) for key, child in sample.items()]
    elif isinstance(sample, (tuple, list)):
        children = [(str(key), child) for key, child in zip(_fields(sample), sample, strict=True)]
    else:
        yield ".".join(path)
        return
    for name, child in children:
        yield from _paths_of(child, (*path, name))


def _fields(sequence: Sequence[Any]) -> Sequence[Any]:
    return getattr(sequence, "_fields", range(len(sequence)))
