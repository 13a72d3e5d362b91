"""Artifacts: immutable safetensors files that hold the samples of some items of one recipe, by columns.

    Writer(recipe).add(...).write(fd)     collects samples, writes a file
    open(path)                            maps a file: columns, rows, samples
    read_header(fd), check(fd)            what the daemon needs: no map, no torch
    merge(fds, headers, fd, producer=...) many small files into one, in bounded memory

Nothing is unpickled, evaluated or imported at the word of a file.
"""

from prepcache.artifact.header import Document, Header, read_header
from prepcache.artifact.reader import Artifact, check, open
from prepcache.artifact.writer import Writer, copy, merge

__all__ = [
    "Artifact",
    "Document",
    "Header",
    "Writer",
    "check",
    "copy",
    "merge",
    "open",
    "read_header",
]
