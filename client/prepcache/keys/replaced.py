"""Code that was replaced after this process had loaded it: a distribution installed anew in a notebook, an
extension module that was built again.

What there is now is not what runs here, and of what does run nothing is left to be read. So it counts as this
process's alone: other jobs neither get what is made with it, nor is it in their way, or in its.

Invariants:
    1. It counts alike in what this process forks, and in no other: that may have loaded yet another version.
    2. It is said, once for each.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES

from prepcache import loaded

log = logging.getLogger("prepcache")

HERE = f"replaced after it was loaded in process {os.urandom(8).hex()}"

_DELETED = " (deleted)"
_told: set[str] = set()


def is_installed_anew(metadata: str, modules: Iterable[str], name: str) -> bool:
    """Whether a distribution was installed after this process had loaded it.

    Args:
        metadata: its `.dist-info`, which an installer makes.
        modules: its top-level modules.
        name: for people.
    """
    folder = os.path.dirname(metadata)
    times = [at_ns for module in modules if (at_ns := loaded.when_loaded(folder, module)) is not None]
    try:
        is_newer = bool(times) and os.stat(metadata).st_ctime_ns > min(times)
    except OSError:
        is_newer = True
    return is_newer and _say(name, "installed")


def is_built_anew(path: str) -> bool:
    """Whether a file is an extension module that this process has loaded, and another is in its place now."""
    if not path.endswith(tuple(EXTENSION_SUFFIXES)):
        return False
    gone = os.path.realpath(path) + _DELETED
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            is_gone = any(line.rstrip("\n").endswith(gone) for line in maps)
    except OSError:  # no Linux
        return False
    return is_gone and _say(path, "built")


def _say(name: str, how: str) -> bool:
    if name not in _told:
        _told.add(name)
        log.warning(
            "prepcache: %s was %s anew after this process had loaded it: what this job makes from here on is "
            "kept from other jobs; restart it to share it again",
            name,
            how,
        )
    return True
