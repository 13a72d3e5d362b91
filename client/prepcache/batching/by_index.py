"""What a DataLoader worker sends in place of a batch: which data set it is of, and at which positions.

    worker:  fetch ── __getitems__ ──> Batch ── collation ──> ByIndex ── pickled: some bytes a sample ──┐
    job:     the batch  <── collated and gathered into recycled memory <── Batch <── unpickled  <───────┘

Both map the same artifacts, so no sample goes through shared memory or a pipe. The job's side runs where the
DataLoader unpickles: in the thread that pins memory where there is one, else where the batch is asked for.

Invariants:
    1. Only torch's own fetcher is given a `ByIndex`, which hands it on to the queue: code of the user's never
       sees one. What he collates, or looks at before, travels as bytes.
    2. Only a data set that the job has is named: the DataLoader's `dataset`, or one that this is a subset of.
       The iterator keeps it alive, and this worker did not open it itself. All its rows are in artifacts that
       the job has, or finds by asking the daemon.
    3. What fails in the job fails in the turn of its batch, as what fails in a worker does.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


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
    if not (_is_within(source, info.dataset) and source.is_known_to_parent()):
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


def _is_within(source: Source, dataset: Any) -> bool:
    """Whether a worker's data set is this one, or a subset of it."""
    while dataset is not None and dataset is not source:
        dataset = getattr(dataset, "dataset", None)
    return dataset is source


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
