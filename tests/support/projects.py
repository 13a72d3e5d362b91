"""Small real projects for tests of the code fingerprint: written, imported, edited, imported again."""

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from prepcache.fill.recipe_guard import RecipeGuard
from prepcache.keys.recipes import Recipe, recipe


class Project:
    """A folder on `sys.path`. `load` imports a module from it anew, with nothing of before kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").touch()

    def write(self, **files: str) -> None:
        """Writes files: `a__b` is the file `a/b.py`, `a____init__` is `a/__init__.py`."""
        for name, text in files.items():
            stem = name.removesuffix("____init__")
            path = stem.replace("__", "/") + ("/__init__" if stem != name else "")
            self.put(f"{path}.py", text)

    def put(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def install(self, patch: pytest.MonkeyPatch, name: str, text: str) -> None:
        """Installs a library of one package, which is imported anew with each load of the project."""
        info = f"site-packages/{name}-1.dist-info"
        self.put(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        self.put(f"{info}/RECORD", f"{name}/__init__.py,sha256=a,1\n")
        self.put(f"site-packages/{name}/__init__.py", text)
        patch.syspath_prepend(str(self.folder / "site-packages"))

    def forget(self) -> None:
        """Unloads all modules of this folder."""
        prefix = str(self.folder) + os.sep
        mine = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
            if str(file).startswith(prefix):
                mine.append(name)
        for name in mine:
            del sys.modules[name]
        importlib.invalidate_caches()

    @contextmanager
    def on_path(self) -> Iterator[None]:
        sys.path.insert(0, str(self.folder))
        try:
            yield
        finally:
            sys.path.remove(str(self.folder))
            self.forget()

    def load(self, module: str = "prep") -> ModuleType:
        self.forget()
        return importlib.import_module(module)

    def recipe(self, target: str = "prep.f", **options: Any) -> Recipe:
        """The recipe of `module.function`, imported anew."""
        module, _, name = target.rpartition(".")
        return recipe(getattr(self.load(module), name), **options)

    def digest(self, target: str = "prep.f", **options: Any) -> str:
        return self.recipe(target, **options).digest


def changes(project: Project, edit: Callable[[], object], target: str = "prep.f", **options: Any) -> bool:
    """Whether an edit changes the recipe digest."""
    before = project.digest(target, **options)
    edit()
    return project.digest(target, **options) != before


def fill(guard: RecipeGuard) -> list[str]:
    """What a guard finds in a fill, which ends well."""
    with guard.filling():
        return guard.check()


def drift(made: Recipe) -> dict[str, bool]:
    """What has changed since a recipe was made, and whether a fill would take it for the function's doing."""
    guard, filling = RecipeGuard(made), RecipeGuard(made)
    with suppress(InterruptedError), filling.filling():
        named = filling.check()
        raise InterruptedError
    return {label: label not in named for label in guard.check()}


@pytest.fixture(name="project")
def project_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project on the path, with a user cache of its own and no bytecode."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Project(tmp_path / "proj")
    with made.on_path():
        yield made
