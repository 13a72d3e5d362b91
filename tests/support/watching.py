"""A project's function, run under an observer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prepcache.keys.inputs import still_true
from prepcache.keys.observe import Observer
from prepcache.keys.recipes import Recipe
from prepcache.keys.roots import Roots
from support.projects import Project

HERE = "import pathlib, os\nHERE = pathlib.Path(__file__).parent\n"


class Watched:
    """A project's function, run once under an observer."""

    def __init__(
        self, project: Project, source: str, item: Any = None, root: Path | None = None, **asked: Any
    ) -> None:
        project.write(prep=HERE + source)
        self.recipe: Recipe = project.recipe(**asked)
        self.root = root
        assert self.recipe.preprocess is not None
        observer = Observer(self.recipe, root=root)
        with observer.watching([item] if isinstance(item, Path) else []):
            self.recipe.preprocess(item)
        self.taken = observer.taken()

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.taken]

    def changed(self, root: Path | None = None) -> str | None:
        return still_true(self.taken, roots=Roots.of(self.recipe, root or self.root))
