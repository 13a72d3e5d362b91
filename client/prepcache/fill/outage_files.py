"""What DataLoader workers could not commit: files that they leave in the user's cache folder.

A worker waits for no daemon that is away, as its job would wait for each of its workers. Every process of the
user that opens the recipe finds what is left, and has it stored.

Invariants:
    1. A file appears as a whole, and stays until what is in it is stored.
    2. Pieces of one item are taken together, or not at all: they are not left.
    3. What was left is used only where the observed inputs are what they were, and no refresh came since.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from prepcache.fill.pending import Batch, LocalFile, Task
from prepcache.index.item_index import MISSING
from prepcache.protocol.places import cache_folder

FORGOTTEN_S = 2 * 24 * 3600.0
"""What was left for another process is deleted then, if none has taken it."""


class LeftFiles:
    """What is left of one recipe."""

    def __init__(self, recipe: str) -> None:
        self._recipe = recipe
        self._leaving = threading.Lock()
        """Each is left once: a thread may be at it as the process ends."""
        self._known: set[str] = set()
        """Names of files that this process has left, or need not look at again."""

    def leave(self, batches: Iterable[Batch]) -> str:
        """Leaves what is in no such file yet; why something may not be left, or ""."""
        folder = _folder()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < time.time() - FORGOTTEN_S:
                        path.unlink()
            with self._leaving:
                for batch in batches:
                    if len(batch.files) == 1 and batch.left is None:
                        path = folder / f"{self._recipe}-{secrets.token_hex(8)}"
                        _write(batch.files[0], path)
                        batch.left = path
                        self._known.add(path.name)
        except OSError as error:
            return str(error)
        return ""

    def unknown(self) -> Iterator[Path]:
        return (path for path in _folder().glob(f"{self._recipe}-*") if path.name not in self._known)

    def take(self, path: Path, task: Task) -> Batch | None:
        """What is in a file, to be committed, if a data set has all its items and misses some."""
        catalogue = task.catalogue
        if (file := LocalFile.at(path)) is None:
            return None
        observed, table = list(file.artifact.header.inputs), file.artifact.item_digests
        # An input that has changed may change back.
        if file.artifact.edition < catalogue.edition or not task.by.artifacts.accepts(observed):
            return None
        self._known.add(path.name)
        items = catalogue.distinct.find(table)
        if (items == MISSING).any():  # it is another data set's
            return None
        if catalogue.is_shared(items).all():
            remove(path)
        elif any(map(catalogue.is_missing, items.tolist())):
            return Batch([file], items.tolist(), dict.fromkeys(map(bytes, table)), observed, left=path)
        return None


def _folder() -> Path:
    return cache_folder(os.environ) / "left"


def remove(path: Path) -> None:
    """Removes a file that is stored by now. Where its folder is read-only, it is passed over from now on."""
    with contextlib.suppress(OSError):
        path.unlink()


def _write(file: LocalFile, path: Path) -> None:
    part = path.with_name(f"part-{path.name}")
    try:
        with open(part, "xb") as copy:
            file.copy_to(copy.fileno())
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
