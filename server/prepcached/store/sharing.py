"""The group whose jobs reach the store by path: what of a root is given to it, and what stays closed to it.

Folders that hold its files are given with them, and hand the group on to what is made in them (setgid).
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from prepcached.store.layout import Layout


def give(layout: Layout, group: int) -> None:
    """Gives a group what jobs read and write by path, as far as this user may; `closed_to` tells the rest."""
    root = os.path.realpath(layout.root)  # a link to it has a group of its own
    for path in (root, layout.instance, layout.versioned, layout.objects, layout.staging, layout.tmp):
        _give(path, group)
    status = os.stat(root)
    if status.st_gid == group:  # else it would be opened to another
        with contextlib.suppress(OSError):
            os.chmod(root, stat.S_IMODE(status.st_mode) | stat.S_IXGRP)
    for _, folder in layout.object_folders():
        if os.stat(folder).st_gid == group:  # it was given last, and so are its files
            continue
        with os.scandir(folder) as artifacts:
            for artifact in artifacts:
                _give(artifact.path, group)
        _give(folder, group)


def closed_to(layout: Layout, group: int) -> str | None:
    """The first folder, from `/` on, that who is in this group and has no other right cannot pass."""
    objects = Path(os.path.realpath(layout.objects))
    for path in (*reversed(objects.parents), Path(layout.staging)):
        status = os.stat(path)
        if not status.st_mode & (stat.S_IXGRP if status.st_gid == group else stat.S_IXOTH):
            return str(path)
    return None


def _give(path: str, group: int) -> None:
    with contextlib.suppress(OSError):
        if os.lstat(path).st_gid != group:
            os.chown(path, -1, group, follow_symlinks=False)
