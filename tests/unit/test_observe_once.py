"""Observed inputs that were opened before: what a function, or a pool of its own, keeps from one call on."""

from __future__ import annotations

import sys

import pytest

from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
from support.observing import HERE
from support.projects import Project, project_fixture  # noqa: F401

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
def test_what_was_loaded_once_outside_of_a_watch_counts_by_value(project: Project, name: str) -> None:
    path = project.put("v.txt", "one")
    project.write(prep=HERE + ONCE)
    module = project.load()
    getattr(module, name)(1)
    first = recipe(getattr(module, name)).digest
    path.write_text("two")
    assert recipe(getattr(module, name)).digest == first, "what is kept is of before"
    module.loaded.cache_clear(), module.wrapped.cache_clear(), vars(module.WORDS).pop("table", None)
    getattr(module, name)(1)
    assert recipe(getattr(module, name)).digest != first


def test_a_thread_pool_made_for_another_data_set_is_seen(project: Project) -> None:
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
