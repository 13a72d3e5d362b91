"""Recycled memory for batches: numpy blocks that are handed out again once nobody refers to them.

Invariants:
    1. A block is handed out only while nothing but the pool refers to it. Whatever can reach its memory
       holds a reference to the block itself, because the block owns its memory; so its reference count tells.
    2. The count is read, and the block handed out, under one lock. Where counts are not exact (an interpreter
       without the GIL), nothing is recycled.
    3. Of the free blocks the one handed out last goes first, whose bytes are the likeliest to be in a cache;
       the one handed out longest ago is forgotten first.
    4. A forked child starts with an empty pool: its lock may have been held at the fork.

NOTE [ Aliases ]
    A processor takes a load for one of the bytes that were just stored if their addresses agree in the last
    twelve bits, and waits. Columns of whole pages begin on pages, as large blocks do, so arrays begin half a
    page into them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact.header import PAGE_BYTES

Block = npt.NDArray[np.uint8]

SMALL_BYTES = 64 * 1024
"""Below this malloc recycles as well as we could, and a pooled block would only be in the way."""

HUGE_PAGE_BYTES = 4 * 1024 * 1024
"""From this size on numpy asks the kernel for huge pages; blocks over half of it are made that large."""

PLACE_IN_PAGE = PAGE_BYTES // 2
"""Where in a page large arrays begin."""

KEPT_BLOCKS = 12
"""A training loop holds two or three batches of a few large columns; more is somebody's collection."""


def _references(blocks: list[tuple[Block, int]], position: int) -> int:
    return sys.getrefcount(blocks[position][0])


_UNUSED_REFERENCES = _references([(np.empty(1, np.uint8), 0)], 0)
"""What `_references` says of a block that only its list refers to; the number differs between Pythons."""

_IS_COUNT_EXACT: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


def _block(size_bytes: int) -> Block:
    return np.empty(size_bytes, np.uint8)


class Pool:
    """Blocks of memory that come back by themselves.

    Args:
        allocate: size in bytes -> a block; nothing but the block may refer to its memory.
        small_bytes: arrays smaller than this are left to malloc.
    """

    def __init__(
        self,
        kept_blocks: int = KEPT_BLOCKS,
        allocate: Callable[[int], Block] = _block,
        small_bytes: int = SMALL_BYTES,
    ) -> None:
        self._kept_blocks = kept_blocks
        self._allocate = allocate
        self._small_bytes = small_bytes
        self._start_empty()

    def __reduce__(self) -> Any:
        return Pool, (self._kept_blocks, self._allocate, self._small_bytes)

    def _start_empty(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # Blocks and where their arrays begin; guarded by _lock. The one handed out last is last.
        self._blocks: list[tuple[Block, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], size_bytes: int) -> npt.NDArray[Any]:
        """An uninitialised, writable, C-contiguous array of so many bytes, which nobody else can reach."""
        if size_bytes < self._small_bytes:
            return np.empty(shape, dtype)
        if self._pid != os.getpid():
            self._start_empty()
        with self._lock:
            return np.ndarray(shape, dtype, *self._free_block(size_bytes))

    def _free_block(self, size_bytes: int) -> tuple[Block, int]:
        """Call with the lock. A block that nobody else refers to, and where in it `size_bytes` begin."""
        size_bytes += PAGE_BYTES
        wanted_bytes = _rounded(size_bytes)
        blocks = self._blocks
        for position in reversed(range(len(blocks) if _IS_COUNT_EXACT else 0)):
            fits = size_bytes <= blocks[position][0].size <= 2 * wanted_bytes
            if fits and _references(blocks, position) == _UNUSED_REFERENCES:
                blocks.append(blocks.pop(position))
                return blocks[-1]
        block = self._allocate(wanted_bytes)
        blocks.append((block, (PLACE_IN_PAGE - block.ctypes.data) % PAGE_BYTES))
        del blocks[: -self._kept_blocks]
        return blocks[-1]


def _rounded(size_bytes: int) -> int:
    """Steps of a sixteenth, so that batches of nearly one size share blocks."""
    if HUGE_PAGE_BYTES // 2 < size_bytes <= HUGE_PAGE_BYTES:
        return HUGE_PAGE_BYTES
    step = 1 << max(12, size_bytes.bit_length() - 5)
    return -(-size_bytes // step) * step
