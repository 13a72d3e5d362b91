"""What changes while a data set is open: a global or a config, told from what the function does; an item."""

import builtins
import dataclasses
import importlib
import pickle
import sys
import wsgiref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache.fill.input_guard import Originals
from prepcache.fill.recipe_guard import RecipeGuard, line
from prepcache.index.item_index import Distinct
from prepcache.keys.items import ItemHasher
from prepcache.keys.recipes import recipe
from support.observing import told_by_child
from support.projects import Project, fill, project_fixture  # noqa: F401


def sent(guard: RecipeGuard) -> RecipeGuard:
    """The guard where an executor works for a fill."""
    asked: RecipeGuard = pickle.loads(pickle.dumps(guard))
    with suppress(InterruptedError), asked.filling():
        there: RecipeGuard = pickle.loads(pickle.dumps(asked))
        raise InterruptedError
    return there


PREP = """
SIZE = 1
TABLE = {}
LOADED = None
def f(x):
    global LOADED
    LOADED = LOADED or [1, 2]
    TABLE[x] = True
    return x, SIZE, LOADED
"""


def test_a_global_set_by_the_job_is_named(project):
    project.write(prep=PREP)
    module = project.load()
    guard = RecipeGuard(recipe(module.f))
    assert guard.check() == []
    module.SIZE = 2
    assert guard.check() == ["prep.SIZE"]
    assert [guard.is_news(), guard.is_news()] == [True, False]
    assert "prep.SIZE changed since" in line(guard.check())
    module.SIZE = 1
    assert guard.check() == ["prep.SIZE"], "some was made with the other one"


def test_what_a_forked_child_sets_is_not_put_down_to_the_fill(project):
    project.write(prep=PREP)
    module = project.load()
    guard = RecipeGuard(recipe(module.f))

    def check() -> list[str]:
        module.TABLE["set by"] = "the job"
        return guard.check()

    with guard.filling():
        assert told_by_child(check) == ["prep.TABLE"]
        assert check() == []


VARIABLES = {
    "by a literal": ("return os.environ.get('PREP_MODE')", True),
    "by what an argument holds": ("return read()", True),
    "and set": ("os.environ['PREP_MODE'] = str(x)", False),
}


@pytest.mark.parametrize("how", VARIABLES)
@pytest.mark.parametrize("values", [("1", "2"), ("1", None), (None, "2")])
def test_a_variable_set_by_the_job_is_named(project, monkeypatch, how, values):
    """Or unset; and no variable that the function sets itself."""

    def put(value: str | None) -> None:
        monkeypatch.delenv("PREP_MODE", raising=False) if value is None else monkeypatch.setenv(
            "PREP_MODE", value
        )

    read, is_named = VARIABLES[how]
    project.write(
        prep=f"import os\ndef read(name='PREP_MODE'): return os.environ.get(name)\ndef f(x): {read}\n"
    )
    put(values[0])
    module = project.load()
    guard = RecipeGuard(recipe(module.f))
    guard.note_call()
    assert guard.check() == []
    put(values[1])
    assert fill(guard) == ["$PREP_MODE"] * is_named


NEW = {
    "a global": ("def f(x): return globals().get('K', 1), x", "prep.K"),
    "a name in a text": ("def f(x):\n    try: return eval('K'), x\n    except NameError: return x", "prep.K"),
    "an attribute of a class": ("class B: K = 1\nclass A(B): pass\ndef f(x): return A.K, x", "prep.A.K"),
    "an attribute of a module": ("import cfg\ndef f(x): return getattr(cfg, 'K', 1), x", "cfg.K"),
    "a name in a module": ("import cfg\ndef f(x): return vars(cfg).get('K', 1), x", "cfg.K"),
    "an attribute of a function": ("def g(): pass\ndef f(x): return getattr(g, 'K', 1), x", "prep.g.K"),
    "a builtin": ("def f(x):\n    try: return K, x\n    except NameError: return x", "builtins.K"),
}


@pytest.mark.parametrize("what", NEW)
@pytest.mark.parametrize("is_gone", [False, True])
def test_what_the_job_adds_or_takes_away_is_named(project, monkeypatch, what, is_gone):
    text, name = NEW[what]
    project.write(prep=text, cfg="")
    module = project.load()
    owners = {
        "prep": module, "prep.A": getattr(module, "A", None), "prep.g": getattr(module, "g", None),
        "builtins": builtins, "cfg": getattr(module, "cfg", None),
    }  # fmt: skip
    owner = owners[name.rpartition(".")[0]]
    if is_gone:
        monkeypatch.setattr(owner, "K", 2, raising=False)
    guard = RecipeGuard(recipe(module.f))
    module.f(1)
    guard.note_call()
    assert guard.check() == []
    monkeypatch.delattr(owner, "K") if is_gone else monkeypatch.setattr(owner, "K", 2, raising=False)
    assert name in guard.check()


