"""Golden recipe digests: what they are made of.

The vectors pin what must never change silently: a recipe digest that moves makes every user's cache miss,
one that stays when an input is added or dropped hands out wrong samples.
"""

import contextlib
import functools
import importlib
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from prepcache.keys import environment, markers, recipes
from prepcache.keys.code.fingerprint import fingerprint, nested
from prepcache.keys.encoding.encoder import ENCODING_VERSION
from support.golden_sources import SITE, SOURCES

VECTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "script": ("plain", {}),
    "function": ("plain", {"code": "function"}),
    "reaching, script": ("reaching", {}),
    "reaching, function": ("reaching", {"code": "function"}),
    "closure": ("closed", {"code": "function"}),
    "partial": ("bound", {"code": "function"}),
    "callable object": ("SCALE", {"code": "function"}),
    "no code": ("plain", {"code": None, "version": "1"}),
    "version": ("plain", {"version": "1"}),
    "version as int": ("plain", {"version": 1}),
    "expand": ("plain", {"expand": True}),
    "read": ("plain", {"read": "bytes"}),
    "config": ("plain", {"config": {"b": 2, "a": [1, 2.0, None, True, "x", b"y", {"k": (1,)}]}}),
    "untracked": ("reaching", {"code": "function", "untracked": ("SIZE",)}),
    "walk, script": ("golden_walk.walked", {}),
    "walk, function": ("golden_walk.walked", {"code": "function"}),
    "paths in the config": (
        "plain",
        {"config": {"path": Path("golden_lazy.py"), "text": "golden_lazy.py", "none": Path("absent")}},
    ),
    "folder in the config": ("plain", {"config": {"folder": markers.tree("folder")}}),
    "objects in the config": (
        "plain",
        {"config": {"partial": functools.partial(max, 1, key=len), "namespace": SimpleNamespace(b=2, a=1)}},
    ),
}


def versions() -> dict[str, int]:
    return {
        "recipe": recipes.RECIPE_VERSION,
        "environment": environment.ENVIRONMENT_VERSION,
        "encoding": ENCODING_VERSION,
    }


def installed() -> dict[str, str]:
    """What the distributions of `SITE` count by."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site-packages")
        for name, text in SITE.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text.replace("$", str(site)))
        with mock.patch.dict("os.environ", {"XDG_CACHE_HOME": f"{folder}/cache"}):
            found = environment.Environment([str(site)])
            return found.counted(["one"]) | found.counted((), ["five", "six"])


def made() -> dict[str, Any]:
    """The digests of now, for a project in a folder of its own and a fixed environment."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in SOURCES.items():
            Path(folder, name).write_text(textwrap.dedent(text))
        Path("folder").mkdir()
        Path("folder", "a.txt").write_text("a")
        sys.path.insert(0, folder)
        try:
            with (
                mock.patch.object(recipes, "PYTHON", "cpython 3.x"),
                mock.patch.object(recipes, "default_dtype", lambda: "torch.float32"),
                mock.patch.dict(
                    "os.environ", {"GOLDEN_VARIABLE": "set", "XDG_CACHE_HOME": f"{folder}/cache"}
                ),
            ):
                digests = {
                    name: recipes.recipe(_found(target), environment=[], **options).digest
                    for name, (target, options) in VECTORS.items()
                }
        finally:
            sys.path.remove(folder)
            for name in SOURCES:
                sys.modules.pop(name.removesuffix(".py"), None)
    return {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "versions": versions(),
        "recipes": digests,
        "fingerprints": fingerprints(),
        "distributions": installed(),
    }


def fingerprints() -> dict[str, str]:
    """Those of all code in the golden sources."""
    return {
        f"{name}:{code.co_firstlineno}:{code.co_qualname}": fingerprint(code)
        for name in ("golden_prep.py", "golden_syntax.py")
        for code in nested(compile(textwrap.dedent(SOURCES[name]), name, "exec", dont_inherit=True))
    }


def _found(target: str) -> Any:
    """The function that a vector names: `module.function`, or one of golden_prep."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module or "golden_prep"), name)
