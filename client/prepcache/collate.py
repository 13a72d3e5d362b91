"""Collation of rows that differ in length: padded to one length, or packed end to end.

    DataLoader(ds, batch_size=32, collate_fn=prepcache.pad_collate(0, multiple_of=8, also="lengths"))
    DataLoader(ds, batch_size=32, collate_fn=prepcache.pack_collate)

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
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np

from prepcache.artifact.sample_tree import leaves_of, rebuilt
from prepcache.batching.collation import TAKES_BATCHES, Collation, NotAStack, tensor_maker
from prepcache.batching.gather import Batch
from prepcache.batching.lending import LENDING
from prepcache.batching.table import Ragged, Table, join

CollateBatch = Callable[[Batch], Any]
"""Collates one leaf of a batch."""


class Padded(NamedTuple):
    """Rows padded to one length, and how long each was: `[B, ...]` and `int64[B]`."""

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
    value: complex | list[Any] = 0,
    *,
    side: Literal["left", "right"] = "right",
    multiple_of: int = 1,
    also: Literal["lengths", "mask"] | None = None,
    leaves: Sequence[str] | Mapping[str, int] | None = None,
) -> Any:
    """Returns a `collate_fn` that pads sequences to the longest one in the batch.

    Args:
        value: the padding value; or the samples of a batch, to collate them directly.
        side: on which side to pad, "left" or "right".
        multiple_of: round the padded length up to a multiple of this.
        also: "lengths" returns `Padded` with lengths, "mask" returns `Masked` with a mask.
        leaves: which leaves are sequences, by their dotted path (`""` for a sample that is one tensor),
            and (a mapping) along which axis, as `{"mel": 1}` or `{"": -1}`; along the first otherwise.

    Returns:
        A picklable function: samples -> batch; given samples, their batch.

    Raises:
        ValueError: an option is invalid; or, when the function is called, a leaf has no such axis.
        KeyError: when the function is called: there is no such leaf.
        RuntimeError: when the function is called: rows differ along an axis that is not padded.
    """
    if isinstance(value, list | Batch):  # given to a DataLoader as it is
        return _PAD(value)
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    if also not in (None, "lengths", "mask"):
        raise ValueError(f"also must be 'lengths', 'mask' or None, not {also!r}")
    if operator.index(multiple_of) < 1:
        raise ValueError(f"multiple_of must be positive, not {multiple_of}")
    return _Pad(_axes(leaves), value, side, multiple_of, also)


def pack_collate(samples: list[Any] | None = None, /, *, leaves: Sequence[str] | None = None) -> Any:
    """Returns a `collate_fn` that concatenates sequences into `Packed` values and offsets.

    Args:
        samples: the samples of a batch, to collate them directly.
        leaves: which leaves are sequences, along their first axis.

    Returns:
        A picklable function: samples -> batch; given samples, their batch.

    Raises:
        TypeError: `leaves` names axes.
    """
    if isinstance(leaves, Mapping):
        raise TypeError(f"leaves must be a list of names, not {leaves}: only first axes are packed")
    return _Pack(_axes(leaves)) if samples is None else _PACK(samples)


def _axes(leaves: Sequence[str] | Mapping[str, int] | None) -> dict[str, int] | None:
    if leaves is None:
        return None
    if isinstance(leaves, str) or not isinstance(leaves, Iterable):
        raise TypeError(f"leaves must be a list of names, not a {type(leaves).__name__}: {leaves!r}")
    axes = leaves if isinstance(leaves, Mapping) else dict.fromkeys(leaves, 0)
    if wrong := [name for name, axis in axes.items() if not isinstance(axis, SupportsIndex)]:
        raise TypeError(f"leaves= names an axis by a number: {wrong[0]!r} has {axes[wrong[0]]!r}")
    return dict(axes)


@dataclass(frozen=True)
class _Collate:
    """Gives sequences to `rows` and `ragged`, and all other leaves to torch's default collation."""

    axes: dict[str, int] | None

    def __call__(self, samples: Any) -> Any:
        """The batch of samples; in a worker, what it sends instead (collation.py)."""
        if isinstance(samples, Batch):
            table = samples.table
            collation = table.collation or Collation(table)
            if collation.planned is None or collation.planned[0] is not self:
                self._check(collation.paths)
                plan = [self._column(table, number, path) for number, path in enumerate(collation.paths)]
                collation.planned = self, plan
            leaves = [collate(samples) for collate in collation.planned[1]]
            return (collation.send if samples.pool is LENDING else collation.build)(leaves)
        rows: dict[tuple[str, ...], list[Any]] = {}
        for sample in samples:
            for path, leaf in leaves_of(sample):
                rows.setdefault(path, []).append(leaf)
        self._check(rows)
        return rebuilt(samples[0], lambda path, _: self._leaf(path, rows[path], len(samples)), (), list)

    def _check(self, paths: Iterable[tuple[str, ...]]) -> None:
        there = [".".join(path) for path in paths]
        if unknown := set(self.axes or ()) - set(there):
            raise KeyError(f"the samples have no leaf {sorted(unknown)}; they have {there}; '' is the sample")

    def _leaf(self, path: tuple[str, ...], rows: list[Any], count: int) -> Any:
        from torch.utils.data import default_collate

        if len(rows) != count:
            raise RuntimeError(
                f"leaf {'.'.join(path)!r} is in {len(rows)} of {count} samples: only tensors and arrays are "
                "padded or packed, so return numpy.array(x) or torch.tensor(x) instead of a list"
            )
        first, axis = rows[0], None
        if hasattr(first, "ndim") and hasattr(first, "shape") and not isinstance(first, np.generic):
            axis = self.axis(path, first.ndim)
        return default_collate(rows) if axis is None else self.rows(rows, axis, path)

    def axis(self, path: tuple[str, ...], ndim: int) -> int | None:
        """Along which axis a tensor or array leaf is a sequence; None if it is none."""
        if self.axes is None:
            return 0 if ndim == 1 else None
        axis = self.axes.get(".".join(path))
        if axis is not None and not -ndim <= axis < ndim:
            raise ValueError(
                f"leaf {'.'.join(path)!r} is {ndim}-dimensional, but leaves= names its axis {axis}"
            )
        return axis

    def _column(self, table: Table, number: int, path: tuple[str, ...]) -> CollateBatch:
        column, axis = table.columns[number], None
        if column is not None and column.leaf.kind in ("tensor", "ndarray"):
            axis = self.axis(path, column.leaf.ndim)
        if axis is None:
            return self._default(table, number)
        tail = column.tail if isinstance(column, Ragged) and axis in (0, -column.leaf.ndim) else None
        if isinstance(column, Ragged) and tail is not None and 0 not in tail:
            return self.ragged(column, tail)
        return lambda batch: self.rows(batch.leaf(number), axis, path)

    def _default(self, table: Table, number: int) -> CollateBatch:
        from torch.utils.data import default_collate

        gather, made_of = table.collation.leaves[number]

        def collate(batch: Batch) -> Any:
            try:
                return made_of(gather(batch.numbers, batch.pool))
            except NotAStack:
                return default_collate(batch.leaf(number))

        return collate

    def rows(self, rows: list[Any], axis: int, path: tuple[str, ...]) -> Any:
        """A batch of rows: tensors, or arrays, of the leaf at that path and of these samples."""
        import torch

        tensors = [torch.as_tensor(row).movedim(axis, 0) for row in rows]
        if len({(tensor.dtype, tensor.shape[1:]) for tensor in tensors}) > 1:
            raise RuntimeError(
                f"rows of leaf {'.'.join(path)!r} differ in dtype, or along another axis than {axis}"
            )
        return self.tensors(tensors, axis)

    def tensors(self, tensors: list[Any], axis: int) -> Any:
        """A batch of tensors that differ along their first axis only, which was `axis`."""
        raise NotImplementedError

    def ragged(self, column: Ragged, tail: tuple[int, ...]) -> CollateBatch:
        """Makes batches of a column whose rows have elements, and differ along their first axis only."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Pad(_Collate):
    value: complex
    side: str
    multiple_of: int
    also: str | None

    def tensors(self, tensors: list[Any], axis: int) -> Any:
        import torch

        lengths = np.array([len(tensor) for tensor in tensors], np.int64)
        width = self._width(lengths)
        padded = torch.full((len(tensors), width, *tensors[0].shape[1:]), self.value, dtype=tensors[0].dtype)
        for place, tensor in zip(padded, tensors, strict=True):
            place[slice(len(tensor)) if self.side == "right" else slice(width - len(tensor), None)] = tensor
        return self._with(padded.movedim(1, axis + 1 if axis >= 0 else axis), lengths)

    def ragged(self, column: Ragged, tail: tuple[int, ...]) -> CollateBatch:
        import torch

        to_tensor: Any = tensor_maker(column)
        at, unit = 1 if self.side == "left" else 0, math.prod(tail)
        pair = to_tensor(np.empty(2, column.dtype)).fill_(self.value)  # one takes what its dtype cannot hold
        padding = pair[:1].view(torch.uint8).numpy().tobytes()

        def collate(batch: Batch) -> Any:
            begin, end = column.bounds(batch.numbers)
            lengths = end - begin if unit == 1 else (end - begin) // unit
            width = self._width(lengths)
            sizes = ((width - lengths) * (unit * len(padding))).tolist()
            gap = memoryview(padding * (max(sizes) // len(padding)))
            pieces: list[Any] = [None] * (2 * len(lengths))
            pieces[at::2] = column.pieces(batch.numbers, begin, end)
            pieces[1 - at :: 2] = [gap[:size] for size in sizes]
            values = join(pieces, len(lengths) * width * unit, column.dtype, batch.pool)
            return self._with(to_tensor(values.reshape(len(lengths), width, *tail)), lengths)

        return collate

    def _width(self, lengths: Any) -> int:
        return -(-int(lengths.max()) // self.multiple_of) * self.multiple_of

    def _with(self, padded: Any, lengths: Any) -> Any:
        """`padded` and what was asked for beside it."""
        import torch

        if self.also is None:
            return padded
        if self.also == "lengths":
            return Padded(padded, torch.from_numpy(lengths))
        width = self._width(lengths)
        narrow = np.min_scalar_type(width)  # comparing is the dear part, and cheap for these
        places, held = np.arange(width, dtype=narrow), lengths.astype(narrow)[:, None]
        if self.side == "left":
            held = narrow.type(width) - held
        return Masked(padded, torch.from_numpy(places < held if self.side == "right" else places >= held))


@dataclass(frozen=True)
class _Pack(_Collate):
    def tensors(self, tensors: list[Any], axis: int) -> Any:
        import torch

        offsets = np.cumsum([0, *(len(tensor) for tensor in tensors)])
        return Packed(torch.cat(tensors), torch.from_numpy(offsets))

    def ragged(self, column: Ragged, tail: tuple[int, ...]) -> CollateBatch:
        import torch

        to_tensor: Any = tensor_maker(column)

        def collate(batch: Batch) -> Any:
            ranges = column.gather(batch.numbers, batch.pool)
            values, offsets = ranges.values, ranges.offsets
            if tail:
                values, offsets = values.reshape(-1, *tail), offsets // math.prod(tail)
            return Packed(to_tensor(values), torch.from_numpy(offsets))

        return collate


TAKES_BATCHES |= {id(one): one for one in (pad_collate, pack_collate, _Pad, _Pack)}
_PAD = _Pad(None, 0, "right", 1, None)
_PACK = _Pack(None)
"""What `pad_collate` and `pack_collate` do without parentheses."""
