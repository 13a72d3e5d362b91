"""What a test leaves open: descriptors and threads that were not there when it began.

What an earlier test of the same process has left, and whatever closes meanwhile, does not count.
"""

import contextlib
import os
import threading
from pathlib import Path

Descriptor = tuple[str, str]
"""A number, and what it is open on; a number that is given out again is another descriptor."""


def descriptors(pid: int | str = "self") -> set[Descriptor]:
    """All that a process has open."""
    found = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # the listing's own, or closed meanwhile
            found.add((number, str(Path(f"/proc/{pid}/fd", number).readlink())))
    return found


class Leaks:
    """Remembers what is open when it is made, and lists what has been opened since."""

    def __init__(self) -> None:
        self._descriptors = descriptors()
        self._threads = set(threading.enumerate())

    def descriptors(self) -> list[Descriptor]:
        """Those opened since, and open."""
        return sorted(descriptors() - self._descriptors)

    def threads(self) -> list[threading.Thread]:
        """Those begun since, and running."""
        return [thread for thread in threading.enumerate() if thread not in self._threads]
