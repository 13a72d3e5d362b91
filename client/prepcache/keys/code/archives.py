"""Archives: files that are open to be read, piece by piece, when they are asked for something.

    zipfile.ZipFile, numpy.load("x.npz")       the file, and what it is read with
    h5py's files, groups and data sets         the file, and the place in it
    lmdb.open(path, readonly=True)             the file of its data, and its flags

Invariants:
    1. One counts by the bytes under its path, and only while what lies there is the file that is open: one in
       memory, one that is written, or whose path leads elsewhere by now, is refused.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from prepcache.keys.code.fleeting import Parts

_OF_H5PY = ("File", "Group", "Dataset")
_DESCRIPTORS = "/dev/fd"
"""Where the system lists the files that this process has open."""


def is_archive(value: Any) -> bool:
    """Whether an object is one of these, or of its kind."""
    return _is_zip(value) or _is_of_numpy(value) or _is_of_h5py(value) or _is_lmdb(value)


def parts_of_archive(value: Any) -> Parts:
    """The file of an archive, and what it is read with.

    Raises:
        Exception: it is not open to be read from a file with a path, or its file is not there any more.
    """
    if _is_of_numpy(value):
        return [("zip", value.zip), ("reading", (value.allow_pickle, value.pickle_kwargs))]
    if _is_of_h5py(value):
        return _of_h5py(value)
    if _is_lmdb(value):
        return _of_lmdb(value)
    if value.mode != "r" or value.fp is None or not isinstance(value.filename, str):
        raise ValueError(_NOT_READ)
    _check_open(value.filename, value.fp.fileno())
    return [("file", Path(value.filename)), ("pwd", value.pwd)]


_NOT_READ = "it is not open to be read from a file"


def _check_open(path: str, *descriptors: int) -> None:
    lying = os.stat(path)
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # the one that listed them is closed by now
            if os.path.samestat(os.fstat(descriptor), lying):
                return
    raise ValueError(f"what lies at {path} is not the file that it has open")


def _is_zip(value: Any) -> bool:
    return type(value) is getattr(sys.modules.get("zipfile"), "ZipFile", None)


def _is_of_numpy(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "NpzFile" and kind.__module__.startswith("numpy.")


def _is_of_h5py(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ in _OF_H5PY and kind.__module__.startswith("h5py.")


def _of_h5py(value: Any) -> Parts:
    file = value.file
    if file.mode != "r" or file.driver != "sec2" or file.swmr_mode or value.name is None:
        raise ValueError(_NOT_READ)
    _check_open(file.filename, file.id.get_vfd_handle())
    return [("file", Path(file.filename)), ("name", value.name)]


def _is_lmdb(value: Any) -> bool:
    return type(value) is getattr(sys.modules.get("lmdb"), "Environment", None)


def _of_lmdb(value: Any) -> Parts:
    """It does not tell its descriptor; nobody else in the process need have its file open."""
    flags = value.flags()
    if not flags["readonly"]:
        raise ValueError(_NOT_READ)
    path = os.path.join(value.path(), "data.mdb") if flags["subdir"] else value.path()
    _check_open(path, *map(int, os.listdir(_DESCRIPTORS)))
    return [("file", Path(path))]
