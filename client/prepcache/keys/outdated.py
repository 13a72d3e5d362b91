"""Whether code that this process has loaded is outdated: other code lies on the disk now.

Source that was edited after it was loaded counts as it was loaded. A distribution that was installed again
and machine code that was built again are refused: what runs is no longer on the disk, so it has no key.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterator
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from types import FunctionType, ModuleType

from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import read_source
from prepcache.keys.code.labels import space_of
from prepcache.keys.code.names import SCALARS
from prepcache.keys.files.stamps import path_stamp, racy_window_ns

_MACHINE_CODE = re.compile(r"\.so(\.|$)")
_DELETED = " (deleted)"
_FORKED = 0x40
"""A process that was forked and has executed no program of its own. Source: linux/sched.h, PF_FORKNOEXEC."""
_compared: dict[tuple[str, int], bool] = {}
"""A distribution's metadata, and when it was installed, to whether this process has loaded another state of
it: what is loaded later is what was installed."""


def is_replaced(metadata: str, folder: str, top_levels: Collection[str]) -> bool:
    """Whether this process has loaded a distribution before it was installed as it is now."""
    stamp = path_stamp(metadata)
    installed_ns = sys.maxsize if stamp is None else stamp[4]
    if installed_ns < started_ns():
        return False
    state = metadata, installed_ns
    if state not in _compared:
        loaded = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in top_levels]
        files = {m: str(vars(m).get("__file__")) for m in loaded if type(m) is ModuleType}
        own = [(m, file) for m, file in files.items() if file.startswith(folder + os.sep)]
        if not own:
            return False
        _compared[state] = any(_is_other(module, file) for module, file in own)
    return _compared[state]


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
    is_loaded = any(space_of(module).get("__file__") == path for module in list(sys.modules.values()))
    return is_loaded or any(name[0].endswith(gone) for _, *name in mapped if name)


def _is_other(module: ModuleType, path: str) -> bool:
    """Whether a module has functions or constants that its file does not make."""
    if path.endswith(tuple(EXTENSION_SUFFIXES)):
        return is_other_machine_code(path)
    return path.endswith(".py") and not is_as_written(module, path, is_library=True)


def runs_as_written(path: str) -> bool:
    """Whether the modules loaded from a file, if any, hold what its text says now."""
    loaded = [one for one in list(sys.modules.values()) if space_of(one).get("__file__") == path]
    return all(is_as_written(one, path) for one in loaded if type(one) is ModuleType)


def is_as_written(module: ModuleType, path: str, *, is_library: bool = False) -> bool:
    """Whether a module holds what the text of its file says, as far as functions and constants show.

    Args:
        is_library: whether `None` and containers may stand for what is set later, from elsewhere, too.
    """
    try:
        source = read_source(path, module.__name__)
    except UnkeyableError:
        return False
    # If the file may have changed since this process began, all definitions of a name must match.
    changed_ns = max(source.stamp[3:])
    is_young = not is_library and changed_ns + racy_window_ns(source.stamp[0]) > started_ns()
    for name, value in list(vars(module).items()):
        functions = _own_functions(value) if isinstance(value, type) else [value]
        codes = [one.__code__ for one in functions if isinstance(one, FunctionType)]
        if any(code.co_filename == path and not source.makes(code, is_only=is_young) for code in codes):
            return False
        literal = source.literals.get(name, value)
        is_fixed = not is_library or (literal is not None and isinstance(literal, SCALARS))
        if not is_young and type(literal) is type(value) and type(literal) in (dict, list, set):
            is_fixed &= not source.alters.may_alter(name, type(literal))  # as a registry is filled
        if literal is not value and is_fixed and not source.says(name, value):
            return False
    return True


def _own_functions(cls: type) -> Iterator[FunctionType]:
    """The functions of a class that have its name, those of its properties too."""
    for value in vars(cls).values():
        inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        inner = inner.fget if isinstance(inner, property) else inner
        if isinstance(inner, FunctionType) and inner.__qualname__.startswith(f"{cls.__qualname__}."):
            yield inner


@lru_cache(maxsize=1)
def started_ns() -> int:
    """When the process began whose modules these are, in ns since the epoch; 0 where that is not known."""
    try:
        fields = _stat_of("self")
        while int(fields[6]) & _FORKED and fields[1] != "1":
            fields = _stat_of(fields[1])
        ticks = int(fields[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // os.sysconf(
            "SC_CLK_TCK"
        )
    except (OSError, AttributeError, ValueError, IndexError):  # no Linux
        return 0
    return time.time_ns() - age_ns - 10_000_000  # the clock of ticks is this coarse


def _stat_of(pid: str) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
