"""What a function reaches: as it was loaded, by asking, by registries, by libraries; and corners of the walk."""
# ruff: noqa: E501

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from prepcache.keys.recipes import recipe
from support.programs import python
from support.projects import Project, changes, drift, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}


def test_what_runs_is_keyed_after_an_edit_of_its_source(project):
    project.write(prep="def f(x): return x")
    module = project.load()
    before = {code: recipe(module.f, code=code).digest for code in ("script", "function")}
    project.write(prep="def f(x): return -x")
    assert recipe(module.f, **FUNCTION).digest == before["function"]
    after = recipe(module.f).digest
    project.write(prep="def f(x): return -x  # and again")
    assert recipe(module.f).digest == after
    assert after not in (before["script"], project.digest())
    assert project.digest(**FUNCTION) != before["function"]


@pytest.mark.parametrize(
    ("word", "text", "old", "new"),
    [
        ("__doc__", "def g(): 'one'", "one", "two"),
        ("__doc__", "def g():\n    class C: 'one'\n    return C", "one", "two"),
        ("__doc__", "def g():\n    def h(): 'one'\n    return h", "one", "two"),
        ("__subclasses__", "class g: pass\nclass h(g): K = 1", "K = 1", "K = 2"),
    ],
)
def test_what_a_global_names_is_asked_for(project, word, text, old, new):
    source = f"ASKED = {word!r}\n{text}\ndef f(x): return getattr(g, ASKED)"
    project.write(prep=source)
    before = project.digest(**FUNCTION)
    project.write(prep=source.replace(old, new))
    assert project.digest(**FUNCTION) != before


@pytest.mark.parametrize("way", ["inspect import getdoc", "pydoc import render_doc"])
def test_what_has_another_name_asks_by_its_own(project, way):
    source = f"from {way} as asked\ndef g(): 'one'\ndef f(x): return asked(g)"
    project.write(prep=source)
    before = project.digest(**FUNCTION)
    project.write(prep=source.replace("one", "two"))
    assert project.digest(**FUNCTION) != before


def test_what_only_shows_the_class_of_a_function_has_no_name(project):
    shown = "import types\nclass Shown:\n    __class__ = types.FunctionType\nasked = Shown()\n"
    project.write(prep=f"{shown}def f(x): return asked is x")
    assert "prep.asked" in project.recipe(**FUNCTION).parts["code"]["values"]


def test_a_docstring_that_counts_is_shown(project):
    project.write(prep="def g(): 'one'\ndef f(x): return g.__doc__")
    assert project.recipe(**FUNCTION).parts["code"]["values"]["prep.g.__doc__"]["text"] == "'one'"


def test_a_frozen_module_of_the_project_counts(monkeypatch):
    """As of a program that is one file. It has no source."""
    digests = []
    for text in (
        "K = 1\ndef f(x): return x * K",
        "K = 1\ndef f(x): return -x * K",
        "K = 2\ndef f(x): return x * K",
    ):
        module = ModuleType("frost")
        monkeypatch.setitem(sys.modules, "frost", module)
        exec(compile(text, "<frozen frost>", "exec"), vars(module))
        digests += [recipe(module.f, code="function").digest, recipe(module.f).digest]
    assert len({*digests}) == 6


def test_untracked_names_that_are_not_reached_are_noted(project):
    project.write(prep="def f(x): return x")
    assert project.recipe(untracked=("nothing",)).notes == (
        "untracked='nothing' names nothing that the code uses: correct or remove it",
    )


def test_a_file_that_was_loaded_by_its_place_counts_whole(project):
    project.write(
        prep="import importlib.util, pathlib\nfrom importlib.machinery import SourceFileLoader\n"
        "loader = SourceFileLoader('aside', str(pathlib.Path(__file__).with_name('aside.txt')))\n"
        "module = importlib.util.module_from_spec(importlib.util.spec_from_loader('aside', loader))\n"
        "loader.exec_module(module)\ng = module.g\ndef f(x): return g(x)"
    )
    path = project.put("aside.txt", "N = 1\ndef g(x): return 1\n")
    assert changes(project, lambda: path.write_text("N = 2\ndef g(x): return 1\n"))


def test_a_module_off_the_path_counts_by_its_loaded_file(project):
    aside = project.folder / "aside"
    project.put("aside/put_aside.py", "def g(x): return 1")
    project.write(prep="import put_aside\ndef f(x): return x")
    sys.path.insert(0, str(aside))
    module = project.load()
    sys.path.remove(str(aside))
    assert set(recipe(module.f).parts["code"]["files"]) == {"prep.py", "put_aside.py"}


