"""Observed inputs of the import system: modules found, edited, looked for and read; libraries."""

import importlib
import importlib.util
import pickle
import time

import pytest

from prepcache.keys.observation.inputs import CHANGED, Roots, still_true
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import Recipe, recipe
from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

BEGAN = "prepcache.keys.environment.started_ns"


@pytest.fixture(autouse=True)
def files_were_there_before(monkeypatch):
    """Before this process began."""
    monkeypatch.setattr(BEGAN, time.time_ns)


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
def test_a_module_that_is_found_by_its_name_is_seen(project, how, code):
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
def test_a_module_of_which_something_else_counts_is_seen_whole(project, name):
    """With code="function", of a file that counts in part; with code="script" it counts whole already."""
    project.write(shapes="def one(x): return 1\ndef two(x): return 2", plugin="import shapes")
    source = f"import importlib, shapes\ndef f(x): return shapes.one(x), getattr({name}, str('tw') + 'o')(x)"
    watched = Watched(project, source, code="function")
    assert "project:shapes.py" in watched.names
    project.write(shapes="def one(x): return 1\ndef two(x): return 3")
    assert project.recipe(code="function").digest == watched.recipe.digest
    assert watched.changed() == "project:shapes.py"
    assert "project:shapes.py" not in Watched(project, source).names


@pytest.mark.parametrize("place", ["plugin.py", "plugin/__init__.py"])
@pytest.mark.parametrize("within", ["", "pack/"])
def test_a_module_that_was_not_found_is_awaited(project, place, within):
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


def test_an_import_that_the_recipe_counts_is_no_observation(project):
    project.write(lazy="def g(x): return 1")
    assert Watched(project, "def f(x):\n    import lazy\n    return lazy.g(x)").names == []


PREP = "def f(x):\n    from plugin import g\n    return g(x)\n"
PLUGIN = "def g(x): return x * 10\n"


@pytest.mark.parametrize("code", ["script", "function"])
def test_a_counted_module_edited_before_its_import_has_changed(project, code):
    project.write(prep=PREP, plugin=PLUGIN)
    module = project.load()
    made = recipe(module.f, code=code)
    observer = Observer(made)
    project.write(plugin=PLUGIN.replace("10", "1000"))
    importlib.invalidate_caches()
    with observer.watching():
        assert module.f(1) == 1000
    taken = observer.taken()
    assert [(row["kind"], row["name"]) for row in taken] == [("file", "project:plugin.py")]
    assert still_true(taken, roots=Roots.of(made)) is None
    project.write(plugin=PLUGIN)
    assert project.recipe(code=code) == made
    assert still_true(taken, roots=Roots.of(made)) == ("project:plugin.py", "changed")


UNFORESEEN = "import importlib\ndef f(x): return importlib.import_module(str('plug') + 'in').g(x)\n"
PLUGINS = "import deep\ndef g(x): return x * deep.N\ndef d(k=1): return k\nclass C:\n    k = 1\nh = g\n"
DEEP = {"plugin": PLUGINS, "deep": "N = 10\n"}


def _observed(made: Recipe) -> dict[str, str]:
    """The digests of what a data set that is opened now observes."""
    assert made.preprocess is not None
    observer = Observer(made)
    with observer.watching():
        made.preprocess(1)
    return {row["name"]: row["digest"] for row in observer.taken()}


EDITS = {
    "a function": ("plugin", "def g(x): return x * deep.N", "def g(x): return x + deep.N"),
    "a default": ("plugin", "k=1", "k=2"),
    "an attribute of a class": ("plugin", "k = 1", "k = 2"),
    "another name": ("plugin", "h = g", "h = len"),
    "what it imports": ("deep", "N = 10", "N = 20"),
}


def _edit(project, monkeypatch, module, text):
    """After this process began, by the clock of files, which is coarse."""
    began = max(path.stat().st_ctime_ns for path in project.folder.glob("*.py"))
    monkeypatch.setattr(BEGAN, lambda: began)
    while (project.folder / f"{module}.py").stat().st_ctime_ns <= began:
        project.write(**{module: text})


EXECUTES = """import importlib.util as u
def f(x):
    spec = u.spec_from_file_location("part", __file__.replace("prep", "part"))
    part = u.module_from_spec(spec)
    spec.loader.exec_module(part)
    return part.g(x)
"""
OF_ITS_CLASS = "import sys, types\nclass M(types.ModuleType): pass\nsys.modules[__name__].__class__ = M\n"


def test_an_edited_module_of_a_class_of_its_own_has_changed(project, monkeypatch):
    project.write(prep=EXECUTES, part="import lazy\ndef g(x): return lazy.N\n", lazy=f"{OF_ITS_CLASS}N = 1")
    made = project.recipe()
    importlib.import_module("lazy")
    _edit(project, monkeypatch, "lazy", f"{OF_ITS_CLASS}N = 2")
    assert _observed(made)["project:lazy.py"] == CHANGED


@pytest.mark.parametrize("counted", ["", "import plugin\n"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_module_edited_since_it_was_loaded_has_changed(project, monkeypatch, counted, edit):
    """What the next data set makes is the old text's, and the file says the new one."""
    project.write(prep=counted + UNFORESEEN, **DEEP)
    made = project.recipe()
    before = _observed(made)
    assert CHANGED not in before.values()
    module, old, new = EDITS[edit]
    _edit(project, monkeypatch, module, DEEP[module].replace(old, new))
    again = _observed(recipe(made.preprocess))
    assert again == before | {f"project:{module}.py": CHANGED}


NAME = "str('pack') + '.' + 'part'"
READS = {
    "a spec": ("import importlib.util", f"importlib.util.find_spec({NAME})"),
    "a relative spec": ("import importlib.util as u", "u.find_spec(str('.') + 'part', 'pack')"),
    "a loader": ("import pkgutil", f"pkgutil.resolve_name({NAME})"),
    "data": ("import pkgutil", "pkgutil.get_data('pack', str('part') + '.py')"),
    "source": ("import pack", "pack.__spec__.loader.get_data(str(HERE / 'pack' / 'part.py'))"),
    "source by name": ("import importlib.util as u", f"u.find_spec({NAME}).loader.get_source({NAME})"),
    "resource": ("from importlib import resources as r", "r.files('pack').joinpath('part.py').read_text()"),
}


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("what", READS)
def test_what_the_import_system_reads_is_an_input(project, what, is_loaded):
    imports, call = READS[what]
    project.write(pack____init__="", pack__part="K = 1")
    load = "importlib.import_module('pack.part')" if is_loaded else ""
    text = f"import importlib\n{imports}\n{load}\ndef f(x): return bool({call})"
    watched = Watched(project, text, code="function")
    assert watched.failure == "" and watched.changed() is None
    project.write(pack__part="K = 2")
    assert watched.changed() == "project:pack/part.py"


@pytest.mark.parametrize("code", ["function", "script"])
def test_a_module_looked_for_by_a_literal_counts(project, code):
    project.write(prep="from importlib.util import find_spec\ndef f(x): return find_spec('later') is None")
    digests = [project.digest(code=code)]
    for text in ("K = 1", "K = 2"):
        project.write(later=text)
        importlib.invalidate_caches()
        digests.append(project.digest(code=code))
    assert len({*digests}) == 3
