"""What a DataLoader worker sends in place of a batch: which data set it is of, and at which positions.

    worker:  fetch ── __getitems__ ──> Batch ── collation ──> ByIndex ── pickled: some bytes a sample ──┐
    job:     the batch  <── collated and gathered into recycled memory <── Batch <── unpickled  <───────┘

Both map the same artifacts, so no sample goes through shared memory or a pipe. The job's side runs where the
DataLoader unpickles: in the thread that pins memory where there is one, else where the batch is asked for.

Invariants:
    1. Only torch's own fetcher is given a `ByIndex`, which hands it on to the queue: code of the user's never
       sees one. What he collates, or looks at before, travels as bytes.
    2. Only a data set that the job has is named: one within the DataLoader's `dataset`, which the iterator
       keeps alive, and that this worker did not open itself. All its rows are in artifacts that the job has,
       or finds by asking the daemon.
    3. What fails in the job fails in the turn of its batch, as what fails in a worker does.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]

MAX_LOOKED_AT = 1000
"""Data sets within each other that are looked through for ours."""


class Source(Protocol):
    """A data set whose batches may be named by positions.

    `token` is alike in all copies of it, in all processes; `opened_in` is the process that opened it.
    """

    @property
    def token(self) -> str: ...

    @property
    def opened_in(self) -> int: ...

    def __len__(self) -> int: ...

    def is_known_to_parent(self) -> bool:
        """Whether the process that started this one has, or finds, all rows that this one has."""

    def gathered(self, positions: Array) -> list[Any]:
        """The samples at these positions, as a `Batch` where they are there."""


_SOURCES: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Those of this process, by their identity: a class of the user's may be equal to others, or have no hash."""


def register(source: Source) -> None:
    """Has batches of this data set arrive in this process."""
    _SOURCES[id(source)] = source


def _sources() -> list[Any]:
    """Those that are alive. Other threads may open more meanwhile: the references are copied in one step."""
    return [source for ref in _SOURCES.valuerefs() if (source := ref()) is not None]


class ByIndex:
    """A batch on its way: pickled here, it is unpickled as the batch.

    Args:
        collate: of ours; None for torch's default collation.
        worker: its number, for messages.
    """

    __slots__ = ("collate", "count", "positions", "token", "worker")

    def __init__(self, source: Source, positions: Array, collate: Any, worker: int) -> None:
        self.token = source.token
        self.count = len(source)
        self.positions = positions.astype(np.min_scalar_type(max(self.count, 1)))
        self.collate = collate
        self.worker = worker

    def __reduce__(self) -> Any:
        sent = self.positions.dtype.char, self.positions.tobytes()
        return arrived, (self.token, self.count, *sent, self.collate, self.worker)


def in_place_of(batch: Any, collate: Any, asked_by: FrameType | None) -> ByIndex | None:
    """What to send in place of a batch that is about to be collated; None where its bytes must be sent.

    Args:
        collate: of ours, or None for torch's default collation.
        asked_by: the frame that gets what is returned here.
    """
    source = batch.source
    if source is None or asked_by is None or asked_by.f_code is not _fetch_code():
        return None
    import torch.utils.data

    info = torch.utils.data.get_worker_info()
    if info is None or source.opened_in == os.getpid():
        return None
    if not (_is_within(source, info) and source.is_known_to_parent()):
        return None
    at = batch.indices
    return ByIndex(source, np.where(at < 0, at + len(source), at), collate, info.id)


_code: CodeType | None = None


def _fetch_code() -> CodeType | None:
    """The code of torch's fetcher of map-style data sets."""
    global _code
    fetching = sys.modules.get("torch.utils.data._utils.fetch")
    if _code is None and fetching is not None:
        fetch: Callable[..., Any] | None = getattr(
            getattr(fetching, "_MapDatasetFetcher", None), "fetch", None
        )
        _code = getattr(fetch, "__code__", None)
    return _code


_within: tuple[Any, weakref.WeakValueDictionary[int, Any]] = (None, weakref.WeakValueDictionary())
"""A worker's data set, and those found within it, by their identity."""


def _is_within(source: Source, info: Any) -> bool:
    """Whether a worker's data set is, or is made of, this one."""
    global _within
    if _within[0] is not info.dataset:
        known = {id(one) for one in _sources()}
        found = {id(one): one for one in _walk(info.dataset) if id(one) in known}
        _within = info.dataset, weakref.WeakValueDictionary(found)
    return _within[1].get(id(source)) is source


def _walk(dataset: Any) -> Iterator[Any]:
    """A data set, and those that it is made of: in its attributes, and in their lists, tuples and dicts."""
    import torch.utils.data

    looked_at: dict[int, Any] = {}
    left = [dataset]
    while left and len(looked_at) < MAX_LOOKED_AT:
        one = left.pop()
        if id(one) in looked_at:
            continue
        looked_at[id(one)] = one
        if isinstance(one, list | tuple):
            left += one[:MAX_LOOKED_AT]
        elif isinstance(one, dict):
            left += list(one.values())[:MAX_LOOKED_AT]
        elif one is dataset or isinstance(one, torch.utils.data.Dataset):
            yield one
            left += [
                value
                for value in getattr(one, "__dict__", {}).values()
                if isinstance(value, torch.utils.data.Dataset | list | tuple | dict)
            ]


def arrived(token: str, count: int, dtype: str, raw: bytes, collate: Any, worker: int) -> Any:
    """The batch that a worker named, in the process that receives it; or torch's wrapper of an error."""
    from torch._utils import ExceptionWrapper

    from prepcache.batching.default_collate import collate_plain

    try:
        batch = _found(token, count).gathered(np.frombuffer(raw, dtype).astype(np.int64))
        return collate_plain(batch) if collate is None else collate(batch)
    except Exception:  # noqa: BLE001 - raised by the DataLoader in the batch's turn
        return ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]


def _found(token: str, count: int) -> Source:
    lengths: dict[int, Source] = {len(one): one for one in _sources() if one.token == token}
    if not lengths:
        raise RuntimeError(
            "a DataLoader worker sent positions of a CachedDataset that this process has already deleted: "
            "keep the data set until its last batch has arrived"
        )
    if count not in lengths:
        raise RuntimeError(
            f"the data set has {max(lengths):,} samples now, but had {count:,} when its DataLoader "
            "workers started: start a new epoch after prepare()"
        )
    return lengths[count]
