"""Observed inputs: modules, libraries and distributions that a function loads unforeseen."""

from __future__ import annotations

import pickle
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401


def test_a_module_that_is_imported_unforeseen_is_seen(project: Project) -> None:
    project.write(plugin="def g(x): return 1")
    watched = Watched(
        project, "import importlib\ndef f(x): return importlib.import_module(str('plug') + 'in').g(x)"
    )
    assert [(row["kind"], row["name"]) for row in watched.taken] == [("module", "project:plugin.py")]
    project.write(plugin="def g(x): return 2")
    assert watched.changed() == "project:plugin.py"


def test_imports_of_a_loaded_unforeseen_module_are_seen(project: Project) -> None:
    project.write(plugin="import deep\ndef g(x): return deep.N", deep="N = 1")
    watched = Watched(
        project,
        "import importlib\nimportlib.import_module(str('de') + 'ep')\n"
        "def f(x): return importlib.import_module(str('plug') + 'in').g(x)",
    )
    assert watched.names == ["project:deep.py", "project:plugin.py"]
    project.write(deep="N = 2")
    assert watched.changed() == "project:deep.py"


def test_a_module_that_is_loaded_already_is_seen(project: Project) -> None:
    project.write(plugin="def g(x): return 1")
    watched = Watched(
        project,
        "import importlib\nname = str('plug') + 'in'\nimportlib.import_module(name)\n"
        "def f(x): return importlib.import_module(str('plug') + 'in').g(x)",
    )
    assert watched.names == ["project:plugin.py"]


@pytest.mark.parametrize("code", ["script", "function"])
def test_a_loaded_submodule_got_by_dotted_name_is_seen(project: Project, code: str) -> None:
    """As hydra and OmegaConf find what `_target_` names: they import the first part of it only."""
    project.write(pack____init__="", pack__deep____init__="", pack__other="", pack__deep__beside="")
    project.write(pack__deep__scale="class Scale: by = 1")
    source = (
        "import functools, importlib\n"
        "def load(*names): return [importlib.import_module('pack.' + name) for name in names]\n"
        "load('deep.scale', 'deep.beside', 'other')\n"
        "def locate(path):\n"
        "    top, *rest = path.split('.')\n"
        "    return functools.reduce(getattr, rest, importlib.import_module(top))\n"
        "def f(x): return locate(x).by"
    )
    watched = Watched(project, source, "pack.deep.scale.Scale", code=code)
    seen = {name for name in watched.names if "pack" in name}
    assert seen == {"project:pack/__init__.py", "project:pack/deep/__init__.py", "project:pack/deep/scale.py"}
    project.write(pack__deep__scale="class Scale: by = 2")
    assert watched.changed() == "project:pack/deep/scale.py"


def test_a_loaded_module_named_by_a_pickle_is_seen(project: Project) -> None:
    project.write(shapes="class Shape: pass")
    data = pickle.dumps(project.load("shapes").Shape())
    load = "importlib.import_module(str('sha') + 'pes')"
    source = f"import pickle, importlib\n{load}\ndef f(x): return pickle.loads(x)"
    watched = Watched(project, source, data)
    assert watched.names == ["project:shapes.py"]


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
    assert [(row["kind"], row["name"]) for row in watched.taken] == [("module", f"project:{name}")]


def test_a_c_library_that_is_loaded_by_path_is_seen(project: Project) -> None:
    project.put("fast.so.1", "no library")
    source = (
        "import ctypes\ndef f(x):\n    try: ctypes.CDLL('/'.join([str(HERE), 'fast.so.1']))\n"
        "    except OSError: pass"
    )
    assert Watched(project, source).names == ["project:fast.so.1"]


def test_a_distribution_that_is_imported_unforeseen_is_seen(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, info = tmp_path / "site-packages", tmp_path / "site-packages" / "extra-1.dist-info"
    info.mkdir(parents=True)
    (site / "extra").mkdir()
    (site / "extra" / "__init__.py").write_text("def g(x): return x")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    (info / "RECORD").write_text("extra/__init__.py,sha256=one,1\n")
    monkeypatch.syspath_prepend(site)
    source = "import importlib\ndef f(x): return importlib.import_module(str('ex') + 'tra').g(x)"
    watched = Watched(project, source)
    assert [(row["kind"], row["name"]) for row in watched.taken] == [("distribution", "extra")]
    assert watched.changed() is None
    (info / "RECORD").write_text("extra/__init__.py,sha256=two,1\n")
    assert watched.changed() == "extra"


def test_an_import_that_the_recipe_counts_is_no_observation(project: Project) -> None:
    project.write(lazy="def g(x): return 1")
    assert Watched(project, "def f(x):\n    import lazy\n    return lazy.g(x)").names == []


def test_libraries_and_the_standard_library_are_no_observations(project: Project) -> None:
    assert Watched(project, "def f(x):\n    import wave, colorsys\n    return wave, colorsys").names == []
