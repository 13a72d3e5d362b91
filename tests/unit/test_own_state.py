"""What calls of a function change is told from what a job sets, and counts as it was before them."""

import gc
from types import ModuleType
from typing import Any

import pytest

from prepcache.errors import UnkeyableError
from prepcache.fill.call import Job
from prepcache.fill.recipe_guard import RecipeGuard
from prepcache.keys.recipes import Recipe, recipe
from support.projects import Project, fill, project_fixture  # noqa: F401


def begun(module: ModuleType, item: Any, **config: Any) -> tuple[Recipe, RecipeGuard]:
    """A data set whose fill called the function for one item, and goes on."""
    made = recipe(module.f, config=config)
    job = Job(module.f, config, guard=RecipeGuard(made))
    job.call(0, item)
    job.guard.note_call()
    return made, job.guard


def called(module: ModuleType, item: Any, **config: Any) -> Recipe:
    """The recipe of a data set whose fill called the function for one item."""
    made, guard = begun(module, item, **config)
    fill(guard)
    return made


HOLDERS = """
class Counter:
    n = 0
    def up(self):
        self.n += 1
class Other(Counter):
    n = 1
class P:
    def __init__(self):
        self.parts = [Counter(), 1]
    def __call__(self, x):
        self.parts[0].up()
        return x * self.parts[1]
p = P()
def f(x, table):
    table[0].up()
    STATE["counter"].up()
    return x * table[1] * STATE["scale"] * SHARED["scale"]
STATE = {"counter": Counter(), "scale": 1}
SHARED = {"counter": STATE["counter"], "scale": 1, "own": Counter()}
"""


@pytest.mark.parametrize(
    ("name", "path", "key", "value"),
    [
        ("preprocess.parts", "p.parts", 1, 5),
        ("prep.STATE", "STATE", "scale", 5),
        ("prep.SHARED", "SHARED", "scale", 5),
        ("config.table", "table", 1, 5),
        ("prep.STATE", "STATE", "counter", "other class"),
        ("prep.STATE", "STATE", "more", 1),
    ],
)
def test_a_change_beside_a_counter_in_a_container_is_named(project, name, path, key, value):
    project.write(prep=HOLDERS)
    module = project.load()
    if path == "p.parts":
        made = recipe(module.p)
    else:
        made = recipe(module.f, config={"table": {0: module.Counter(), 1: 1}})
    guard = RecipeGuard(made)
    function: Any = made.preprocess
    function(1, **made.config)
    guard.note_call()
    function(2, **made.config)
    assert guard.check() == []
    holders = {"p.parts": module.p.parts, "STATE": module.STATE, "SHARED": module.SHARED, **made.config}
    holders[path][key] = module.Other() if value == "other class" else value
    assert guard.check() == [name]


SETTINGS = """
import types
ARGS = types.SimpleNamespace(size=1)
class P:
    n = 0
    def __call__(self, x):
        self.n += 1
        try:
            return x * ARGS.scale
        except AttributeError:
            return x
f = P()
"""


def test_what_a_namespace_is_given_beside_a_counter_is_named(project):
    project.write(prep=SETTINGS)
    module = project.load()
    _, guard = begun(module, 1)
    module.f(2)
    assert guard.check() == []
    module.ARGS.scale = 3
    assert guard.check() == ["prep.ARGS.scale"]


COUNTS = """
class P:
    n, size = 0, 2
    def __call__(self, x):
        self.n += 1
        return x
f = P()
"""


def test_what_a_thread_sets_while_items_are_made_again_counts(project):
    project.write(prep=COUNTS)
    module = project.load()
    made = recipe(module.f)
    guard = RecipeGuard(made)
    guard.note_item(lambda: setattr(module.f, "size", 3) or module.f(1), module.f(1))
    guard.note_call()
    fill(guard)
    assert recipe(module.f).digest != made.digest


TABLE = """
class Table:
    def __init__(self):
        self.known = {}
    def __call__(self, x):
        return self.known.setdefault(x, x * 10)
f = Table()
"""


def test_what_a_job_sets_in_what_calls_fill_counts(project):
    """The entry of an item that is not among those that are made again."""
    project.write(prep=TABLE)
    module = project.load()
    made = called(module, 1)
    assert recipe(module.f).digest == made.digest
    module.f.known[6] = 777
    assert recipe(module.f).digest != made.digest


KEEPS = """
class Lines:
    it = None
    def __call__(self, x):
        self.it = self.it or opened()
        return x
def opened():
    return (n for n in ())
f = Lines()
"""


def test_an_iterator_at_the_address_of_another_is_another(project):
    project.write(prep=KEEPS)
    module = project.load()
    first = called(module, 1)
    assert recipe(module.f).digest == first.digest, "the iterator that the calls left"
    address, others = id(module.f.it), []
    module.f.it = None
    gc.collect()
    while len(others) < 1000 and id(module.f.it) != address:
        others.append(module.f.it)
        module.f.it = module.opened()
    with pytest.raises(UnkeyableError, match=r"preprocess\.it"):
        recipe(module.f)


TWO = """
class Two:
    seen = 0
    def __call__(self, x, matters=False):
        self.seen += 1
        return x + self.seen if matters else x
f = Two()
"""


def test_what_calls_change_is_told_of_their_own_data_set(project):
    """Two data sets of one function in turn; for one of them it matters what the calls changed."""
    project.write(prep=TWO)
    module = project.load()
    made, guard = begun(module, 1, matters=True)
    begun(module, 1)
    guard.note_call()
    fill(guard)
    assert recipe(module.f, config={"matters": True}).digest != made.digest


LEFT = """
import zlib
Z, D = None, {"scale": 1}
def f(x):
    global Z
    Z = Z or zlib.compressobj()
    D.setdefault("left", Z)
    return x * D["scale"]
"""


def test_what_calls_left_without_bytes_needs_no_key(project):
    """It takes no weak reference, as a connection of sqlite3. What stands beside it counts."""
    project.write(prep=LEFT)
    module = project.load()
    made = called(module, 1)
    assert recipe(module.f).digest == recipe(module.f).digest == made.digest
    module.D["scale"] = 2
    with pytest.raises(UnkeyableError, match="no stable bytes"):
        recipe(module.f)
    module.D["scale"] = 1
    assert recipe(module.f).digest == made.digest
