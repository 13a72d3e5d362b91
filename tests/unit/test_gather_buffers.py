"""Recycled buffers: never handed out while anybody can still reach them, and used again once nobody can."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from prepcache.batching.buffers import SMALL_BYTES, Pool

SIZE_BYTES = 1 << 20


def take(pool: Pool, size_bytes: int = SIZE_BYTES) -> np.ndarray[Any, Any]:
    return pool.empty((size_bytes // 4,), np.dtype(np.int32), size_bytes)


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


KEEPERS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "array": lambda a: a,
    "slice": lambda a: a[5:7],
    "view of a view": lambda a: a[100:][::2].reshape(2, -1)[1, :3],
    "tensor": torch.from_numpy,
    "tensor slice": lambda a: torch.from_numpy(a)[3:5],
    "tensor of another dtype": lambda a: torch.from_numpy(a).view(torch.uint8)[:9],
    "storage": lambda a: torch.from_numpy(a).untyped_storage(),
    "array of a tensor": lambda a: torch.from_numpy(a)[7:].numpy()[1:],
    "list of rows": lambda a: list(torch.from_numpy(a.reshape(8, -1)).unbind(0)),
    "one row of many": lambda a: torch.from_numpy(a.reshape(8, -1)).unbind(0)[4],
    "detached": lambda a: torch.from_numpy(a).detach(),
    "as_strided": lambda a: torch.from_numpy(a).as_strided((3, 3), (1, 1)),
    "memoryview": lambda a: memoryview(a)[10:20],
    "dlpack": lambda a: torch.from_dlpack(a),
    "graph": lambda a: torch.from_numpy(a).view(torch.float32) * torch.ones(1, requires_grad=True),
    "closure": lambda a: lambda: a,
    "cycle": lambda a: [c := [a], c.append(c)],
}


@pytest.mark.parametrize("keeper", KEEPERS.values(), ids=KEEPERS.keys())
def test_a_reachable_buffer_is_not_handed_out_again(keeper: Callable[[Any], Any]) -> None:
    pool = Pool()
    array = take(pool)
    array[:] = 7
    where = address(array)
    kept = keeper(array)
    del array
    for _ in range(5):
        other = take(pool)
        assert address(other) != where
        other[:] = 1
    del kept, other
    gc.collect()
    assert where in {address(take(pool)) for _ in range(1)} or where in _drain(pool)


def _drain(pool: Pool) -> set[int]:
    """Addresses of all blocks that are free now."""
    held = [take(pool) for _ in range(12)]
    return {address(array) for array in held}


def test_a_buffer_is_used_again_once_its_tensor_is_gone() -> None:
    pool = Pool()
    where = []
    for _ in range(6):
        tensor = torch.from_numpy(take(pool))
        where.append(tensor.data_ptr())
        del tensor
    assert len(set(where)) == 1


def test_threads_never_share_a_buffer() -> None:
    pool = Pool()
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            array = take(pool, SMALL_BYTES)
            array[:] = number
            if (array != number).any():
                wrong.append(number)
            del array

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_has_a_buffer_pool_of_its_own() -> None:
    pool = Pool()
    take(pool)
    with pool._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if len(take(pool)) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_slightly_smaller_size_reuses_a_buffer() -> None:
    pool = Pool()
    where = address(take(pool))
    assert address(take(pool, SIZE_BYTES - 4096)) == where
    assert address(take(pool, SIZE_BYTES // 8)) != where


def test_memory_of_another_kind_is_recycled_too() -> None:
    """As pinned memory is: the block is an array that refers to the tensor that owns it."""
    made = []

    def allocate(size_bytes: int) -> np.ndarray[Any, Any]:
        made.append(size_bytes)
        block: np.ndarray[Any, Any] = torch.empty(size_bytes, dtype=torch.uint8).numpy()
        return block

    pool = Pool(allocate=allocate, small_bytes=0)
    for _ in range(5):
        row = torch.from_numpy(pool.empty((10,), np.dtype(np.int32), 40))[3:4]
        row.fill_(1)
    assert len(made) == 2
    kept = [torch.from_numpy(pool.empty((10,), np.dtype(np.int32), 40))[3:4].fill_(n) for n in range(4)]
    assert [int(row) for row in kept] == [0, 1, 2, 3]
