"""Artifacts: immutable safetensors files that hold the samples of some items of one recipe, by columns.

    open(path)                            maps a file: columns, rows, samples
    read_header(fd), check(fd)            what the daemon needs: no map, no torch
    writer.Writer(recipe).add(...).write(fd)     collects samples, writes a file
    writer.merge(fds, headers, fd, producer=...) many small files into one, in bounded memory

Nothing is unpickled, evaluated or imported at the word of a file.
"""

from prepcache.artifact.header import Document, Header, read_header
from prepcache.artifact.reader import Artifact, check, open

__all__ = ["Artifact", "Document", "Header", "check", "open", "read_header"]
