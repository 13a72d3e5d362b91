"""Paths that a function asks about: by `os.path.exists` and its like, or by those of a `pathlib` path.

What may be missing, as a label beside its image, is often asked for first, and not opened if it is not there.

NOTE [ Files that are only asked for ]
    What is there counts as what is under a path that was built (built.py). Of what is not there the watch
    only takes note: a function that asks for a file often makes it next. When the work on the item has
    ended, there is
      - nothing: it counts as a file that was opened and was not there;
      - what the function may have made: its product, or, where it counts already, as for an item before, an
        input as the function leaves it (seen.py);
      - a folder, a link or a file that the function put there, or a folder that it tried to make: its
        product, too, but what it holds counts where that is opened;
      - what somebody else put there: it has changed, as the sample may be made of its absence, or not.

Invariants:
    1. As in built.py: the functions stay the objects that they are.
    2. Only what code of the job's asks counts. glob and pathlib ask for who calls them; but `resolve` asks
       for nothing: it looks for loops of links.
    3. What it was answered is not there counts so, whatever is there when that is noted.
    4. Nothing here raises.

Not seen: `os.stat`, `os.lstat` and `os.access`, which are in C; what a library asks.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from prepcache import opens
from prepcache.keys import built, watches
from prepcache.keys.built import Told
from prepcache.keys.made import Made
from prepcache.keys.seen import Seen
from prepcache.keys.watches import Watch

_NAMES = ("exists", "lexists", "isfile", "isdir", "getsize", "getmtime")
_CODE = """
def {name}{signature}:
    if not _prepcache_watches:
        return _prepcache_{name}({arguments})
    try:
        answer = _prepcache_{name}({arguments})
    except OSError:
        _prepcache_{name}_told({first}, False)
        raise
    _prepcache_{name}_told({first}, answer is not False)
    return answer
"""
_KINDS: dict[str, Callable[[int], bool]] = {"isfile": stat.S_ISREG, "isdir": stat.S_ISDIR}
"""Of functions that answer no where something of another kind is, too: whether a mode is of theirs."""


def listen(told: Told) -> None:
    """Calls `told`, which never raises, with each path that is asked for and under which something is while a
    function is watched; notes with its watch those under which nothing is.

    Called once in a process.
    """
    functions: list[Any] = [getattr(os.path, name) for name in _NAMES]
    functions.append(Path.stat)  # that the others of a path call, or those of os.path
    # Modules that the interpreter starts with say where they are in their code alone.
    files = {one.__code__.co_filename for one in functions if isinstance(one, FunctionType)}
    modules = [glob, *(sys.modules[kind.__module__] for kind in Path.__mro__)]
    files.update(getattr(module, "__file__", "") for module in modules)

    def listened(name: str) -> Callable[[Any, bool], None]:
        is_kind = _KINDS.get(name, bool)

        def asked(path: Any, is_there: bool) -> None:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename in files:
                if frame.f_code.co_name == "resolve":
                    return
                frame = frame.f_back
            if not opens.is_of_job(frame) or isinstance(path, int):
                return
            try:
                name = os.fspath(path)  # once, and here: it is no conversion by the function
                try:
                    mode = None if is_there else _mode_now(name)
                except (OSError, ValueError):
                    return
                is_told = is_there or (mode and not is_kind(mode))
                built.tell(told if is_told else _note_missed, name, frame)
            except Exception as error:  # noqa: BLE001 - as the hook
                watches.fail(error)

        return asked

    for function in functions:
        built.add(function, _CODE, listened(function.__name__))


def _mode_now(path: str | bytes) -> int:
    """The mode of what is there; 0 for nothing.

    Raises:
        OSError, ValueError: nothing can have such a name.
    """
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        return 0


def _note_missed(path: str | bytes, frame: FrameType | None) -> None:
    for one in watches.present(frame) if path else ():
        one.note_missed(os.fsdecode(path), frame)


def settle(
    watch: Watch,
    seen: Mapping[str, Seen],
    made: Made,
    opened: Callable[[str, bool, Watch], None],
    changed: Callable[[Seen], None],
) -> None:
    """Counts what was asked for and was not there; see NOTE [ Files that are only asked for ].

    Args:
        opened: counts a file that is opened, not to be written, in a watch.
        changed: counts one as another than it was.
    """
    for (path, is_relative), tables in list(watch.missed.items()):
        known, is_there = seen.get(path), opens.stat_of(path) is not None
        is_placed = is_there and path in watch.placed
        is_made = is_placed or watch.has_made(path)
        if path in made or (is_made and known is not None and known.makes(watch.made)) or is_placed:
            continue
        if known is not None and known.stamp is None and not is_there:
            known.is_absolute |= not is_relative
        else:
            opened(path, False, watch)
        if (counted := seen.get(path)) is None:
            continue
        if known is None:
            counted.is_relative = is_relative
        if counted.stamp is not None:
            counted.stamp = None
            changed(counted)
        opens.note_missing(path, is_relative, tables)