def test_an_unowned_module_in_site_packages_counts_by_its_file(project, monkeypatch):
    project.install(monkeypatch, "one", "def g(x): return x\n")
    project.put("site-packages/loose.py", "def g(x): return x\n")
    project.write(prep="import loose, one\ndef f(x): return loose.g(one.g(x))")
    made = project.recipe()
    assert set(made.parts["code"]["files"]) == {"prep.py", "loose.py"}
    assert "one" in made.parts["environment"]["distributions"]


def test_an_objects_own_caches_do_not_count(project):
    project.write(
        prep="def made(path): return Reader(path)\nclass Reader:\n    def __init__(self, path):\n"
        "        self.path, self.n, self.seen = path, 0, {}\n    def get(self, x):\n        self.n += 1\n"
        "        self.seen[x] = x\n        return x\n    def __reduce__(self): return made, (self.path,)\n"
        "r = Reader('p')\ndef f(x): return r.get(x)\n"
    )
    module = project.load()
    made = recipe(module.f)
    module.f(1)
    assert recipe(module.f).digest == made.digest and not drift(made)


def loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["SIZE = {}\ndef g(x): return x * SIZE", "def g(x): return x * {}"])
@pytest.mark.parametrize("swapped", [0, 1])
def test_two_modules_of_one_name_share_nothing(project, text, swapped):
    digests = []
    for one, other in ((1, 2), (1, 3), (2, 1)):
        a = loaded(project.put("a/config.py", text.format(one)), "config")
        b = loaded(project.put("b/config.py", text.format(other)), "config")
        functions = [b.g, a.g] if swapped else [a.g, b.g]

        def f(x: int, functions: list[object]) -> int:
            return x

        digests.append(recipe(f, config={"functions": functions}, code="function").digest)
    assert len(set(digests)) == 3


def test_a_model_that_is_set_to_evaluate_is_no_look_up_by_text(project):
    """`model.eval()`: the start of the run and an iterator would count."""
    project.write(
        prep="import time\nSTART = time.perf_counter_ns()\nLINES = (line for line in ())\n"
        "class Model:\n    def eval(self): return self\nmodel = Model()\ndef f(x): return model.eval(), x"
    )
    assert project.digest(code="function") == project.digest(code="function")


def test_warnings_as_errors_do_not_break_parsing(project, recwarn):
    """A job may have made errors of them after it has loaded its modules."""
    project.write(prep="import re\ndef f(x):\n    import helper\n    return re.sub('\\d', '', x) is 'a'")
    project.write(helper="P = '\\w'\ndef g(x): return P is 'a'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = project.load()
    for action in ("error", "always"):
        warnings.simplefilter(action)  # type: ignore[arg-type]
        project.forget()
        assert {recipe(module.f, code=code).parts["code"]["mode"] for code in ("function", "script")}
    assert not recwarn.list


def test_a_script_with_a_relative_name_is_found_after_chdir(project):
    project.write(
        job="N = 3\ndef f(x): return N\nimport os\nos.chdir('/')\nfrom prepcache.keys.recipes import recipe\n"
        "import json\nprint(json.dumps(recipe(f).parts['code']['files']))"
    )
    assert list(json.loads(python("job.py", cwd=project.folder).stdout)) == ["job.py"]


@pytest.mark.parametrize(
    ("read", "counts"),
    [
        ("argparse.ArgumentParser().parse_known_args()", True),
        ("parser().parse_args().size", True),
        ("x.parse()", False),
    ],
)
def test_the_command_line_counts_where_code_parses_it(project, monkeypatch, read, counts):
    """Not that of a job whose entry script does: the values that this sets count."""
    project.write(prep=f"import argparse\nparser = argparse.ArgumentParser\ndef f(x): return {read}")
    digests = set()
    for name, size in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        monkeypatch.setattr("sys.argv", [name, "--size", size])
        digests.add(project.digest(**FUNCTION))
    assert len(digests) == 1 + counts


def test_the_class_of_a_module_that_another_put_there_counts(project):
    own = "import cfg, types\nclass M(types.ModuleType):\n    size = property(lambda self: {})\ncfg.__class__ = M\n"
    project.write(prep="import cfg, own\ndef f(x): return cfg.size", cfg="", own=own.format(1))
    assert changes(project, lambda: project.write(own=own.format(2)), **FUNCTION)
