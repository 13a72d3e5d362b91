"""What is done to a root that no daemon has open: `prepcached rebuild` and `prepcached check`.

Invariants:
    1. A folder that holds no store stays as it is: a wrong path is an error, not a healthy store.
    2. Only the daemon's own user works here: it could not write what root makes.
"""

from __future__ import annotations

import os
import pwd
import stat
from os import PathLike

from prepcache.errors import RootUnusable
from prepcached.store.core import io_told
from prepcached.store.db import discard
from prepcached.store.layout import Layout
from prepcached.store.records import Finding
from prepcached.store.recovery import NEW_INDEX
from prepcached.store.root import Root
from prepcached.store.store import Store


def rebuild(root: str | PathLike[str]) -> dict[str, int]:
    """Makes a root's index again from its artifacts; returns what was done, by name.

    Raises:
        RootUnusable, RootInUse, StoreError.
    """
    _check_there(root)
    opened = Root(os.fspath(root))
    try:
        with io_told("the old index could not be deleted"):
            discard(opened.layout.index)
    except BaseException:
        opened.close()
        raise
    store = Store(opened)
    try:
        return {name: n for name, n in store.counters.recovered.items() if name != NEW_INDEX}
    finally:
        store.close()


def check_root(root: str | PathLike[str], *, repair: bool = False) -> list[Finding]:
    """Checks a root that no daemon has open, as it lies.

    Raises:
        RootUnusable, RootInUse, IndexCorrupt, StoreError.
    """
    _check_there(root)
    store = Store(root, recover=False)
    try:
        return store.check(repair=repair)
    finally:
        store.close()


def _check_there(root: str | PathLike[str]) -> None:
    layout = Layout(os.path.abspath(root))
    try:
        found = os.stat(layout.versioned)
    except (FileNotFoundError, NotADirectoryError):
        found = None
    except OSError as error:
        raise RootUnusable(
            f"{layout.root} cannot be read ({error.strerror}): run this as the user of its daemon "
            "(sudo -u prepcache prepcached ...)",
            root=layout.root,
        ) from None
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise RootUnusable(
            f"{layout.root} is not a store: give --root, or its daemon's --config", root=layout.root
        )
    owner = found.st_uid
    if os.geteuid() == 0 != owner:
        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:
            user = f"'#{owner}'"
        raise RootUnusable(
            f"{layout.root} belongs to {user}: run this as that user (sudo -u {user} prepcached ...), "
            "or its daemon cannot write the files that root creates",
            root=layout.root,
        )
