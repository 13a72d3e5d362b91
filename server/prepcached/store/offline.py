"""What is done to a root that no daemon has open: `prepcached rebuild` and `prepcached check`."""

from __future__ import annotations

import os
from os import PathLike

from prepcached.store.core import io_told
from prepcached.store.index import discard
from prepcached.store.records import Finding
from prepcached.store.recovery import Progress
from prepcached.store.root import Root
from prepcached.store.store import Store


def rebuild(root: str | PathLike[str], *, progress: Progress | None = None) -> dict[str, int]:
    """Makes a root's index again from its artifacts and recipes; returns what was done, by name.

    Args:
        progress: called now and then.

    Raises:
        RootUnusable, RootInUse, StoreError.
    """
    opened = Root(os.fspath(root))
    try:
        with io_told("the old index could not be deleted"):
            discard(opened.layout.index)
    finally:
        opened.close()
    store = Store(root, progress=progress)
    try:
        return dict(store.stats().recovered)
    finally:
        store.close()


def check_root(root: str | PathLike[str], *, repair: bool = False) -> list[Finding]:
    """Checks a root that no daemon has open, as it lies.

    Raises:
        RootUnusable, RootInUse, IndexCorrupt, StoreError.
    """
    store = Store(root, recover=False)
    try:
        return store.check(repair=repair)
    finally:
        store.close()
