"""The loader: a DataLoader's batches in a DataLoader's order, ahead of the consumer."""

import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from prepcache import loader as loader_module
from prepcache.loader import AHEAD, Loader
from support.artifacts import same
from support.observing import told_by_child
from support.programs import python
from support.rows import Stored, stored_images

COUNT = 23


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return stored_images(tmp_path_factory.mktemp("stored"), COUNT)


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prepcache-loader")]


SCALE: ContextVar[int] = ContextVar("SCALE", default=1)


class Scaled:
    """What a function or a transform that reads a context variable makes."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index * SCALE.get()


def test_samples_see_the_context_variables_of_whoever_iterates():
    token = SCALE.set(10)
    try:
        batches = list(Loader(Scaled(), batch_size=3))
    finally:
        SCALE.reset(token)
    assert [batch.tolist() for batch in batches] == [[0, 10, 20]]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_equal_a_dataloaders_with_the_same_generator(stored, shuffle, drop_last):
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": shuffle, "drop_last": drop_last}
    loader = Loader(stored, generator=seeded(), **arguments)
    plain = DataLoader(stored, generator=seeded(), **arguments)
    assert len(loader) == len(plain)
    for _ in range(3):
        assert same(list(loader), list(plain))


def test_memory_is_used_again_for_batches_that_nobody_keeps(stored):
    loader = Loader(stored, 8)
    addresses = {images.data_ptr() for _ in range(10) for images, _ in loader if len(images) == 8}
    assert len(addresses) <= AHEAD + 4


def test_a_consumer_that_leaves_ends_the_thread(stored):
    loader = Loader(stored, 1)
    for _ in loader:
        break
    epoch = iter(loader)
    next(epoch)
    threads = loader_threads()
    assert threads
    del epoch
    gc.collect()
    for thread in threads:
        thread.join()


class Broken(Stored):
    def __getitems__(self, indices: Any) -> list[Any]:
        if 9 in indices:
            raise ValueError("sample 9 is bad")
        return super().__getitems__(indices)


def test_an_error_reaches_the_consumer_at_its_batch(stored):
    given = []
    with pytest.raises(ValueError, match="sample 9"):
        for _, found in Loader(Broken(stored.rows), 4):
            given += found.tolist()
    assert given == list(range(8))
    for thread in loader_threads():
        thread.join()


def test_any_data_set_will_do(stored):
    plain = [(torch.ones(2) * i, i) for i in range(5)]
    assert numbers(Loader(plain, 2)) == [[0, 1], [2, 3], [4]]
    assert numbers(Loader(Subset(stored, [5, 3, 9]), 2)) == [[5, 3], [9]]
    assert list(Loader([], 2)) == []
    assert numbers(Loader(plain[:1], 2)) == [[0]]


def test_batch_sizes_that_cannot_work_are_refused(stored):
    for size in (None, "8"):
        with pytest.raises(TypeError, match="interpreted as an integer"):
            Loader(stored, size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be positive, not 0"):
        Loader(stored, 0)
    assert len(Loader(stored, np.int64(8))) == 3


def test_what_has_no_positions_is_refused():
    with pytest.raises(TypeError, match="takes a map-style data set, not NoneType"):
        Loader(None)

    class Ones(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    with pytest.raises(TypeError, match="not Ones: use torch's DataLoader"):
        Loader(Ones())


class _OneAtATime(torch.utils.data.Dataset[Any]):
    """As over a file with one reader; makes so many samples as it may."""

    def __init__(self) -> None:
        self.lock, self.may_make = threading.Lock(), threading.Semaphore(2)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        self.may_make.acquire()
        with self.lock:
            return torch.tensor(index)


def test_an_epoch_that_ends_in_anothers_thread_is_not_awaited(monkeypatch):
    """The garbage collector ends it there, while that thread has what the epoch's own waits for."""
    monkeypatch.setattr(loader_module, "LEAVE_S", None)
    one_at_a_time = _OneAtATime()
    left = iter(Loader(one_at_a_time, 2))
    assert next(left).tolist() == [0, 1]

    class Ends(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            with one_at_a_time.lock:
                one_at_a_time.may_make.release(8)
                left.close()  # type: ignore[attr-defined]
            return torch.tensor(index)

    assert [batch.tolist() for batch in Loader(Ends())] == [[0]]


# --- in processes: what is forked, what is sent, the end of one ---

KEPT = """
import atexit, builtins, threading, numpy, torch

atexit.register(lambda: print([t.name for t in threading.enumerate() if "prepcache" in t.name]))

from prepcache.loader import Loader

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, i): return i

builtins.epoch = iter(Loader(Rows(), 2))
assert next(builtins.epoch).tolist() == [0, 1]
"""


def test_an_epoch_kept_to_the_end_of_a_process_ends_silently():
    """Its thread ends before the interpreter kills threads, which aborts in the middle of torch's code."""
    done = python("-c", KEPT)
    assert (done.stdout, done.stderr) == ("[]\n", "")


STUCK = """
import builtins, threading
from prepcache import loader

loader.LEAVE_S = 0.1

class Rows:
    def __len__(self): return 100
    def __getitem__(self, i):
        return i if i < 2 else threading.Event().wait()

builtins.epoch = iter(loader.Loader(Rows(), 2))
assert next(builtins.epoch).tolist() == [0, 1]
raise KeyError("left")
"""


def test_a_process_ends_in_the_middle_of_a_slow_batch():
    assert python("-c", STUCK, code=1).stderr.endswith("KeyError: 'left'\n")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_epoch_does_not_go_on_in_a_forked_process():
    """The thread is not there: waiting for its batches would be for ever."""
    epoch = iter(Loader(list(range(9)), 2))
    next(epoch)

    def refused() -> str:
        with pytest.raises(RuntimeError) as caught:
            next(epoch)
        return str(caught.value)

    assert "begin another one here" in told_by_child(refused)
    assert [batch.tolist() for batch in epoch] == [[2, 3], [4, 5], [6, 7], [8]]


@pytest.mark.parametrize("send", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_loader_goes_to_another_process_as_a_dataloader_does(send):
    loader = Loader(list(range(6)), 2)
    epoch = iter(loader)
    next(epoch)
    there = send(loader)
    assert [batch.tolist() for batch in there] == [[0, 1], [2, 3], [4, 5]]
    assert [batch.tolist() for batch in epoch] == [[2, 3], [4, 5]]
