"""Source files and what they import, read without importing them; where files belong; what runs of them."""

import marshal
import os
import py_compile
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import ModuleType

import pytest

import prepcache
from prepcache.errors import UnkeyableError, all_errors
from prepcache.keys.code import import_graph
from prepcache.keys.code.import_graph import ImportGraph, imports_in, read_source
from prepcache.keys.code.project import Place, Places
from prepcache.keys.environment import runs_as_written
from prepcache.keys.recipes import recipe, static_key
from support.projects import Project, project_fixture  # noqa: F401


def test_two_files_known_by_one_name_both_count(tmp_path):
    graph = ImportGraph(Places({}), [])
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "prep.py").write_text("")
        graph.add_file("prep", str(tmp_path / folder / "prep.py"))
    assert list(graph.files) == ["prep.py", "prep.py#2"]


BROUGHT = {
    "a relative name in a text": (
        "pkg/two.py",
        "import pkg.one\ndef f(x): return pkg.one.f(x)",
        "import importlib\ndef f(x): return importlib.import_module('.two', __package__).g(x)",
    ),
    "what `__all__` lists": ("pkg/two.py", "from pkg import *\ndef f(x): return two.g(x)", ""),
    "a name of the standard library's, and no line of it runs": (
        "this.py",
        "def f(x):\n    import this\n    return x",
        "",
    ),
}


@pytest.mark.parametrize("how", BROUGHT)
def test_what_an_import_brings_counts(project, how):
    file, prep, one = BROUGHT[how]
    project.write(
        prep=prep,
        pkg____init__="__all__ = ['two']",
        pkg__one=one,
        pkg__two="g = len",
        this="raise SystemExit",
    )
    assert file in project.recipe().parts["code"]["files"]


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("edited", ["prep.py", "helper.py"])
@pytest.mark.parametrize("text", ["def (", None])
def test_a_loaded_file_that_no_longer_says_anything_is_keyed(project, code, edited, text):
    """By what was loaded from it."""
    digests = []
    for k in (1, 2):
        project.write(
            prep=f"import helper\nK = {k}\ndef f(x):\n    import helper\n    return helper.g(x) * K",
            helper=f"def g(x): return x * {k}",
        )
        module = project.load()
        (project.folder / edited).unlink() if text is None else project.put(edited, text)
        digests.append(recipe(module.f, code=code).digest)
    assert digests[0] != digests[1]


def test_a_module_of_bytecode_is_refused_unless_it_is_loaded(project):
    project.write(prep="def f(x):\n    import only\n    return x")
    (project.folder / "only.pyc").write_bytes(b"\0" * 16)
    with pytest.raises(UnkeyableError, match=r"only\.pyc cannot be read or parsed"):
        project.recipe()
    digests = set()
    for k in (1, 2):
        project.write(prep="import only\ndef f(x): return only.g(x)", only=f"def g(x): return x * {k}")
        py_compile.compile(str(project.folder / "only.py"), str(project.folder / "only.pyc"))
        (project.folder / "only.py").unlink()
        digests.add(project.recipe().digest)
    assert len(digests) == 2


def test_a_static_key_reads_the_file_and_never_runs_it(project):
    project.write(
        tool="import helper, sys\nsys.exit('it ran')\ndef f(x): return helper.g(x)",
        helper="import numpy, sys\nAPI_KEY = 'hidden'\nsys.exit('it ran')\ndef g(x): return x",
    )
    key = static_key(project.folder / "tool.py", "f")
    assert set(key["files"]) == {"tool.py", "helper.py"}
    assert "f" in key["definitions"]
    assert "hidden" not in repr(key)
    assert "numpy" in key["distributions"]
    assert "tool" not in sys.modules


def put(path: Path, text: str, *, age_s: float = 100) -> str:
    path.write_text(text)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return str(path)


def test_a_file_is_read_again_only_if_it_may_have_changed(tmp_path, monkeypatch):
    path = put(tmp_path / "a.py", "K = 1")
    monkeypatch.setattr(import_graph, "racy_window_ns", lambda device: -1 << 60)  # its change time is of now
    first = read_source(path, "a")
    assert read_source(path, "a") is first
    put(tmp_path / "a.py", "K = 2")
    assert read_source(path, "a").digest != first.digest
    monkeypatch.setattr(import_graph, "racy_window_ns", lambda device: 1 << 60)
    assert read_source(path, "a") is not read_source(path, "a"), "a young stamp does not tell a later write"


def test_the_bytecode_cache_is_used_as_an_import_would_use_it(tmp_path):
    path = put(tmp_path / "a.py", "K = 1")
    cached = Path(cache_from_source(path))
    cached.parent.mkdir()
    made = SourceFileLoader("a", path)
    code = compile("K = 3", path, "exec")
    info = (tmp_path / "a.py").stat()
    numbers = 0, int(info.st_mtime), info.st_size
    header = MAGIC_NUMBER + b"".join(number.to_bytes(4, "little") for number in numbers)
    cached.write_bytes(header + marshal.dumps(code))
    assert read_source(path, "a").code.co_consts[0] == made.get_code("a").co_consts[0] == 3
    cached.write_bytes(b"damaged")
    put(tmp_path / "a.py", "K = 1", age_s=200)
    assert read_source(path, "a").code.co_consts[0] == 1


