"""A project's function, run under an observer."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation.inputs import Roots, still_true
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import Recipe
from support.projects import Project

IN_C = """
import ctypes
from os.path import join as joined

def in_c(name, *given):
    return getattr(ctypes.CDLL(None), name)(*given)

def read_in_c(path):
    fd = in_c("open", os.fsencode(path), os.O_RDONLY)
    assert fd >= 0
    os.close(fd)
"""
"""Functions that open files in C, where Python does not see them."""

HERE = "import pathlib, os\nHERE = pathlib.Path(__file__).parent\n"


class Observed:
    """A project's function under an observer; `failure` is that of the last call."""

    def __init__(
        self,
        project: Project,
        source: str,
        root: Path | None = None,
        stat_cache: StatCache | None = None,
        **asked: Any,
    ) -> None:
        project.write(prep=HERE + source)
        self.recipe: Recipe = project.recipe(**asked)
        self.root = root
        self.observer = Observer(self.recipe, Roots.of(self.recipe, root), stat_cache)
        self.failure = ""

    def __call__(self, item: Any = None) -> Any:
        assert self.recipe.preprocess is not None
        with self.observer.watching([item] if isinstance(item, Path) else []) as watch:
            made = self.recipe.preprocess(item)
        self.failure = watch.failure
        return made

    @property
    def digests(self) -> dict[str, str]:
        """What was observed so far but names in folders, by name."""
        return {row["name"]: row["digest"] for row in self.observer.taken() if row["kind"] != "folder"}

    def changed(self, root: Path | None = None) -> str | None:
        found = still_true(self.observer.taken(), roots=Roots.of(self.recipe, root or self.root))
        return found and found[0]


class Watched(Observed):
    """A project's function, run once under an observer."""

    def __init__(
        self, project: Project, source: str, item: Any = None, root: Path | None = None, **asked: Any
    ) -> None:
        super().__init__(project, source, root, **asked)
        self(item)
        self.taken = self.observer.taken()

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.taken]

    def changed(self, root: Path | None = None) -> str | None:
        found = still_true(self.taken, roots=Roots.of(self.recipe, root or self.root))
        return found and found[0]


def told_by_child(work: Callable[[], Any]) -> Any:
    """What a forked child finds, as JSON can say it."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_fd, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as answers:
        told = answers.read()
    os.waitpid(pid, 0)
    return json.loads(told)
