"""Which share of the items falls to this process: one of all ranks of a job, and of their DataLoader workers.

Invariants:
    1. The shares of all workers of all ranks have each item once.
    2. How many items a rank has does not depend on the number of its workers.
    3. A rank that is known where workers are started is known in them, though they are other processes.
    4. torch and what is built on it is asked only where the job has loaded it.

NOTE [ Who splits twice ]
    What is split by somebody else as well loses items, and nobody sees it. Items that split themselves over
    workers (a WebDataset, a streaming data set of Hugging Face's) are read as if there were no workers. Where
    accelerate reads the data set, it deals out batches to the ranks itself: by rank 0 alone, or by having
    each rank read everything. That is seen by who asks, in the process or in the one that it was forked from.

Source: webdataset.utils.pytorch_worker_info; accelerate.data_loader (DataLoaderDispatcher,
IterableDatasetShard).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from prepcache.errors import ConfigError

_DEALERS = ("accelerate.data_loader", "transformers.trainer_pt_utils")


class Ranks(NamedTuple):
    """This rank, and how many there are."""

    rank: int = 0
    ranks: int = 1


class Split(NamedTuple):
    """A share: every `step`-th item from `first` on."""

    rank: int
    ranks: int
    worker: int
    workers: int

    @property
    def first(self) -> int:
        return self.worker * self.ranks + self.rank

    @property
    def step(self) -> int:
        return self.ranks * self.workers

    @property
    def is_first(self) -> bool:
        """Whether this process is the first of its rank's workers, or has none beside it."""
        return self.worker == 0


def ranks_here(known: Ranks | None = None) -> Ranks:
    """The ranks that share out items, as torch.distributed, torchrun or the process before this one says.

    Args:
        known: as of the process that this data set was sent from.

    Raises:
        ConfigError: RANK and WORLD_SIZE are no rank of any number.
    """
    if _is_dealt_out():
        return Ranks()
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    if known is not None:
        return known
    given = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in given:
        return Ranks()
    try:
        rank, ranks = (int(text or "") for text in given)
    except ValueError:
        rank, ranks = 0, 0
    if not 0 <= rank < ranks:
        raise ConfigError(
            f"RANK={given[0]!r} and WORLD_SIZE={given[1]!r} in the environment are not valid: unset them, or "
            "set both as torchrun does"
        )
    return Ranks(rank, ranks)


def split_here(known: Ranks | None = None) -> Split:
    """The share of this process."""
    info = _workers()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return Split(*ranks_here(known), worker, workers)


def _workers() -> Any:
    loaders: Any = sys.modules.get("torch.utils.data")
    ask = getattr(loaders, "get_worker_info", None)  # there is none while torch is being loaded
    return None if ask is None else ask()


@contextmanager
def unsplit() -> Iterator[None]:
    """While items are read: what they come from gives all of them, and leaves their splitting to us."""
    workers: Any = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(workers, "_worker_info", None)
    if info is None:
        yield
        return
    workers._worker_info = None
    try:
        yield
    finally:
        workers._worker_info = info


def _is_dealt_out() -> bool:
    """Whether somebody asks who deals out what he gets; see NOTE [ Who splits twice ]."""
    if not any(name in sys.modules for name in _DEALERS):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _DEALERS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
