"""Archives that are open to be read: zip files, and those of numpy's arrays, which are read when asked for.

Invariants:
    1. One counts by the bytes under its path, and only while what lies there is the file that is open: one in
       memory, one that is written, or whose path leads elsewhere by now, is refused.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from prepcache.keys.code.fleeting import Parts


def is_archive(value: Any) -> bool:
    """Whether an object is an open zip file, or what `numpy.load` makes of one."""
    return _is_zip(value) or _is_of_numpy(value)


def parts_of_archive(value: Any) -> Parts:
    """The file of an archive, and what it is read with.

    Raises:
        ValueError: it is not open to be read from a file with a path.
        OSError: its file is not there any more.
    """
    if _is_of_numpy(value):
        return [("zip", value.zip), ("reading", (value.allow_pickle, value.pickle_kwargs))]
    if value.mode != "r" or value.fp is None or not isinstance(value.filename, str):
        raise ValueError("it is not open to be read from a file")
    if not os.path.samestat(os.fstat(value.fp.fileno()), os.stat(value.filename)):
        raise ValueError(f"what lies at {value.filename} is not the file that it has open")
    return [("file", Path(value.filename)), ("pwd", value.pwd)]


def _is_zip(value: Any) -> bool:
    return type(value) is getattr(sys.modules.get("zipfile"), "ZipFile", None)


def _is_of_numpy(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "NpzFile" and kind.__module__.startswith("numpy.")
