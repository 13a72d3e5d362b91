"""What a text says beside code, where its file was edited after it was loaded: annotations, class bodies."""
# ruff: noqa: E501

from __future__ import annotations

import importlib
import importlib.util
import runpy
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from prepcache import loaded
from prepcache.errors import SourceChangedError
from prepcache.keys.code.heads import heads
from prepcache.keys.drift import drift
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

BESIDE_CODE = {
    "an annotation": ("def f(x: {0}):\n    return str(f.__annotations__)\n", "int", "float"),
    "a keyword's annotation": ("def f(x, *, k: {0} = 1):\n    return str(f.__annotations__)\n", "int", "float"),
    "what is returned": ("def f(x) -> {0}:\n    return str(f.__annotations__)\n", "int", "float"),
    "a helper's annotation": (
        "def g(x: {0}): ...\n\ndef f(x):\n    return str(g.__annotations__)\n", "int", "float",
    ),
    "a method's annotation": (
        "class A:\n    def g(self, x: {0}): ...\n\ndef f(x):\n    return str(A.g.__annotations__)\n", "int", "float",
    ),
    "a decorated function's annotation": (
        "import functools\n\n@functools.lru_cache\ndef g(x: {0}): ...\n\n"
        "def f(x):\n    return str(g.__wrapped__.__annotations__)\n", "int", "float",
    ),
    "a class's annotation": ("class A:\n    x: {0}\n\ndef f(x):\n    return str(A.__annotations__)\n", "int", "float"),
    "that of a class in a class": (
        "class A:\n    class B:\n        x: {0}\n\ndef f(x):\n    return str(A.B.__annotations__)\n", "int", "float",
    ),
    "slots": ("class A:\n    __slots__ = ({0},)\n\ndef f(x):\n    return A.__slots__\n", "'a'", "'b'"),
    "the type of a model's field": (
        "import pydantic\n\nclass A(pydantic.BaseModel):\n    x: {0}\n\ndef f(x):\n    return A(x=x).x\n",
        "int", "float",
    ),
    "the argument of a model's field": (
        "import pydantic\n\nclass A(pydantic.BaseModel):\n    x: int = pydantic.Field(le={0})\n\n"
        "def f(x):\n    return str(A.model_fields)\n", "10", "20",
    ),
    "what is taken away from a class": (
        "def take(cls):\n    del cls.x\n    return cls\n\n@take\nclass A:\n    x = dict(k={0})\n\n"
        "def f(x):\n    return A.__name__\n", "1", "2",
    ),
    "the argument of a class decorator": (
        "import pydantic\n\n@pydantic.dataclasses.dataclass(config=dict({0}))\nclass A:\n    x: str\n\n"
        "def f(x):\n    return A(x='aB').x\n", "str_to_lower=True", "str_to_upper=True",
    ),
}  # fmt: skip
BY_VALUE = {
    "a default": ("def f(x, k={0}):\n    return k\n", "10", "20"),
    "a class's value": ("class A:\n    k = {0}\n\ndef f(x):\n    return A.k\n", "10", "20"),
    "a field's default": (
        "import dataclasses\n\n@dataclasses.dataclass\nclass A:\n    k: int = {0}\n\ndef f(x):\n    return A().k\n",
        "10", "20",
    ),
    "a docstring": ("class A:\n    '{0}'\n    k = 1\n\ndef f(x):\n    return A.k\n", "One.", "Two."),
}  # fmt: skip
CASES = BESIDE_CODE | BY_VALUE


def texts_of(case: str) -> tuple[str, str]:
    text, before, after = CASES[case]
    return text.format(before), text.format(after)


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", BESIDE_CODE)
def test_what_was_edited_after_it_was_loaded_is_refused(project: Project, case: str, code: Any) -> None:
    before, after = texts_of(case)
    project.write(prep=before)
    module = project.load()
    recipe(module.f, code=code)
    project.write(prep=after)
    with pytest.raises(SourceChangedError, match="edited after it was imported"):
        recipe(module.f, code=code)


