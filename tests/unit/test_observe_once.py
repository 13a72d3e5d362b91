"""Observed inputs that were opened before: what a function, or a pool of its own, keeps from one call on."""

from __future__ import annotations

import linecache
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from prepcache import opens
from prepcache.keys.inputs import CHANGED, still_true
from prepcache.keys.observe import Observer
from prepcache.keys.recipes import Recipe, recipe
from prepcache.keys.roots import Roots
from support.projects import Project, project_fixture  # noqa: F401
from support.watching import HERE

ONCE = """import functools, json
class Words:
    def __init__(self, name): self.name = name
    @functools.cached_property
    def table(self): return (HERE / self.name).read_text()
WORDS = Words('v.txt')
@functools.lru_cache
def loaded(name): return (HERE / name).read_text()
@functools.cache
@functools.wraps(loaded)
def wrapped(): return loaded('v.txt')
def called(x): return loaded('v.txt')
def held(x): return WORDS.table
def through(x): return wrapped()
def other(x): return (HERE / 'v.txt').read_text()
def items(x): return loaded(x.name)
def none(x): return x
"""


@pytest.mark.parametrize("name", ["called", "held", "through"])
def test_what_was_loaded_once_before_counts_for_all_that_reach_who_keeps_it(
    project: Project, name: str
) -> None:
    path = project.put("v.txt", "one")
    project.put("i.txt", "one")
    project.write(prep=HERE + ONCE)
    module = project.load()
    recipes = {one: recipe(getattr(module, one)) for one in (name, "other", "items", "none")}
    with Observer(recipes["items"]).watching([path.parent / "i.txt"]):
        module.items(path.parent / "i.txt")
    getattr(module, name)(1)
    for _ in range(2):
        observer = Observer(recipes[name])
        with observer.watching():
            getattr(module, name)(2)
        taken = observer.taken()
        assert [row["name"] for row in taken] == ["project:v.txt"]
    assert still_true(taken, roots=Roots.of(recipes[name])) is None
    elsewhere = pickle.loads(pickle.dumps(observer))
    assert elsewhere.taken() == taken
    assert Observer(recipes["none"]).taken() == Observer(recipes["other"]).taken() == []
    path.write_text("two")
    assert still_true(taken, roots=Roots.of(recipes[name])) == "project:v.txt"
    (row,) = Observer(recipes[name]).taken()
    assert row["digest"] == CHANGED, "what is kept is of before"


def _observed(made: Recipe, *items: Any) -> list[dict[str, str]]:
    """What a data set that is opened now observes."""
    assert made.preprocess is not None
    observer = Observer(made)
    for item in items:
        with observer.watching():
            made.preprocess(item)
    return observer.taken()


