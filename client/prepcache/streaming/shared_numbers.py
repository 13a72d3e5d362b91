"""Numbers that the processes of a job have in common: those that it forks, and those that it spawns.

Invariants:
    1. A process that multiprocessing starts, by whatever method, writes into the memory of the one that
       started it. What is pickled otherwise, as into a file, begins with zeros.
    2. One process is sent a descriptor once, however often it is pickled for it: twice, it would not start.
"""

from __future__ import annotations

import mmap
import os
import weakref
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from prepcache.index.item_index import Array


class Common:
    """A table of numbers, zeros at first.

    Args:
        fd: memory of another process's table, which is this one's now.

    Attributes:
        rows: the numbers.
    """

    def __init__(self, shape: tuple[int, int], kind: str, fd: int | None = None) -> None:
        self._made = shape, kind
        self._sent: tuple[weakref.ref[Any], Any] | None = None
        nbytes = shape[0] * shape[1] * np.dtype(kind).itemsize
        try:
            self._fd = os.memfd_create("prepcache") if fd is None else fd
            weakref.finalize(self, os.close, self._fd).atexit = False  # threads may still use it then
            os.ftruncate(self._fd, nbytes)
            memory = mmap.mmap(self._fd, nbytes)
        except OSError:  # there are too many descriptors: forked processes have it nevertheless
            self._fd, memory = -1, mmap.mmap(-1, nbytes)
        self.rows: Array = np.frombuffer(memory, kind).reshape(shape)

    def __reduce__(self) -> Any:
        started = context.get_spawning_popen()
        if started is None or self._fd < 0:
            return Common, self._made
        if self._sent is None or self._sent[0]() is not started:
            self._sent = weakref.ref(started), reduction.DupFd(self._fd)
        return _received, (*self._made, self._sent[1])


def _received(shape: tuple[int, int], kind: str, sent: Any) -> Common:
    return Common(shape, kind, sent.detach())
