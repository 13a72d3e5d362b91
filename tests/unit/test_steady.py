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

from prepcache.fill.recipe_guard import RecipeGuard, line
from prepcache.index.item_index import Distinct, Originals
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


def opened(project: Project, text: str) -> tuple[Any, RecipeGuard]:
    project.write(prep=text)
    module = project.load()
    return module, RecipeGuard(recipe(module.f))


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
    module, guard = opened(project, PREP)
    assert guard.check() == []
    module.SIZE = 2
    assert guard.check() == ["prep.SIZE"]
    assert "prep.SIZE changed since" in line(guard.check())
    module.SIZE = 1
    assert guard.check() == ["prep.SIZE"], "some was made with the other one"


def test_a_global_set_after_an_unreadable_one_is_named(project):
    """What a call opens and keeps has no bytes, and hides nothing else."""
    module, guard = opened(project, PREP.replace("[1, 2]", "(n for n in ())"))
    module.f(1)
    guard.note_call()
    assert guard.check() == []
    module.SIZE = 2
    assert guard.check() == ["prep.SIZE"]


def test_what_a_forked_child_sets_is_not_put_down_to_the_fill(project):
    module, guard = opened(project, PREP)

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
    read, is_named = VARIABLES[how]
    if values[0]:
        monkeypatch.setenv("PREP_MODE", values[0])
    text = f"import os\ndef read(name='PREP_MODE'): return os.environ.get(name)\ndef f(x): {read}\n"
    _, guard = opened(project, text)
    guard.note_call()
    assert guard.check() == []
    monkeypatch.setenv("PREP_MODE", values[1] or "gone")
    if values[1] is None:
        monkeypatch.delenv("PREP_MODE")
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
    owner = eval(name.rpartition(".")[0], {"prep": module, "builtins": builtins, **vars(module)})
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
    module, guard = opened(project, "import wsgiref\ndef f(x): return wsgiref.util.guess_scheme({}), x\n")
    importlib.import_module("wsgiref.util")
    assert guard.check() == []
    module.f(1)
    guard.note_call()
    assert guard.check() == []


@pytest.mark.parametrize("text", ["from .heavy import Heavy", "Heavy = import_module('pack.heavy').Heavy"])
def test_what_a_later_call_loads_by_getattr_is_no_change(project, text):
    """And none in an executor's process where another data set's call has loaded it."""
    lazy = "from importlib import *\ndef __getattr__(name):\n    if name != 'Heavy': raise AttributeError\n"
    lazy += f"    {text}\n    return globals().setdefault(name, Heavy)\n"
    project.write(pack____init__=lazy, pack__heavy="class Heavy: size = 3\n")
    module, guard = opened(project, "import pack\ndef f(x): return pack.Heavy.size if x else x\n")
    before = recipe(module.f)
    assert sent(guard).check() == []
    guard.note_item(lambda: module.f(0), module.f(0))
    guard.note_call()
    module.f(1)
    assert fill(guard) == fill(guard) == sent(RecipeGuard(before)).check() == []
    assert recipe(module.f) == before, "it counts as before"
    module.pack.Heavy.size = 4
    assert guard.check() == ["pack.heavy.Heavy.size"], "the job set it"


def test_what_the_job_sets_that_a_module_gave_is_named(project):
    project.write(cfg="import os\ndef __getattr__(name): return os.getenv(name, 3)\n")
    module, guard = opened(project, "import cfg\ndef f(x): return cfg.SIZE * x\n")
    module.f(1)
    guard.note_call()
    module.cfg.SIZE = 5
    assert "cfg.SIZE" in guard.check()


def test_a_default_dtype_set_by_the_job_is_named(project):
    _, guard = opened(project, PREP)
    torch.set_default_dtype(torch.float64)
    try:
        assert fill(guard) == ["torch_default_dtype"]
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_look_in_the_middle_of_a_change_breaks_no_call(project, monkeypatch):
    """Another thread of the job's may grow a dict that counts: then nothing passes for the function's own."""
    module, guard = opened(project, PREP)

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
    project.write(helper="K = 1\n")
    module, guard = opened(project, "def f(x):\n    if x > 5: import helper\n    return x\n")
    helper = project.put("helper.py", "def (")
    module.f(1)
    guard.note_call()
    assert guard.check() == [str(helper)]


HOLDS = """
class Holder:
    k = met = 0
    def load(self, k): self.k = k
    def encode(self, x):
        self.met += 1
        return x + self.k
HOLDER = Holder()
def f(x): return HOLDER.encode(x)
"""


def test_an_object_unknown_to_a_worker_is_a_change(project):
    """What an executor's initializer or the job alone has set, by a method: nothing tells who called it."""
    module, guard = opened(project, HOLDS)
    there, _ = sent(guard), module.HOLDER.load(5)
    assert there.check() == ["prep.HOLDER.k"]
    again = RecipeGuard(recipe(module.f))
    assert sent(again).check() == [], "loaded before this one was opened"
    module.f(1)
    assert sent(again).check() == [], "it was so before the call"


def test_code_that_another_process_imports_edited_is_a_change(project):
    project.write(prep=PREP)
    made = recipe(project.load().f)
    project.write(prep=PREP.replace("return x, SIZE", "return SIZE, x"))
    again = recipe(project.load().f)
    assert RecipeGuard(dataclasses.replace(made, preprocess=again.preprocess)).check() == ["prep.f"]


def originals_of(items: list[Any]) -> Originals:
    stamps = ItemHasher(stat_cache=None).digest_many(items)
    originals = Originals(items, Distinct(stamps.digests), stamps)
    originals.end_opening()
    return originals


def test_an_item_that_was_put_back_stays_altered():
    """One thread may be at a sample of the altered item while another finds it as it was."""
    items = [{"v": 1}, {"v": 2}]
    originals = originals_of(items)
    items[1]["v"] = 3
    assert originals.compared(1) == {"v": 3}
    items[1]["v"] = 2
    assert originals.compared(1) == {"v": 2}
    originals.compare(np.arange(2))
    assert [originals.changed(0), originals.changed(1)] == [[], ["item 1"]]


def test_text_that_comes_to_name_a_file_is_no_longer_what_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    originals = originals_of(["words.txt", "words", "a/b", "x" * 5000])
    assert [originals.changed(index) for index in range(4)] == [[], [], [], []]
    for name in ("words.txt", "words"):
        Path(name).write_text("1")
    changed = [originals.changed(index) for index in range(4)]
    assert changed == [["words.txt"], [], [], []], "a word is text, whatever it names"
