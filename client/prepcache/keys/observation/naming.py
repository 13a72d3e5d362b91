"""Roots: how observed files are named, so that the name leads another job to the file that it would open.

NOTE [ Names of observed files ]
    A name must lead the next job to the file that *it* would open. Under the data set's `root=` a file is
    named relative to that, under the checkout relative to the checkout, and what was opened by a relative
    name, relative to the working directory; after a `chdir`, in each way that it may lead there. A path that
    stands as a literal in the code is absolute.
    Where one that is absolute was got from is not known, so it counts in each way that may lead to it:
      - under the working directory, also relative to that, if it is under neither root and under no absolute
        path that counts in the recipe, or the code asks for the working directory;
      - beside a root, also relative to that: labels beside the images, or `assets` beside the `src` of a
        project that was copied. A checkout is copied whole: what is beside it was not found from there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from prepcache.keys.code.project import is_checkout, working_folder
from prepcache.keys.recipes import Recipe

MAX_STEPS_UP = 2
"""From a root to a folder that holds what is beside it: `images/train` has labels in `labels/train`."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders that names are relative to: the checkout, the data set's `root=`, the working directory.

    Args:
        is_checkout: whether the first is one by its markers, and not only where the code is imported from.
        is_cwd_asked: whether the code asks for the working directory.
        counted: absolute paths that count in the recipe. What lies there was found by them.
    """

    project: str | None = None
    items: str | None = None
    cwd: str | None = None
    is_checkout: bool = True
    is_cwd_asked: bool = False
    counted: tuple[str, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, root: str | os.PathLike[str] | None = None) -> Roots:
        """The roots of this job."""
        items = None if root is None else os.path.abspath(os.fspath(root))
        is_whole = recipe.root is None or is_checkout(recipe.root)
        counted = tuple(sorted(recipe.absolute_paths))
        return cls(recipe.root, items, working_folder(), is_whole, recipe.asks_cwd, counted)

    def names(self, path: str, folder: str | None, is_literal: bool = False) -> list[str]:
        """How a file counts; see NOTE [ Names of observed files ].

        Args:
            folder: the working directory in which it was used by a relative name; None for an absolute one.
        """
        if is_literal:
            return [path]
        if folder is not None and self.cwd is not None:
            from_here = "cwd:" + os.path.relpath(path, self.cwd)
            if folder == self.cwd:
                return [from_here]
            # Whoever went there may have gone by any name, or may be there from the start.
            return list(dict.fromkeys(["cwd:" + os.path.relpath(path, folder), from_here, path]))
        for tag, root in (("items", self.items), ("project", self.project)):
            if root is not None and _is_within(path, root):
                from_cwd = self._from_cwd(path) if self.is_cwd_asked else ()
                return [f"{tag}:{os.path.relpath(path, root)}", *from_cwd]
        is_counted = not self.is_cwd_asked and any(_is_within(path, place) for place in self.counted)
        return [path, *(() if is_counted else self._from_cwd(path)), *self._beside(path)]

    def _from_cwd(self, path: str) -> Iterator[str]:
        if self.cwd is not None and _is_within(path, self.cwd):
            yield f"cwd:{os.path.relpath(path, self.cwd)}"

    def _beside(self, path: str) -> Iterator[str]:
        for tag, root in (("items", self.items), ("project", None if self.is_checkout else self.project)):
            if root is None:
                continue
            above = os.path.commonpath((path, root))
            steps = os.path.relpath(root, above).count(os.sep) + 1
            if above != os.sep and steps <= MAX_STEPS_UP:
                yield f"{tag}:{os.path.relpath(path, root)}"

    def path(self, name: str) -> str | None:
        """Where a name leads in this job; None if the root it is relative to is not known."""
        if name.startswith("/"):
            return name
        tag, _, rest = name.partition(":")
        root = {"project": self.project, "items": self.items, "cwd": self.cwd}.get(tag)
        return None if root is None else os.path.join(root, rest)


def _is_within(path: str, root: str) -> bool:
    """Whether a path is a root, or lies below it."""
    return path == root or path.startswith(root + os.sep)
