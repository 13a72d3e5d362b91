"""The environment part of a recipe: Python, format versions, torch's default dtype, distributions.

A distribution counts by name, version and hash (distributions.py); with it count, transitively, those of its
requirements that are installed. Tools that install or describe packages count only where counted files import
them: half of all distributions require one, and nothing that a function computes is made with them.

Invariants:
    1. Nothing is imported to find out; torch is asked only if it is loaded.
    2. What was installed again after this process had loaded it is refused (outdated.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import filterfalse
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.project import SELF_MODULES
from prepcache.keys.distributions import Distribution, installed_in, normalised
from prepcache.keys.files.stamps import path_stamp
from prepcache.keys.outdated import check_distribution

ENVIRONMENT_VERSION = 2
"""Rises when what counts of an environment changes; joins the recipe."""

PACKAGING_TOOLS = frozenset(
    {"setuptools", "pip", "wheel", "packaging", "pkg-resources", "build", "installer"}
)
"""Not counted as requirements. Neither are stubs for type checkers (`types-*`, `*-stubs`)."""

REPLACED = "reinstalled after it was loaded"


class Environment:
    """The distributions that `sys.path` offers. Lives for one fingerprint."""

    def __init__(self, search: Iterable[str] | None = None) -> None:
        self._hashes: dict[str, str] = {}
        self.distributions: dict[str, Distribution] = {}
        self.installed: dict[str, set[str]] = {}
        """Folder on the path to the top-level modules that distributions installed there."""
        self._owners: dict[str, list[str]] = {}
        for distribution in installed_in(dict.fromkeys(sys.path if search is None else search)):
            self.installed.setdefault(distribution.folder, set()).update(distribution.top_levels)
            name = normalised(distribution.name)
            if name in self.distributions:
                continue  # an earlier folder on the path wins, as it does for imports
            self.distributions[name] = distribution
            for top in distribution.top_levels:
                self._owners.setdefault(top, []).append(name)

    def counted(self, top_levels: Iterable[str], only: Iterable[str] | None = None) -> dict[str, str]:
        """The distributions that count, by what they are.

        Args:
            top_levels: the top-level modules that the counted files import.
            only: the distributions that count instead, by name: just these.

        Returns:
            Name to "version hash".

        Raises:
            UnkeyableError: if `only` names what is not installed, or one was installed again after this
                process had loaded it.
        """
        if only is None:
            names = self._owning(top_levels)
        else:
            names = {normalised(name) for name in only}
            for name in names - set(self.distributions):
                raise UnkeyableError(f"environment= names {name!r}, which is not installed; leave it out")
        return {name: self._state(name) for name in sorted(names)}

    def observed(self, top_levels: Iterable[str]) -> dict[str, str]:
        """As `counted`; what was installed again after this process had loaded it counts as `REPLACED`."""
        return {name: self.observed_one(name) for name in sorted(self._owning(top_levels))}

    def observed_one(self, name: str) -> str:
        """The state of a distribution, or `REPLACED`."""
        try:
            return self._state(name)
        except UnkeyableError:
            return REPLACED

    def _owning(self, top_levels: Iterable[str]) -> set[str]:
        """The distributions of modules, and what these require."""
        found: set[str] = set()
        queue = [name for top in top_levels for name in self._owners.get(top, ())]
        while queue:
            name = queue.pop()
            if name not in found and name in self.distributions and name not in SELF_MODULES:
                found.add(name)
                queue += filterfalse(_is_tool, self.distributions[name].requires)
        return found

    def _state(self, name: str) -> str:
        distribution = self.distributions[name]
        if distribution.editable_root is None:  # else its files count, as they are
            where = (distribution.path, distribution.folder, distribution.top_levels)
            check_distribution(distribution.name, *where)
        if name not in self._hashes:
            self._hashes[name] = distribution.hash()
        return f"{distribution.version} {self._hashes[name]}"


def _is_tool(name: str) -> bool:
    return name in PACKAGING_TOOLS or name.startswith("types-") or name.endswith("-stubs")


_latest: tuple[Any, Environment] | None = None


def lately() -> Environment:
    """What `sys.path` offered when this was last asked, as long as nothing is installed in its folders.

    For who asks again and again while a function runs: to read it takes milliseconds, and to hash what is
    installed from its sources, or has no RECORD, far more.
    """
    global _latest
    search = tuple(sys.path)
    state = search, [path_stamp(folder or ".") for folder in search]
    if _latest is None or _latest[0] != state:
        _latest = state, Environment(search)
    return _latest[1]


def differing(counted: Mapping[str, str]) -> list[str]:
    """The names of the distributions that this process has loaded, and that are not as a recipe says, or were
    installed again since.

    Args:
        counted: those of the recipe, as `Environment.counted` gives them.
    """
    now = lately()
    loaded = [
        name
        for name in sorted(counted.keys() & now.distributions.keys())
        if not sys.modules.keys().isdisjoint(now.distributions[name].top_levels)
    ]
    return [name for name in loaded if now.observed_one(name) != counted[name]]


def default_dtype() -> str:
    """torch's default dtype, without loading torch: where it is not loaded, what it starts with.

    A default device other than the CPU is said beside it.
    """
    torch = sys.modules.get("torch")
    get: Any = getattr(torch, "get_default_dtype", None)
    get_device: Any = getattr(torch, "get_default_device", None)
    if get_device is not None and get_device().type != "cpu":
        return f"{get()} on {get_device()}"
    return str(get()) if get is not None else "torch.float32"


def python_version() -> str:
    return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
