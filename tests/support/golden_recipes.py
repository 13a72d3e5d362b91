"""Golden recipe digests: what they are made of.

The vectors pin what must never change silently: a recipe digest that moves makes every user's cache miss,
one that stays when an input is added or dropped hands out wrong samples.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any
from unittest import mock

from prepcache.keys import environment, recipes
from prepcache.keys.canonical import ENCODING_VERSION
from prepcache.keys.code.parsed import PARSE_VERSION, parse

SOURCES = {
    "golden_prep.py": """
        import functools
        import golden_helper
        from golden_helper import Scale

        SIZE = 3
        TABLE = {"b": 1, "a": [1.5, None, True, "text", b"bytes"]}
        SCALE = Scale(2)

        def plain(x):
            return x

        def reaching(x, n=1, *, k="key"):
            \"\"\"Reads globals, a helper, an object and the environment.\"\"\"
            import os
            assert n
            return golden_helper.scaled(x, SIZE), TABLE, SCALE(x), os.environ.get("GOLDEN_VARIABLE")

        def make(n):
            return lambda x: x * n

        closed = make(4)
        bound = functools.partial(reaching, n=2)
    """,
    "golden_helper.py": """
        FACTOR = 10

        class Scale:
            base = 1

            def __init__(self, n):
                self.n = n

            def __call__(self, x):
                return x * self.n + self.base

        def scaled(x, n):
            return x * FACTOR * n
    """,
}

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
}


def versions() -> dict[str, int]:
    return {
        "recipe": recipes.RECIPE_VERSION,
        "parse": PARSE_VERSION,
        "environment": environment.ENVIRONMENT_VERSION,
        "encoding": ENCODING_VERSION,
    }


def made() -> dict[str, Any]:
    """The digests of now, for a project in a folder of its own and a fixed environment."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SOURCES.items():
            Path(folder, name).write_text(textwrap.dedent(text))
        sys.path.insert(0, folder)
        try:
            module = importlib.import_module("golden_prep")
            with (
                mock.patch.object(recipes, "python_version", lambda: "cpython 3.x"),
                mock.patch.object(recipes, "default_dtype", lambda: "torch.float32"),
                mock.patch.dict(
                    "os.environ", {"GOLDEN_VARIABLE": "set", "XDG_CACHE_HOME": f"{folder}/cache"}
                ),
            ):
                digests = {
                    name: recipes.recipe(getattr(module, target), environment=[], **options).digest
                    for name, (target, options) in VECTORS.items()
                }
        finally:
            sys.path.remove(folder)
            for name in ("golden_prep", "golden_helper"):
                sys.modules.pop(name, None)
    source = textwrap.dedent(SOURCES["golden_prep.py"]).encode()
    definitions = {d.qualname: d.digest for d in parse(source, "golden_prep.py").definitions}
    return {"versions": versions(), "recipes": digests, "definitions": definitions}
