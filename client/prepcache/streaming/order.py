"""Whether the workers of a process read a stream's items in one order, without which shares mean nothing.

Each passes over what falls to the others, by number alone. Where each shuffles by itself, some items are
given twice and others by nobody, and no worker can tell.

Invariants:
    1. Workers are compared within one epoch: another one may well be in another order. Who seeds torch anew
       for each has one number for all; but then the workers of the last one are dead.
    2. Only workers of one process are compared, by memory that they have from it; ranks have none in common.
"""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np

from prepcache.streaming.shared_numbers import Common

_WORKERS = 256
"""Rows; workers beyond are not compared."""


class Order:
    """What each worker read first in its epoch, in memory that they share."""

    def __init__(self) -> None:
        self._common = Common((_WORKERS, 4), "u8")

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
        rows = self._common.rows
        rows[worker] = row
        others = rows[(rows[:, :2] == row[:2]).all(axis=1) & (rows[:, 2] != row[2])]
        return any(_is_alive(pid) for pid in others[:, 3].tolist())


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False
