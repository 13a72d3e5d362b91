"""Observed inputs: modules, libraries and distributions that a function loads unforeseen."""

from __future__ import annotations

import pickle
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

PACKAGE = """
def locate(path):
    top, *rest = path.split('.')
    return functools.reduce(getattr, rest, importlib.import_module(top))
def f(x): return locate('pack.deep.scale.Scale').by
"""
MODULES: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "in a package that was loaded before": (
        {"pack__deep__scale": "class Scale: by = 1", "pack____init__": "", "pack__deep____init__": ""},
        f"importlib.import_module(str('pack/deep/scale').replace('/', '.'))\n{PACKAGE}",
        ["pack/__init__.py", "pack/deep/__init__.py", "pack/deep/scale.py"],
    ),
    "named by a pickle": (
        {"shapes": "class Shape: pass"},
        "importlib.import_module(str('sha') + 'pes')\ndef f(x): return pickle.loads(x)",
        ["shapes.py"],
    ),
}


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("how", MODULES)
def test_a_module_that_is_found_by_its_name_is_seen(project: Project, how: str, code: str) -> None:
    """As hydra and OmegaConf find what `_target_` names, too: they import the first part of it only."""
    modules, source, names = MODULES[how]
    project.write(**modules)
    shape = pickle.dumps(project.load("shapes").Shape()) if "shapes" in modules else None
    watched = Watched(project, f"import functools, importlib, pickle\n{source}", shape, code=code)
    counted = watched.recipe.reached
    assert watched.names == [f"project:{name}" for name in names if str(project.folder / name) not in counted]
    assert watched.changed() is None
    first, text = next(iter(modules.items()))
    project.write(**{first: f"{text}\nMORE = 1"})
    assert watched.changed() == f"project:{first.replace('__', '/')}.py"


@pytest.mark.parametrize(
    "name",
    ["importlib.import_module(str('shap') + 'es')", "importlib.import_module(str('plug') + 'in').shapes"],
    ids=["by its name", "by another module"],
)
def test_a_module_of_which_something_else_counts_is_seen_whole(project: Project, name: str) -> None:
    """With code="function", of a file that counts in part; with code="script" it counts whole already."""
    project.write(shapes="def one(x): return 1\ndef two(x): return 2", plugin="import shapes")
    source = f"import importlib, shapes\ndef f(x): return shapes.one(x), getattr({name}, str('tw') + 'o')(x)"
    watched = Watched(project, source, code="function")
    assert "project:shapes.py" in watched.names
    project.write(shapes="def one(x): return 1\ndef two(x): return 3")
    assert project.recipe(code="function").digest == watched.recipe.digest
    assert watched.changed() == "project:shapes.py"
    assert "project:shapes.py" not in Watched(project, source).names


def test_an_extension_module_that_is_imported_unforeseen_is_seen(project: Project) -> None:
    name = f"fast{EXTENSION_SUFFIXES[0]}"
    project.put(name, "no library")
    source = (
        "import importlib\ndef f(x):\n    try: return importlib.import_module(str('fa') + 'st')\n"
        "    except ImportError: return None"
    )
    watched = Watched(project, source)
    assert ("module", f"project:{name}") in [(row["kind"], row["name"]) for row in watched.taken]


@pytest.mark.parametrize("place", ["plugin.py", "plugin/__init__.py"])
@pytest.mark.parametrize("within", ["", "pack/"])
def test_a_module_that_was_not_found_is_awaited(project: Project, place: str, within: str) -> None:
    project.put("pack/__init__.py", "")
    name = f"str({within.replace('/', '.') + 'plug'!r}) + 'in'"
    source = (
        f"import importlib\ndef f(x):\n    try: return importlib.import_module({name})\n"
        "    except ImportError: return None"
    )
    watched = Watched(project, source)
    assert watched.changed() is None
    project.put(within + place, "")
    assert watched.changed() == f"project:{within}{place}"


def test_an_import_that_the_recipe_counts_is_no_observation(project: Project) -> None:
    project.write(lazy="def g(x): return 1")
    assert Watched(project, "def f(x):\n    import lazy\n    return lazy.g(x)").names == []
