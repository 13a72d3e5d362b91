"""Which file an import means, found without importing anything.

The order is that of the import system: for each folder of the search path a package, then an extension
module, then a source file; folders without `__init__` add up to a namespace package. Modules that are
loaded answer for themselves: what runs is what was loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from types import ModuleType

from prepcache.keys.code.labels import folders_of
from prepcache.keys.code.project import SELF_MODULES, Place, Places

_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)


class Kind(Enum):
    SOURCE = "source"
    EXTENSION = "extension"
    BYTECODE = "bytecode"
    NAMESPACE = "namespace"
    STDLIB = "stdlib"
    SITE = "site"
    SELF = "self"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Found:
    """What an import means. `folders` is where its submodules are looked for."""

    kind: Kind
    path: str = ""
    folders: tuple[str, ...] = ()


_MISSING = Found(Kind.MISSING)
_STDLIB = Found(Kind.STDLIB)
_SELF = Found(Kind.SELF)


@dataclass(slots=True)
class Finder:
    """Finds modules along one search path. Lives for one fingerprint: it caches folder listings.

    Args:
        search: folders, in order; `sys.path` of the job.
        places: tells the project's files from installed ones.
        is_loaded: whether loaded modules answer for themselves (not when a file is only looked at).
    """

    search: Iterable[str]
    places: Places
    is_loaded: bool = True
    _listings: dict[str, dict[str, bool]] = field(default_factory=dict)
    _found: dict[str, Found] = field(default_factory=dict)

    def find(self, name: str) -> Found:
        """What `import name` means; for a dotted name, what its last part does."""
        known = self._found.get(name)
        if known is None:
            known = self._found[name] = self._find(name)
        return known

    def _find(self, name: str) -> Found:
        top, _, rest = name.partition(".")
        if top in SELF_MODULES:
            return _SELF
        if top in sys.builtin_module_names:
            return _STDLIB
        loaded = self._of_loaded(name)
        if loaded is not None:
            return loaded
        if not rest:
            folders = (entry or working_folder() for entry in self.search)
            found = self._search(name, [folder for folder in folders if folder is not None])
            return self._of_meta_path(name) if found.kind is Kind.MISSING else found
        parent = self.find(name.rpartition(".")[0])
        if parent.kind in (Kind.STDLIB, Kind.SITE, Kind.SELF, Kind.MISSING):
            return parent
        return self._search(name, parent.folders)

    def _of_loaded(self, name: str) -> Found | None:
        module = sys.modules.get(name) if self.is_loaded and name != "__main__" else None
        if not isinstance(module, ModuleType):
            return None
        spec: ModuleSpec | None = getattr(module, "__spec__", None)
        origin = getattr(module, "__file__", None) or (spec.origin if spec is not None else None)
        if origin in ("built-in", "frozen"):
            return _STDLIB
        folders = tuple(folders_of(module))
        if not isinstance(origin, str) or not os.path.isfile(origin):
            return Found(Kind.NAMESPACE, "", folders) if folders else None
        return self._classified(origin, folders)

    def _of_meta_path(self, name: str) -> Found:
        """Asks the finders that editable installs put on `sys.meta_path`."""
        for finder in sys.meta_path:
            if not getattr(finder, "__module__", "").startswith("__editable__"):
                continue
            spec = finder.find_spec(name, None)
            if spec is not None and spec.origin and os.path.isfile(spec.origin):
                folders = tuple(spec.submodule_search_locations or ())
                return self._classified(spec.origin, folders)
            if spec is not None and spec.submodule_search_locations:
                return Found(Kind.NAMESPACE, "", tuple(spec.submodule_search_locations))
        return _STDLIB if name in sys.stdlib_module_names else _MISSING

    def _search(self, name: str, folders: Iterable[str]) -> Found:
        tail = name.rpartition(".")[2]
        portions: list[str] = []
        for folder in folders:
            listing = self._listing(folder)
            base = os.path.join(folder, tail)
            if listing.get(tail):
                inner = self._listing(base)
                for suffix in _SUFFIXES:
                    if "__init__" + suffix in inner:
                        return self._classified(os.path.join(base, "__init__" + suffix), (base,))
                portions.append(base)
            for suffix in _SUFFIXES:
                if listing.get(tail + suffix) is False:
                    return self._classified(base + suffix, ())
        return Found(Kind.NAMESPACE, "", tuple(portions)) if portions else _MISSING

    def _listing(self, folder: str) -> dict[str, bool]:
        """Names in a folder, and whether each is a folder itself."""
        known = self._listings.get(folder)
        if known is None:
            try:
                with os.scandir(folder) as entries:
                    known = {entry.name: entry.is_dir() for entry in entries}
            except OSError:
                known = {}
            self._listings[folder] = known
        return known

    def _classified(self, path: str, folders: tuple[str, ...]) -> Found:
        place = self.places.of(path)
        if place is Place.STDLIB:
            return _STDLIB
        if place is Place.SELF:
            return _SELF
        if place is Place.SITE:
            return Found(Kind.SITE, path, folders)
        if path.endswith(tuple(EXTENSION_SUFFIXES)):
            return Found(Kind.EXTENSION, path, folders)
        if path.endswith(tuple(BYTECODE_SUFFIXES)):
            return Found(Kind.BYTECODE, path, folders)
        return Found(Kind.SOURCE, path, folders)


def working_folder() -> str | None:
    """The working directory; None if it was removed."""
    with suppress(OSError):
        return os.getcwd()
    return None
