"""Refuses code that was replaced on disk after this process had loaded it: a distribution that was installed
again in a notebook, machine code that was built again.

What lies there now is not what runs here, and nothing is left to be read of what does. After a restart they
are the same.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

from prepcache.errors import UnkeyableError
from prepcache.keys.code.source_files import is_as_written, started_ns

_MACHINE_CODE = re.compile(r"\.so(\.|$)")
_DELETED = " (deleted)"
_compared: dict[tuple[str, int], bool] = {}
"""A distribution's metadata, and when it was installed, to whether this process has loaded another state of
it: what is loaded later is what was installed."""


def check_distribution(name: str, metadata: str, folder: str, top_levels: tuple[str, ...]) -> None:
    """Refuses a distribution of which this process has loaded what was there before it was installed.

    Args:
        metadata: its `.dist-info`, which an installer makes.
        folder: where its modules are.
    """
    try:
        installed_ns = os.stat(metadata).st_ctime_ns
    except OSError:
        installed_ns = sys.maxsize
    if installed_ns < started_ns():
        return
    state = metadata, installed_ns
    if state not in _compared:
        loaded = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in top_levels]
        own = [m for m in loaded if type(m) is ModuleType and _file_of(m).startswith(folder + os.sep)]
        if not own:
            return
        _compared[state] = any(map(_is_other, own))
    if _compared[state]:
        raise UnkeyableError(
            f"{name} was reinstalled after this process had loaded it, so the loaded version is not the "
            f"installed one: restart the kernel, or the process",
            path=metadata,
        )


def check_machine_code(path: str) -> None:
    """Refuses an extension module, or a library of `ctypes`, that was built again after it was loaded."""
    if is_other_machine_code(path):
        raise UnkeyableError(
            f"{path} was rebuilt after this process had loaded it, so the loaded code is not the file's: "
            f"restart the kernel, or the process",
            path=path,
        )


def is_other_machine_code(path: str) -> bool:
    """Whether this process has loaded machine code from a path under which another file lies now."""
    if not _MACHINE_CODE.search(os.path.basename(path)):
        return False
    real = os.path.realpath(path)
    try:
        info = os.stat(real)
        if info.st_ctime_ns < started_ns():
            return False
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            mapped = [line.rstrip("\n").split(maxsplit=5)[4:] for line in maps]
    except OSError:  # no Linux, or the file is gone
        return False
    if any(inode == str(info.st_ino) for inode, *_ in mapped):
        return False
    # An installer may have moved the old file before it removed it: of that the folder says nothing.
    gone = os.sep + os.path.basename(real) + _DELETED
    is_loaded = any(getattr(module, "__file__", None) == path for module in list(sys.modules.values()))
    return is_loaded or any(name[0].endswith(gone) for _, *name in mapped if name)


def _file_of(module: ModuleType) -> str:
    return str(vars(module).get("__file__"))


def _is_other(module: ModuleType) -> bool:
    """Whether a module has functions or constants that its file does not make."""
    path = _file_of(module)
    if path.endswith(tuple(EXTENSION_SUFFIXES)):
        return is_other_machine_code(path)
    return path.endswith(".py") and not is_as_written(module, path, is_library=True)
