"""Batches: a list of samples that already holds them gathered, for torch's default collation.

    DataLoader ── __getitems__(indices) ──> Batch ── default_collate ──> batch[0] is a `_Row`
                                                        registered ──> the columns, gathered, as they are

Samples are made when somebody looks at the first; torch's `collate` alone, which looks at `batch[0]` to
choose how to collate, is shown a `_Row` there, whose type is registered with it.

Invariants:
    1. What is collated equals what `default_collate` makes of the samples. Whatever is not known to gather
       goes through torch's own code.
    2. Once samples were handed out they are the truth: a `collate_fn` which changes samples first is obeyed,
       and so is a changed `collate_fn_map`.
    3. C code that reads a list's items without asking the list (torch does) finds `_Row`s, which send a
       torch function on with the samples. Nothing finds an empty or a wrong list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact import columns, sample_tree
from prepcache.batching import collation
from prepcache.batching.buffers import Pool
from prepcache.batching.ragged import Ranges
from prepcache.batching.windows import Numbers

if TYPE_CHECKING:
    from prepcache.batching.gather import Table

Array = npt.NDArray[Any]
Gathered = Array | Ranges | None
"""A column's rows: `[k, ...]`, or end to end, or None for a column of None."""


class _Row:
    """Stands in a batch's list for samples that nobody looked at yet."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [list(arg) if isinstance(arg, Batch) else arg for arg in args]
        kwargs = {k: list(v) if isinstance(v, Batch) else v for k, v in (kwargs or {}).items()}
        return function(*args, **kwargs)


_ROW = _Row()
collation.register(_Row)


class Batch(list[Any]):
    """Samples of one table.

    Args:
        numbers: of its rows, in the order of the batch; at least one.
        indices: the positions in the data set, for messages, and in `source` for other processes.
        pool: where memory is taken from.

    Attributes:
        source: the data set, where another process may gather them; see collation.py.
    """

    __slots__ = ("_gathered", "_is_handed_out", "indices", "numbers", "pool", "source", "table")

    def __new__(cls, *given: Any) -> Any:
        """A batch; or a list, where others make one more of its type (Lightning and accelerate do)."""
        return list(*given) if len(given) < 2 else super().__new__(cls)

    def __init__(self, table: Table, numbers: Numbers, indices: npt.NDArray[np.int64], pool: Pool) -> None:
        self.table = table
        self.numbers = numbers
        self.indices = indices
        self.pool = pool
        self.source: Any = None
        self._is_handed_out = False
        self._gathered: list[Gathered] | None = None
        list.__init__(self, [_ROW] * numbers.size)

    @property
    def is_untouched(self) -> bool:
        """Whether no sample was handed out: then the columns say all there is to say."""
        return not self._is_handed_out

    def gathered(self) -> list[Gathered]:
        """The columns of these rows; gathered once."""
        if self._gathered is None:
            self._gathered = [
                None if column is None else column.gather(self.numbers, self.pool)
                for column in self.table.columns
            ]
        return self._gathered

    def leaf(self, number: int) -> Any:
        """The values of one leaf, as the samples hold them: views of what was gathered."""
        column, rows, count = self.table.columns[number], self.gathered()[number], self.numbers.size
        if column is None or rows is None:
            return [None] * count
        leaf = column.leaf
        if isinstance(rows, Ranges):
            if leaf.kind in columns.BYTE_KINDS:
                return list(map(columns.decode_bytes(leaf), rows.octets()))
            return list(map(columns.leaf_maker(leaf), rows.rows()))
        if leaf.kind in columns.FIXED_KINDS:
            return rows.tolist()
        if leaf.kind == "tensor":
            return columns.leaf_maker(leaf)(rows).unbind(0)
        is_scalar = leaf.kind == "ndarray" and rows.ndim == 1
        return [rows[i, ...] for i in range(count)] if is_scalar else list(rows)

    def _samples(self) -> list[Any]:
        build = sample_tree.builder(self.table.tree)
        leaves = [self.leaf(number) for number in range(len(self.table.columns))]
        if not leaves:
            return [build([]) for _ in range(self.numbers.size)]
        return [build(list(row)) for row in zip(*leaves, strict=True)]

    def _hand_out(self) -> None:
        if not self._is_handed_out:
            list.__setitem__(self, slice(None), self._samples())
            self._is_handed_out = True

    def __getitem__(self, index: Any) -> Any:
        if not self._is_handed_out and type(index) is int and index == 0:
            asked_by = sys._getframe(1)
            is_torch = asked_by.f_code is collation.COLLATE_CODE
            if is_torch and _Row in (asked_by.f_locals.get("collate_fn_map") or ()):
                return _ROW
        self._hand_out()
        return list.__getitem__(self, index)

    def __radd__(self, other: Any) -> Any:
        return other + list(self) if isinstance(other, list) else NotImplemented

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


def _handing_out(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def call(self: Batch, *args: Any, **kwargs: Any) -> Any:
        for batch in (self, *args):  # the C code of `+` and `==` reads the other list's items as they lie
            if isinstance(batch, Batch):
                batch._hand_out()
        return method(self, *args, **kwargs)

    call.__name__ = name
    call.__doc__ = method.__doc__
    return call


for _name in (
    *("__add__", "__contains__", "__delitem__", "__eq__", "__ge__", "__gt__", "__iadd__", "__imul__"),
    *("__iter__", "__le__", "__lt__", "__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__"),
    *("__setitem__", "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove"),
    *("reverse", "sort"),
):
    setattr(Batch, _name, _handing_out(_name))
