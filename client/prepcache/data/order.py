"""Whether the workers of a process read a stream's items in one order, without which shares mean nothing.

Each passes over what falls to the others, by number alone. Where each shuffles by itself, some items are
given twice and others by nobody, and no worker can tell.

Invariants:
    1. Workers are compared within one epoch: another one may well be in another order. Who seeds torch anew
       for each has one number for all; but then the workers of the last one are dead.
    2. Only forked workers are compared, by memory from before the fork.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

import numpy as np

from prepcache.data.plan import Array

_WORKERS = 256
"""Rows; workers beyond are not compared."""


class Order:
    """What each worker read first in its epoch, in memory that they share."""

    def __init__(self) -> None:
        self._rows: Array = np.frombuffer(mmap.mmap(-1, _WORKERS * 32), "u8").reshape(_WORKERS, 4)

    def differs(self, worker: int, epoch: tuple[int, int], first: bytes) -> bool:
        """Notes what a worker read first; whether another one read another item first in that epoch.

        Args:
            epoch: a number that workers draw together, and how many epochs they have begun.
            first: the item's digest.
        """
        if worker >= _WORKERS:
            return False
        mask = (1 << 64) - 1
        digest = int.from_bytes(first[:8], "little")
        row = np.array([epoch[0] & mask, epoch[1], digest, os.getpid()], "u8")
        self._rows[worker] = row
        others = self._rows[(self._rows[:, :2] == row[:2]).all(axis=1) & (self._rows[:, 2] != row[2])]
        return any(_is_alive(pid) for pid in others[:, 3].tolist())


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False