@pytest.mark.parametrize("case", CASES)
def test_an_edit_while_a_data_set_is_open_changes_nothing_that_runs(project: Project, case: str) -> None:
    before, after = texts_of(case)
    project.write(prep=before)
    made = recipe(project.load().f)
    project.write(prep=after)
    assert not drift(made)


@pytest.mark.parametrize("case", BESIDE_CODE)
def test_what_another_process_imported_after_an_edit_is_something_else(project: Project, case: str) -> None:
    before, after = texts_of(case)
    project.write(prep=before)
    made = recipe(project.load().f)
    project.write(prep=after)
    assert drift(replace(made, preprocess=project.load().f))


@pytest.mark.parametrize("case", BY_VALUE)
def test_what_counts_by_its_value_is_not_refused(project: Project, case: str) -> None:
    before, after = texts_of(case)
    project.write(prep=before)
    module = project.load()
    project.write(prep=after)
    digest, given = recipe(module.f).digest, module.f(1)
    anew = project.load().f
    assert given == anew(1) or digest != recipe(anew).digest


@pytest.mark.parametrize("case", CASES)
def test_edits_of_something_else_change_nothing(project: Project, case: str) -> None:
    before, _ = texts_of(case)
    project.write(prep=before)
    module = project.load()
    first = recipe(module.f, code="function").digest
    project.write(prep=f"def other(x: str) -> int:\n    return 1\n\n{before}")
    assert recipe(module.f, code="function").digest == first


@pytest.mark.parametrize("case", CASES)
def test_what_was_reloaded_counts_as_in_a_new_process(project: Project, case: str) -> None:
    before, after = texts_of(case)
    project.write(prep=before)
    module = project.load()
    project.write(prep=after)
    importlib.invalidate_caches()
    reloaded = recipe(importlib.reload(module).f).digest
    assert reloaded == recipe(project.load().f).digest


@pytest.mark.parametrize(
    ("text", "late"),
    [
        ("K = dict(k={0})\n\ndef g(x):\n    return K['k']\n", "from prep import g\n    return g(x)"),
        ("class A:\n    k = {0}\n    l = {0}\n", "from prep import A\n    return A.k"),
    ],
    ids=["a function", "a class"],
)
def test_a_module_that_the_function_imports_is_refused_once_it_was_edited(
    project: Project, text: str, late: str
) -> None:
    """Nothing of it counts but its text."""
    project.write(prep=text.format(10), late=f"def f(x):\n    {late}\n")
    module = project.load("late")
    recipe(module.f)
    assert module.f(1) == 10
    recipe(module.f)
    project.write(prep=text.format(20))
    with pytest.raises(SourceChangedError):
        recipe(module.f)


RELOADED = {
    "a closure": "def make():\n    def g(x: {0}): return x\n    return g\nf = make()\n",
    "a decorator without wraps": "def d(fn):\n    return lambda x: fn(x)\n@d\ndef f(x: {0}): return x\n",
    "a decorator that is a class": (
        "class D:\n    def __init__(self, fn): self.fn = fn\n    def __call__(self, x): return self.fn(x)\n"
        "@D\ndef f(x: {0}): return x\n"
    ),
    "a cached property": (
        "import functools\nclass A:\n    @functools.cached_property\n    def g(self) -> {0}: return 1\n"
        "def f(x): return A().g\n"
    ),
    "a registered function": (
        "TABLE = {{}}\ndef register(fn):\n    TABLE[fn.__name__] = fn\n@register\ndef g(x: {0}): return x\n"
        "def f(x): return TABLE['g'](x)\n"
    ),
    "a dispatched function": (
        "import functools\n@functools.singledispatch\ndef f(x): return x\n@f.register({0})\ndef _(x: {0}): return 2\n"
    ),
    "a class in a function": (
        "def make():\n    class A:\n        k: {0} = 1\n        def g(self): return self.k\n    return A\nB = make()\n"
        "def f(x): return B().g()\n"
    ),
    "a name that is taken away": "def g(x: {0}): return x\nTABLE = [g]\ndel g\ndef f(x): return TABLE[0](x)\n",
}


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", RELOADED)
def test_whatever_was_reloaded_after_an_edit_is_not_refused(project: Project, case: str, code: Any) -> None:
    project.write(prep=RELOADED[case].format("int"))
    module = project.load()
    recipe(module.f, code=code)
    project.write(prep=RELOADED[case].format("float"))
    reloaded = recipe(importlib.reload(module).f, code=code).digest
    assert reloaded == recipe(project.load().f, code=code).digest


