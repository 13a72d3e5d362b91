"""Files that only this job has: their descriptors."""

from __future__ import annotations

import subprocess
import sys

AT_EXIT = """
import atexit, os

def still_there():
    os.fstat(fd)
    print("there")

atexit.register(still_there)        # after all that is registered later
from prepcache import artifact
from prepcache.fill.batch import LocalFile
from prepcache.digests import RecipeDigest
writer = artifact.Writer(RecipeDigest("0" * 64))
writer.add(bytes(32), [1], 0.0)
spilled = LocalFile(writer, {})
fd = spilled._fd
"""


def test_a_file_is_there_as_long_as_threads_may_write_it() -> None:
    told = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert (told.stdout, told.stderr) == ("there\n", "")