@pytest.mark.parametrize("name", ["called", "through"])
def test_what_is_kept_of_a_file_before_it_was_edited_has_changed_where_the_code_names_it_too(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In the project's folder the name alone leads to it, so it is looked at as it is now."""
    path = project.put("v.txt", "one")
    project.write(prep=HERE + ONCE)
    monkeypatch.chdir(project.folder)
    made = recipe(getattr(project.load(), name))
    taken = _observed(made, 1)
    assert [row["name"] for row in taken] == ["cwd:v.txt", "project:v.txt"]
    assert _observed(made, 2) == taken, "who is not asked by its name is by what was opened before"
    path.write_text("two")
    assert {row["digest"] for row in _observed(made, 3)} == {CHANGED}
    assert still_true(taken, roots=Roots.of(made)) == "cwd:v.txt"


def test_what_is_kept_of_a_file_that_the_function_made_later_is_as_the_function_leaves_it(
    project: Project,
) -> None:
    project.write(
        prep=HERE + "import functools\nPATH = HERE / 'v.txt'\n"
        "@functools.cache\ndef kept(): return PATH.exists()\n"
        "def f(x):\n    kept()\n    if x == 2: PATH.write_text('one')\n"
    )
    (row,) = _observed(project.recipe(), 1, 2)
    assert row == {"kind": "file", "name": "project:v.txt", "digest": blake3(b"one").hexdigest()}


def test_a_function_that_keeps_what_it_gave_is_found_in_a_module_that_is_imported_late(
    project: Project,
) -> None:
    project.put("v.txt", "one")
    project.write(words=HERE + ONCE, prep="def f(x):\n    import words\n    return words.held(x)")
    project.recipe()
    sys.modules["prep"].f(1)
    project.write(prep="def f(x):\n    from words import held\n    return held(x)")
    module = __import__("importlib").reload(sys.modules["prep"])
    assert [row["name"] for row in Observer(recipe(module.f)).taken()] == ["project:v.txt"]


def test_a_thread_pool_that_the_function_made_for_another_data_set_is_seen(project: Project) -> None:
    project.put("v.txt", "one")
    project.write(
        prep=HERE + "import functools\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "@functools.cache\ndef pool(): return ThreadPoolExecutor(1)\n"
        "def f(x): return pool().submit((HERE / 'v.txt').read_text).result()"
    )
    made = project.recipe()
    for _ in range(2):
        observer = Observer(made)
        with observer.watching():
            sys.modules["prep"].f(1)
        assert [row["name"] for row in observer.taken()] == ["project:v.txt"]
    sys.modules["prep"].pool().shutdown()


def test_what_prepcache_reads_for_a_function_is_not_what_the_function_keeps(project: Project) -> None:
    project.put("v.txt", "one")
    project.write(
        prep=HERE + "import functools\nfrom prepcache.keys.files import digest_file\n"
        "@functools.cache\ndef digest(): return digest_file(str(HERE / 'v.txt'), None, 'content')\n"
        "def f(x): return digest()"
    )
    made = project.recipe()
    sys.modules["prep"].f(1)
    assert Observer(made).taken() == []


@pytest.mark.parametrize("folder", ["prepcached", "prepcache", "work"])
def test_a_project_may_be_called_as_we_are(tmp_path: Path, folder: str) -> None:
    """Only the code of this package and of the daemon that is loaded is not the job's."""
    path = tmp_path / folder / "prep.py"
    space: dict[str, Any] = {"name": __file__}
    exec(compile("def f(): return open(name).close()", path, "exec"), space)
    space["f"]()
    assert list(opens.by((os.fspath(path), "f"))) == [__file__]


ELSEWHERE = """import functools, linecache, threading
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from linecache import getline
KEPT = threading.local()
POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()
HERE = str(HERE)
read = functools.cache(Path.read_text)
bound = functools.cache((Path(HERE) / 'v.txt').read_text)
def kept():
    if not hasattr(KEPT, 'text'): KEPT.text = (Path(HERE) / 'v.txt').read_text()
    return KEPT.text
def by_library(x): return read(Path(HERE) / 'v.txt')
def by_method(x): return bound()
def by_line(x): return linecache.getline(HERE + '/v.txt', 1)
def by_line_alone(x): return getline(HERE + '/v.txt', 1)
def by_line_within(x):
    import linecache as lines
    return lines.getline(HERE + '/v.txt', 1)
def untracked(x): return kept()
def none(x): return x
def in_pool(x): return POOL.submit(lambda: (Path(HERE) / 'v.txt').read_text()).result()
"""


@pytest.mark.parametrize(
    "name", ["by_library", "by_method", "by_line", "by_line_alone", "by_line_within", "untracked", "in_pool"]
)
def test_what_is_kept_where_nothing_tells_of_it_counts_by_who_opened_it(project: Project, name: str) -> None:
    """By a cache of a library's function, by linecache, by a value that was left out."""
    project.put("v.txt", "one")
    project.write(prep=HERE + ELSEWHERE)
    module = project.load()
    function = getattr(module, name)
    made = recipe(function, untracked={"untracked": ["KEPT"], "in_pool": ["POOL"]}.get(name, []))
    try:
        for _ in range(2):
            observer = Observer(made)
            with observer.watching():
                assert function(1) == "one" or name.startswith("by_line")
            assert [row["name"] for row in observer.taken()] == ["project:v.txt"]
        assert Observer(recipe(module.none)).taken() == []
    finally:
        linecache.clearcache()
