"""Roots: how observed files are named, so that the name leads another job to the file that it would open.

NOTE [ Names of observed files ]
    A name must lead the next job to the file that *it* would open. Under the data set's `root=` a file is
    named relative to that, under the checkout relative to the checkout, and what was opened by a relative
    name, relative to the working directory. A path that stands as a literal in the code is absolute.
    One that is absolute, lies under the working directory, and under neither root, may be either, so it
    counts both ways.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from prepcache.keys.code.modules import working_folder
from prepcache.keys.recipes import Recipe


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders that names are relative to: the checkout, the data set's `root=`, the working directory."""

    project: str | None = None
    items: str | None = None
    cwd: str | None = None

    @classmethod
    def of(cls, recipe: Recipe, root: str | os.PathLike[str] | None = None) -> Roots:
        """The roots of this job."""
        items = None if root is None else os.path.abspath(os.fspath(root))
        return cls(recipe.root, items, working_folder())

    def names(self, path: str, is_relative: bool, is_literal: bool) -> list[str]:
        """How a file counts; see NOTE [ Names of observed files ]."""
        if is_literal:
            return [path]
        if is_relative and self.cwd is not None:
            return ["cwd:" + os.path.relpath(path, self.cwd)]
        for tag, root in (("items", self.items), ("project", self.project)):
            if root is not None and path.startswith(root + os.sep):
                return [f"{tag}:{path[len(root) + 1 :]}"]
        if self.cwd is not None and path.startswith(self.cwd + os.sep):
            return [path, f"cwd:{path[len(self.cwd) + 1 :]}"]
        return [path]

    def path(self, name: str) -> str | None:
        """Where a name leads in this job; None if the root it is relative to is not known."""
        if name.startswith("/"):
            return name
        tag, _, rest = name.partition(":")
        root = {"project": self.project, "items": self.items, "cwd": self.cwd}.get(tag)
        return None if root is None else os.path.join(root, rest)
