"""What a function made itself, and is no input of it: files that it wrote, folders with all that they hold.

A process that the function starts writes where nothing is seen: often into a folder that was made for that.
What lies in a folder that was not there before was put there by the function, or by what it started.
"""

from __future__ import annotations

import os


class Made:
    """The paths that a function made; a path is in it, too, where it lies below a folder that is."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}
        self._folders: dict[str, None] = {}
        self._links: dict[str, None] = {}

    def add(self, path: str) -> None:
        self._files[path] = None

    def add_folder(self, path: str) -> None:
        """Notes a folder that is about to be made, if nothing is there yet."""
        if not os.path.lexists(path):
            self._folders[path] = self._folders[os.path.realpath(path)] = None

    def add_link(self, path: str) -> None:
        """Notes another name of a file, which may be an input, wherever it lies."""
        self._links[path] = None

    def rename(self, path: str, other: str) -> None:
        """Notes that what it made gets another name."""
        names = self._folders if path in self._folders else self._files
        names[other] = None

    def __contains__(self, path: str) -> bool:
        is_within = path in self._folders or self._holds(path)
        return path in self._files or (is_within and path not in self._links)

    def target(self, path: str) -> str:
        """What a path leads to: elsewhere, if there is a link in a folder that it made."""
        if self._holds(path) and not self._holds(real := os.path.realpath(path)):
            return real
        return path

    def _holds(self, path: str) -> bool:
        while self._folders and (above := os.path.dirname(path)) != path:
            if above in self._folders:
                return True
            path = above
        return False
