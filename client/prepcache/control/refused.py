"""What a filesystem refused to take: an error that says where that was, and what to do.

The system's own message of a write names no file; and of one that has no name, no message could.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

_MENDS = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EROFS: "let it be written to",
    errno.EACCES: "let it be written to",
    errno.EPERM: "let it be written to",
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
