"""Artifacts: immutable safetensors files that hold the samples of some items of one recipe, by columns.

    Writer(recipe).add(...).write(fd)     collects samples, writes a file
    open(path)                            maps a file: columns, rows, samples
    read_header(fd), check(fd)            what the daemon needs: no map, no torch
    merge(fds, headers, fd, producer=...) many small files into one, in bounded memory

Nothing is unpickled, evaluated or imported at the word of a file.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prepcache.artifact.header import Header, read_header
from prepcache.artifact.reader import Artifact, check, open

if TYPE_CHECKING:
    from prepcache.artifact.layout import Written, copy
    from prepcache.artifact.merger import merge
    from prepcache.artifact.writer import Writer

__all__ = [
    "Artifact",
    "Header",
    "Writer",
    "Written",
    "check",
    "copy",
    "merge",
    "open",
    "read_header",
]

_LATE = {"Writer": "writer", "Written": "layout", "copy": "layout", "merge": "merger"}
"""What only those who write need."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'prepcache.artifact' has no attribute {name!r}")
    return getattr(import_module(f"prepcache.artifact.{_LATE[name]}"), name)