@pytest.mark.parametrize("text", ["def f(:", "\0"])
def test_a_file_that_cannot_be_compiled_is_refused_by_name(tmp_path, text):
    path = put(tmp_path / "a.py", text)
    with pytest.raises(UnkeyableError, match=r"a\.py cannot be read or parsed.*code=None"):
        read_source(path, "a.py")
    with pytest.raises(UnkeyableError, match="cannot be read"):
        read_source(str(tmp_path / "absent.py"), "absent")


IMPORTS = {
    "import a": [(0, "a", ())],
    "import a.b as c": [(0, "a.b", ())],
    "from a import b, c": [(0, "a", ("b", "c"))],
    "from .. import b": [(2, "", ("b",))],
    "from a import *": [(0, "a", ("*",))],
    "def f():\n  import a\n  def g():\n    import b": [(0, "a", ()), (0, "b", ())],
    "import importlib\nimportlib.import_module('a.b')": [(0, "importlib", ()), (0, "a.b", ())],
    "__import__('a')": [(0, "a", ())],
    "def f(n):\n  __import__('a.' + n)": [],
    "if __name__ == '__main__':\n  __import__('a')": [(0, "a", ())],
    "import typing\nif typing.TYPE_CHECKING:\n  import a": [(0, "typing", ()), (0, "a", ())],
    "def f(a): return import_module(a, '.b')": [(1, "b", ())],
}


@pytest.mark.parametrize("text", IMPORTS)
def test_imports_are_read_from_byte_code(text):
    assert list(imports_in(compile(text, "x.py", "exec", dont_inherit=True))) == IMPORTS[text]


EDITS = {
    "nothing": ("", "", True),
    "a comment": ("", "# more", True),
    "a constant": ("K = 1", "K = 2", False),
    "a function": ("return 1", "return 2", False),
    "a method": ("m(self): return 1", "m(self): return 2", False),
    "a syntax error": ("def f()", "def f(", False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_whether_a_module_runs_as_its_file_says(project, monkeypatch, edit):
    monkeypatch.setattr("prepcache.keys.environment.started_ns", time.time_ns)
    text = "K = 1\ndef f(): return 1\nclass A:\n  def m(self): return 1\n"
    path = project.put("late.py", text)
    assert runs_as_written(str(path)), "nothing was loaded from it"
    module = project.load("late")
    assert isinstance(module, ModuleType) and sys.modules["late"] is module
    old, new, is_same = EDITS[edit]
    project.put("late.py", text.replace(old, new, 1))
    assert runs_as_written(str(path)) is is_same


@pytest.mark.parametrize("is_older", [True, False])
def test_what_a_file_fills_itself_is_as_written_if_it_is_older(project, monkeypatch, is_older):
    """Of one that is younger than the process it is not told which text was loaded."""
    path = project.put("late.py", "R = {}\ndef add(f): R[f.__name__] = f\n@add\ndef g(): pass\n")
    project.load("late")
    age = 10**10 if is_older else -(10**10)
    monkeypatch.setattr("prepcache.keys.environment.started_ns", lambda: path.stat().st_ctime_ns + age)
    assert runs_as_written(str(path)) is is_older


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """site/owned.py and loose.py, and links to both and to the folder, from outside and within."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "owned.py").write_text("")
    (tmp_path / "loose.py").write_text("")
    (tmp_path / "folder").symlink_to("site")
    (tmp_path / "file.py").symlink_to("site/owned.py")
    (site / "to_loose.py").symlink_to("../loose.py")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("site/owned.py", Place.SITE),
        ("folder/owned.py", Place.SITE),
        ("file.py", Place.SITE),
        ("folder/../site/owned.py", Place.SITE),
        ("site/to_loose.py", Place.PROJECT),
        ("loose.py", Place.PROJECT),
        ("folder/absent.py", Place.PROJECT),
    ],
)
def test_a_file_belongs_where_links_lead(linked, name, place):
    places = Places({str(linked / "site"): {"owned"}})
    for _ in range(2):
        assert places.of(str(linked / name)) is place


def test_public_names_are_there_and_others_are_said_not_to_be():
    public = {error.__name__ for error in all_errors()} & set(prepcache.__all__)
    assert 6 <= len(public) <= 8 and set(prepcache.__all__) == set(dir(prepcache))
    assert all(issubclass(error, prepcache.PrepcacheError) for error in all_errors())
    assert prepcache.errors.NotFound in all_errors()
    for name in prepcache.__all__:
        assert getattr(prepcache, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'CachedDatset'"):
        _ = prepcache.CachedDatset  # type: ignore[attr-defined]
