"""Observed inputs, as rows that are checked at a look-up: how they are named, and where they lie.

    {"kind": "file", "name": "project:vocab.txt", "digest": "<64 hex>"}     also "items:", "cwd:", "/..."
    {"kind": "folder", "name": "project:data", "digest": "<64 hex>"}         the names in it, if it was listed
    {"kind": "folder", "name": "project:data/", "digest": "a folder"}        that it is there, if asked for
    {"kind": "distribution", "name": "imageio", "digest": "2.1 <hash>"}

NOTE [ Names of observed files ]
    A name must lead the next job to the file that *it* would open. A file is named relative to the data set's
    `root=` or the checkout that it is in, and if it was opened by a relative name, relative to the working
    directory; a literal in the code is absolute. Any other counts in each way that may lead to it: also
    relative to the working directory that it is in, if it is in neither root or the code asks for that
    directory, and to a root that it is beside, as labels are beside the images.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from stat import S_ISDIR
from typing import Any, NamedTuple

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import with_packages
from prepcache.keys.code.project import is_checkout, space_of, working_folder
from prepcache.keys.environment import REPLACED, Environment, runs_as_written
from prepcache.keys.files.digest import Trust, digest_file
from prepcache.keys.files.stat_cache import StatCache, stamp_of
from prepcache.keys.observation import watches
from prepcache.keys.observation.watches import Kind, info_of, is_within, names_in
from prepcache.keys.recipes import Recipe
from prepcache.protocol.wire import RANDOM

ABSENT = "absent"
FOLDER = "a folder"  # instead of a digest, of a folder that was asked for, whatever is in it
CHANGED = "changed while it was in use"
OUTPUT = "output"
_TOO_FAR = f"..{os.sep}" * 3  # labels of `images/train` are in `labels/train`, two steps up

Stamp = tuple[int, ...]
FOLDER_STAMP: Stamp = ()
_LISTING_DOMAIN = b"prepcache listing v1\0"


class Input(NamedTuple):
    """An input that a process saw, or an output that may have been an input before."""

    kind: str
    digest: str
    name: str = ""  # what leads other jobs to it; none in the log
    path: str | None = None
    stamp: Stamp | None = None  # when it was used first; None of nothing, and of a folder that was listed
    is_read: bool = True  # and not only named or asked for
    folder: str | None = None  # the working directory, if it was used by a relative name

    @property
    def row(self) -> dict[str, str]:
        return {"kind": self.kind, "name": self.name, "digest": self.digest}


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders that names are relative to."""

    project: str | None = None  # the checkout, or where code is imported from
    items: str | None = None  # the data set's `root=`
    cwd: str | None = None
    is_checkout: bool = True
    is_cwd_asked: bool = False  # by the code

    @classmethod
    def of(cls, recipe: Recipe, root: str | os.PathLike[str] | None = None) -> Roots:
        items = None if root is None else os.path.abspath(os.fspath(root))
        is_whole = recipe.root is None or is_checkout(recipe.root)
        return cls(recipe.root, items, working_folder(), is_whole, recipe.asks_cwd)

    def names(self, path: str, folder: str | None) -> list[str]:
        """How a file counts that was used in a folder; see NOTE [ Names of observed files ]."""
        if folder is not None and self.cwd is not None:
            # Whoever went to another folder may have gone by any name, or may be there from the start.
            found = {f"cwd:{os.path.relpath(path, one)}": None for one in (folder, self.cwd)}
            return [*found, *([] if folder == self.cwd else [path])]
        within = [f"cwd:{os.path.relpath(path, self.cwd)}"] if self.cwd and is_within(path, self.cwd) else []
        for tag, root in (("items", self.items), ("project", self.project)):
            if root is not None and is_within(path, root):
                return [f"{tag}:{os.path.relpath(path, root)}", *(within if self.is_cwd_asked else ())]
        names = [path, *within]
        for tag, root in (("items", self.items), ("project", None if self.is_checkout else self.project)):
            beside = root if root and os.path.commonpath((path, root)) != os.sep else ""
            if beside and not (name := os.path.relpath(path, beside)).startswith(_TOO_FAR):
                names.append(f"{tag}:{name}")
        return names

    def path(self, name: str) -> str | None:
        """Where a name leads in this job; None if the root it is relative to is not known."""
        if name.startswith("/"):
            return name
        tag, _, rest = name.partition(":")
        root = {"project": self.project, "items": self.items, "cwd": self.cwd}.get(tag)
        return None if root is None else os.path.join(root, rest)


def still_true(
    observed: Iterable[Mapping[str, Any]],
    stat_cache: StatCache | None = None,
    roots: Roots | None = None,
    trust: Trust = "stat",
) -> tuple[str, str] | None:
    """The first of the observed inputs that is not as it was, and what became of it; None if all are."""
    roots = roots or Roots(cwd=working_folder())
    installed: Environment | None = None
    for row in observed:
        name, kind, digest = str(row.get("name", "")), row.get("kind"), row.get("digest")
        if kind == RANDOM:
            continue
        if kind == "distribution":
            installed = installed or Environment()
            if digest == REPLACED or name not in installed.distributions or installed.state(name) != digest:
                return name, "changed"
            continue
        path = roots.path(name)
        if path is None or kind not in ("file", "folder"):
            return name, "changed"
        is_listed = kind == "folder" and digest != FOLDER
        watches.depend_on([path], Kind.LISTED if is_listed else Kind.READ)
        now = digest_of_names(names_in(path)) if is_listed else digest_now(path, stat_cache, trust)[0]
        if now != digest or not runs_as_written(path):
            return name, "appeared" if digest == ABSENT else "is gone" if now == ABSENT else "changed"
    return None


def stamp_at(info: os.stat_result | None) -> Stamp | None:
    if info is None:
        return None
    return FOLDER_STAMP if S_ISDIR(info.st_mode) else stamp_of(info)


def digest_now(path: str, stat_cache: StatCache | None, trust: Trust) -> tuple[str, Stamp | None]:
    info = info_of(path)
    if info is None:
        return ABSENT, None
    if S_ISDIR(info.st_mode):
        return FOLDER, FOLDER_STAMP
    try:
        digested = digest_file(path, stat_cache, trust)
    except UnkeyableError:
        return CHANGED, None
    return digested.digest.hex(), digested.stamp


def digest_of_names(names: Iterable[bytes] | None) -> str:
    if names is None:
        return ABSENT
    kept = sorted(name for name in names if name != b"__pycache__")
    return blake3(_LISTING_DOMAIN + b"\0".join(kept)).hexdigest()


def files_of_module(module: str) -> list[str]:
    """The files of a loaded module, of the packages it lies in, and of what is loaded of a package."""
    names = with_packages([module])
    if hasattr(sys.modules.get(module), "__path__"):
        names += [name for name in list(sys.modules) if name.startswith(module + ".")]
    return [path for name in names if (path := space_of(sys.modules.get(name)).get("__file__"))]


def files_awaited(module: str) -> list[str]:
    """Where a module that is not loaded would be found; of several in a dotted name, the outermost."""
    missing = next((name for name in with_packages([module]) if sys.modules.get(name) is None), None)
    if missing is None:
        return []
    above, _, last = missing.rpartition(".")
    folders = getattr(sys.modules[above], "__path__", ()) if above else sys.path
    found = [os.path.join(os.path.abspath(folder), last) for folder in folders]
    return [one + ending for one in found for ending in (".py", f"{os.sep}__init__.py")]