MODEL = "import pydantic\nclass A(pydantic.BaseModel):\n    x: {0}\n\ndef f(x):\n    return A(x=x).x\n"


@pytest.mark.parametrize("way", ["a failed reload", "another name", "runpy"])
def test_a_text_that_something_else_was_loaded_from_says_nothing(project: Project, way: str) -> None:
    """The model is still the one of before."""
    project.write(prep=MODEL.format("int"))
    module = project.load()
    path = project.folder / "prep.py"
    project.write(prep=MODEL.format("float"))
    if way == "a failed reload":
        path.write_text(f"1 / 0\n{path.read_text()}")
        with pytest.raises(ZeroDivisionError):
            importlib.reload(module)
        project.write(prep=MODEL.format("float"))
    elif way == "another name":
        spec = importlib.util.spec_from_file_location("other", path)
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    else:
        runpy.run_path(str(path))
    assert repr(module.f(3)) == "3"
    with pytest.raises(SourceChangedError):
        recipe(module.f)


def test_what_was_edited_back_is_as_it_was(project: Project) -> None:
    project.write(prep=MODEL.format("int"))
    module = project.load()
    made = recipe(module.f)
    path = project.folder / "prep.py"
    project.write(prep=MODEL.format("float"))
    runpy.run_path(str(path))
    project.write(prep=MODEL.format("int"))
    assert recipe(module.f).digest == made.digest and not drift(made)


def test_in_a_module_that_the_function_imports_a_comment_is_no_edit(project: Project) -> None:
    text = "K = dict(k=10)\n\ndef g(x):\n    return K['k']\n"
    project.write(prep=text, late="def f(x):\n    from prep import g\n    return g(x)\n")
    module = project.load("late")
    assert module.f(1) == 10
    (project.folder / "prep.py").write_bytes(f"# A comment.\n{text}".replace("\n", "\r\n").encode())
    recipe(module.f)


def test_a_librarys_function_with_the_modules_globals_counts_by_its_text(project: Project) -> None:
    project.write(
        prep="import re, types, textwrap\ncopied = types.FunctionType(textwrap.dedent.__code__, globals())\n"
        "_whitespace_only_re = textwrap._whitespace_only_re\n_leading_whitespace_re = textwrap._leading_whitespace_re\n"
        "def f(x): return copied(x)\n"
    )
    module = project.load()
    assert module.f("  a") == "a"
    assert recipe(module.f).digest == recipe(project.load().f).digest


def test_what_is_not_kept_any_more_is_given_back(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "MAX_BYTES", loaded._kept_bytes + 100)
    path = project.put("prep.py", "K = 1\n")
    project.load()
    kept = loaded._kept_bytes
    for number in range(30):
        project.put("prep.py", f"K = {number}\n" + "#" * 40)
        project.load()
        assert loaded._kept_bytes <= kept + 100
    assert loaded._kept_bytes == kept - 6 + sum(len(load.text) for load in loaded.loads(str(path)))


def test_what_is_kept_from_before_a_reload_is_refused(project: Project) -> None:
    before, after = texts_of("a class's annotation")
    project.write(prep=before)
    module = project.load()
    kept = module.A
    project.write(prep=after)
    importlib.reload(module)
    with pytest.raises(SourceChangedError, match=r"prep\.A is not in"):
        recipe(lambda x: kept.__annotations__)


