"""Where a source file belongs: the project, an installed distribution, the standard library, or prepcache.

The project is all that is none of the other three. Module files are named by how they are imported, other
files relative to the checkout that holds them: its place is in no name.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping, Set
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import FunctionType

import prepcache

MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git", ".hg")
SELF_MODULES = frozenset({"prepcache", "prepcached"})
"""prepcache's own modules count by their format versions, not by their bytes."""

_SELF = os.path.dirname(os.path.realpath(str(prepcache.__file__))) + os.sep
_SITE_NAMES = frozenset({"site-packages", "dist-packages"})


class Place(Enum):
    PROJECT = "project"
    SITE = "site"
    STDLIB = "stdlib"
    SELF = "self"


class Places:
    """Tells where files belong. Lives for one fingerprint.

    Args:
        installed: folder on `sys.path` -> the top-level modules that distributions installed there. A module
            there that no distribution owns counts like the project's own.
    """

    def __init__(self, installed: Mapping[str, Set[str]]) -> None:
        self._installed = [(os.path.realpath(folder) + os.sep, tops) for folder, tops in installed.items()]
        self.owned = frozenset(top for tops in installed.values() for top in tops)
        self._known: dict[str, Place] = {}
        self._folders: dict[str, str] = {}
        paths = sysconfig.get_paths()
        self._stdlib = tuple(os.path.realpath(paths[name]) + os.sep for name in ("stdlib", "platstdlib"))

    def of(self, path: str) -> Place:
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._find(self._real(path))
        return known

    def _real(self, path: str) -> str:
        """As `os.path.realpath`, but that each folder is looked up once."""
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or os.path.islink(path):
            return os.path.realpath(path)
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = os.path.realpath(folder)
        return os.path.join(real, name)

    def tops_of(self, path: str) -> list[str]:
        """The top-level module that an installed file belongs to; none for other files."""
        real = os.path.realpath(path)
        within = [real[len(folder) :] for folder, _ in self._installed if real.startswith(folder)]
        return [inside.partition(os.sep)[0].partition(".")[0] for inside in within]

    def _find(self, real: str) -> Place:
        if real.startswith(_SELF):
            return Place.SELF
        for folder, tops in self._installed:
            if real.startswith(folder):
                top = real[len(folder) :].partition(os.sep)[0].partition(".")[0]
                return Place.SITE if top in tops else Place.PROJECT
        if real.startswith(self._stdlib) and _SITE_NAMES.isdisjoint(Path(real).parts):
            return Place.STDLIB
        return Place.PROJECT


@lru_cache(maxsize=4096)
def root_of(path: str) -> str:
    """The nearest folder above with a marker; without one, the folder above the outermost package."""
    folder = Path(os.path.abspath(path)).parent
    for candidate in (folder, *folder.parents):
        if is_checkout(str(candidate)):
            return str(candidate)
    return package_root(path)


def is_checkout(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, marker)) for marker in MARKERS)


def checkout_of(function: FunctionType | None) -> str | None:
    if function is None:
        return None
    filename = function.__code__.co_filename
    file = function.__globals__.get("__file__")
    path = filename if os.path.isabs(filename) else file
    return root_of(path) if isinstance(path, str) and os.path.isfile(path) else None


@lru_cache(maxsize=4096)
def package_root(path: str) -> str:
    folder = os.path.dirname(os.path.abspath(path))
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return folder


def dotted_name(path: str) -> str:
    """The module name under which the file at `path` would be imported from its package root."""
    relative = os.path.relpath(os.path.abspath(path), package_root(path))
    parts = list(Path(os.path.splitext(relative)[0]).parts)
    if len(parts) > 1 and parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def file_name(module: str, path: str) -> str:
    """The name of a module's file in the recipe: its module name as a path, with the file's ending."""
    base = os.path.basename(path)
    stem, suffix = base.split(".", 1) if "." in base else (base, "")
    parts = module.split(".")
    if stem == "__init__":
        parts.append("__init__")
    return "/".join(parts) + (f".{suffix}" if suffix else "")


def working_folder() -> str | None:
    """The working directory; None if it was removed."""
    with suppress(OSError):
        return os.getcwd()
    return None
