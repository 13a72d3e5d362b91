"""Data sets end to end, whose batches are gathered whole: what `ds + other` gives.

torch's `ConcatDataset` asks for one sample at a time, also where its parts have whole batches.

Invariants:
    1. Samples and their order are those of a `ConcatDataset` of the same data sets.
    2. A batch is one gather where all parts are data sets of ours as they are, with all samples there; else
       each part is asked for its share.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset

from prepcache.batching import by_index
from prepcache.batching.batch import Batch
from prepcache.batching.gather import Rows, positions
from prepcache.dataset import CachedDataset
from prepcache.index.item_index import Array
from prepcache.index.snapshot import View
from prepcache.torch_types import T_co


class Concatenation(ConcatDataset[T_co]):
    """Made by `ds + other`."""

    _joined: tuple[list[View], Rows] | None = None

    def __init__(self, datasets: Iterable[Any]) -> None:
        super().__init__(datasets)
        self._token = secrets.token_hex(8)
        by_index.register(self)

    def __add__(self, other: Any) -> Concatenation[Any]:
        return Concatenation([*self.datasets, other])

    def __getitems__(self, indices: Any) -> list[T_co]:
        """The samples at these positions."""
        at = positions(indices, len(self))
        at = np.where(at < 0, at + len(self), at)
        outside = at[(at < 0) | (at >= len(self))]
        if len(outside):
            raise IndexError(f"index {outside[0]} is out of range for a data set of {len(self)} samples")
        rows = self._rows()
        if rows is not None:
            batch = rows.take(at)
            if isinstance(batch, Batch):
                batch.source = self
            return batch
        return self._of_parts(at)

    def _of_parts(self, at: Array) -> list[Any]:
        samples: list[Any] = [None] * len(at)
        part_of = np.searchsorted(self.cumulative_sizes, at, side="right")
        for number in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == number)
            start = self.cumulative_sizes[number - 1] if number else 0
            some, part = (at[places] - start).tolist(), self.datasets[number]
            many = getattr(part, "__getitems__", None)
            found = [part[index] for index in some] if many is None else many(some)
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = sample
        return samples

    def _rows(self) -> Rows | None:
        """The rows of all parts, where batches may be gathered from them."""
        views = []
        for part in self.datasets:
            view = part.whole_view() if isinstance(part, CachedDataset) else None
            if view is None:
                return None
            views.append(view)
        if self._joined is None or any(a is not b for a, b in zip(self._joined[0], views, strict=True)):
            self._joined = views, Rows.joined([view.rows for view in views])
        return self._joined[1]

    @property
    def token(self) -> str:
        """Alike in all copies."""
        return self._token

    @property
    def opened_in(self) -> int:
        """The process that opened the last part of them."""
        ours = [part.opened_in for part in self.datasets if isinstance(part, CachedDataset)]
        return os.getpid() if os.getpid() in ours else ours[-1]

    def is_known_to_parent(self) -> bool:
        """Whether the process that started this one has, or finds, all samples that are here."""
        return all(part.is_known_to_parent() for part in self.datasets if isinstance(part, CachedDataset))

    def gathered(self, positions: Array) -> list[Any]:
        """The samples at these positions, for a worker that named them."""
        rows = self._rows()
        return self._of_parts(positions) if rows is None else rows.take(positions)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_joined"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        by_index.register(self)
