"""What a filesystem refused: an error that says where that was, and what to do.

The system's own message of a write names no file; and of one that has no name, no message could.
"""

from __future__ import annotations

import errno
import grp
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MENDS = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
}


@contextmanager
def writing_in(folder: str | os.PathLike[str], or_else: str) -> Iterator[None]:
    """While something is written there.

    Args:
        or_else: what to do where nothing can be done about the folder.

    Raises:
        OSError: the same, with the folder and the ways out in its message.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's: what a signal handler of the job's raises, say
            raise
        mend = _MENDS.get(error.errno)
        ways_out = f"{mend} or {or_else}" if mend else or_else
        raise OSError(error.errno, f"{error.strerror}, in {os.fspath(folder)}: {ways_out}") from error


def for_whom(path: str) -> str:
    """To whom a socket is open that was refused to this user; empty where that cannot be told."""
    with suppress(OSError):
        status = Path(path).stat()
        if not status.st_mode & stat.S_IWGRP:
            return f"only user {status.st_uid} may connect"
        if status.st_gid not in (os.getegid(), *os.getgroups()):
            group = _group_name(status.st_gid)
            return (
                f"only members of the group {group} may connect: ask an administrator to add you, then log "
                "in again"
            )
    return ""


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