def test_a_module_of_a_library_that_the_job_loads_is_no_change(project, monkeypatch):
    """As `numpy.random` is with its first use."""
    monkeypatch.delitem(sys.modules, "wsgiref.util", raising=False)
    monkeypatch.delattr(wsgiref, "util", raising=False)
    project.write(prep="import wsgiref\ndef f(x): return wsgiref.util.guess_scheme({}), x\n")
    module = project.load()
    guard = RecipeGuard(recipe(module.f))
    importlib.import_module("wsgiref.util")
    assert guard.check() == []
    module.f(1)
    guard.note_call()
    assert guard.check() == []


def test_a_default_dtype_set_by_the_job_is_named(project):
    project.write(prep=PREP)
    guard = RecipeGuard(recipe(project.load().f))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert fill(guard) == ["torch_default_dtype"]
    finally:
        torch.set_default_dtype(before)


def test_a_look_in_the_middle_of_a_change_breaks_no_call(project, monkeypatch):
    """Another thread of the job's may grow a dict that counts: then nothing passes for the function's own."""
    project.write(prep=PREP)
    module = project.load()
    guard = RecipeGuard(recipe(module.f))

    def moving(*_: object, **__: object) -> dict[str, bool]:
        raise RuntimeError("dictionary changed size during iteration")

    with monkeypatch.context() as patch:
        patch.setattr("prepcache.keys.recipes.again", moving)
        guard.note_call()
        assert guard.check() != []
    assert guard.check() == []
    module.f(1)
    with monkeypatch.context() as patch, guard.filling():
        patch.setattr("prepcache.keys.recipes.states_now", moving)
    module.SIZE = 2
    guard.note_call()
    assert guard.check() == ["prep.SIZE"]


def test_what_has_no_key_any_more_has_changed(project):
    """Also where it lost its key before the end of the first call: other changes could not be seen."""
    project.write(prep="def f(x):\n    if x > 5: import helper\n    return x\n", helper="K = 1\n")
    module = project.load()
    guard = RecipeGuard(recipe(module.f))
    helper = project.put("helper.py", "def (")
    module.f(1)
    guard.note_call()
    assert guard.check() == [str(helper)]


HOLDS = """
class Holder:
    k = met = 0
    def load(self, k):
        self.k = k
    def encode(self, x):
        self.met += 1
        return x + self.k
HOLDER = Holder()
def f(x):
    return HOLDER.encode(x)
"""


def test_an_object_unknown_to_a_worker_is_a_change(project):
    """What an executor's initializer or the job alone has set, by a method: nothing tells who called it."""
    project.write(prep=HOLDS)
    module = project.load()
    guard = RecipeGuard(recipe(module.f))
    there = sent(guard)
    module.HOLDER.load(5)
    assert there.check() == ["prep.HOLDER.k"]
    again = RecipeGuard(recipe(module.f))
    there = sent(again)
    assert there.check() == [], "loaded before this one was opened"
    module.f(1)
    there = sent(again)
    assert there.check() == [], "it was so before the call"


def test_code_that_another_process_imports_edited_is_a_change(project):
    project.write(prep=PREP)
    made = recipe(project.load().f)
    project.write(prep=PREP.replace("return x, SIZE", "return SIZE, x"))
    again = recipe(project.load().f)
    assert RecipeGuard(dataclasses.replace(made, preprocess=again.preprocess)).check() == ["prep.f"]


def opened(items: list[Any]) -> Originals:
    stamps = ItemHasher(stat_cache=None).digest_many(items)
    originals = Originals(items, Distinct(stamps.digests), stamps)
    originals.end_opening()
    return originals


def test_an_item_that_was_put_back_stays_altered():
    """One thread may be at a sample of the altered item while another finds it as it was."""
    items = [{"v": 1}, {"v": 2}]
    originals = opened(items)
    items[1]["v"] = 3
    assert originals.compared(1) == {"v": 3}
    items[1]["v"] = 2
    assert originals.compared(1) == {"v": 2}
    originals.compare(np.arange(2))
    assert originals.changed(0) == []
    assert originals.changed(1) == ["item 1"]


def test_text_that_comes_to_name_a_file_is_no_longer_what_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    originals = opened(["words.txt", "words", "a/b", "x" * 5000])
    assert [originals.changed(index) for index in range(4)] == [[], [], [], []]
    for name in ("words.txt", "words"):
        Path(name).write_text("1")
    changed = [originals.changed(index) for index in range(4)]
    assert changed == [["words.txt"], [], [], []], "a word is text, whatever it names"
