"""A daemon that lives and does not answer, noted for the next jobs of this user.

A service that cannot start keeps its socket for a while, and each job would find that out by waiting.

Invariants:
    1. A note counts for `NOTED_S`, and goes when any job of the user is answered.
    2. A note that is wrong costs a job nothing: it still looks for the daemon, and shares when
       the daemon answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from prepcache.daemon import waits
from prepcache.protocol.places import cache_folder

MAX_BYTES = 64
FOLDER = "silent-v1"


def note(url: str, clock: Callable[[], float] = time.time) -> None:
    """Notes that the daemon at this address does not answer; since when, if that is noted already."""
    since, path = noted(url, clock) or clock(), _path(url)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(f"{since:.0f}\n", encoding="ascii")
        os.utime(new, (clock(), clock()))
        new.replace(path)


def noted(url: str, clock: Callable[[], float] = time.time) -> float | None:
    """Since when the daemon at this address does not answer, as a job of this user found within the
    minute."""
    with contextlib.suppress(OSError, ValueError), open(_path(url), encoding="ascii") as file:
        if 0 <= clock() - os.fstat(file.fileno()).st_mtime < waits.NOTED_S:
            return float(file.read(MAX_BYTES))
    return None


def forget(url: str) -> None:
    """The daemon answers."""
    with contextlib.suppress(OSError):
        _path(url).unlink()


def _path(url: str) -> Path:
    return cache_folder(os.environ) / FOLDER / hashlib.sha256(url.encode()).hexdigest()[:16]