def test_a_function_that_no_name_of_its_module_holds_is_of_the_text_that_made_it(project: Project) -> None:
    text = "def make():\n    def g(x: {0}): return g.__annotations__\n    return g\nTABLE = [make()]\n"
    project.write(prep=text.format("int"))
    module = project.load()
    kept = module.TABLE[0]
    project.write(prep=text.format("float"))
    importlib.reload(module)
    recipe(lambda x: module.TABLE[0](x))
    with pytest.raises(SourceChangedError, match=r"prep\.make\.<locals>\.g is not in"):
        recipe(lambda x: kept(x))


def test_what_was_imported_before_prepcache_counts_as_it_was_then(project: Project) -> None:
    """The module is edited when prepcache is there."""
    before, after = texts_of("a class's annotation")
    path = project.put("prep.py", before)
    job = (
        f"import sys; sys.path.insert(0, {str(project.folder)!r})\n"
        f"import prep, prepcache\n"
        f"from prepcache.keys.recipes import recipe\n"
        f"recipe(prep.f)\n"
        f"open({str(path)!r}, 'w').write({after!r})\n"
        f"try:\n    recipe(prep.f)\nexcept prepcache.SourceChangedError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=True)
    assert "prep.A is not in" in done.stdout, done.stderr


def test_of_a_text_that_is_not_kept_nothing_is_said(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = texts_of("an annotation")
    path = project.put("prep.py", before)
    monkeypatch.setattr(loaded, "MAX_BYTES", loaded._kept_bytes + len(before))
    module = project.load()
    assert [load.text for load in loaded.loads(str(path))] == [before.encode()]
    project.write(prep=after)
    importlib.reload(module)
    assert loaded.loads(str(path)) == []
    project.write(prep=before)
    recipe(module.f)


def test_an_import_does_not_wait_for_many_texts(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project.put("prep.py", "def f(x): ...")
    project.load()
    monkeypatch.setattr(loaded, "_loads", {})
    monkeypatch.setattr(loaded, "MAX_S", 60.0)  # this process has thousands of modules, and may be held up
    loaded.note_those_there(str(path).__eq__)
    assert list(loaded._loads) == [str(path)]
    monkeypatch.setattr(loaded, "_loads", {})
    monkeypatch.setattr(loaded, "MAX_S", -1.0)
    loaded.note_those_there(str(path).__eq__)
    assert not loaded._loads


def test_a_text_that_was_read_in_the_middle_of_being_written_is_none(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = texts_of("an annotation")
    path = project.put("prep.py", before)
    module = project.load()
    made = recipe(module.f)
    cut = loaded.Load(before.encode()[:-30] + b"(")
    monkeypatch.setitem(loaded._loads, str(path), [cut])
    assert recipe(module.f).digest == made.digest and not drift(made)


def test_a_module_that_loads_itself_is_let_be(project: Project) -> None:
    path = project.put("prep.py", "raise RuntimeError")
    spec = importlib.util.spec_from_file_location("prep", path)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["prep"] = module
    loaded.note_those_there(str(path).__eq__)
    del sys.modules["prep"]
    assert not loaded.loads(str(path))


def test_texts_are_those_of_each_load_once(project: Project) -> None:
    path = project.put("prep.py", "def f(x):\n    return 1\n")
    module = project.load()
    importlib.reload(module)
    project.put("prep.py", "def f(x):\n    return 22\n")
    importlib.reload(module)
    assert [load.text[-3:] for load in loaded.loads(str(path))] == [b" 1\n", b"22\n"]


def test_a_library_is_not_kept() -> None:
    assert not loaded.loads(str(pytest.__file__)) and not loaded.loads(str(loaded.__file__))


def test_heads_have_qualified_names() -> None:
    text = """
class A:
    def g(self):
        def h(): ...
        class B: ...

if A:
    def f(): ...
else:
    def f(x): ...
"""
    found = heads(text.encode(), "prep.py")
    assert sorted(found) == ["A", "A.g", "A.g.<locals>.B", "A.g.<locals>.h", "f"] and len(found["f"]) == 2
