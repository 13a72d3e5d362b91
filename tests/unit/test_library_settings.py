"""Settings that a library keeps in objects of its own classes count by what they hold of plain data."""

import importlib
import math
import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy
import numpy.random
import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

LIBRARY = """
import collections, enum
import random, re, secrets, textwrap, threading
from multiprocessing import get_start_method
def made(text): return text
class Log:
    def __init__(self): self.lock = threading.Lock()
    def write(self, text): return text
log = Log()
write = log.write
log_write, draw, search, wrap = log.write, random.random, re.compile("a").search, textwrap.dedent
class Params(dict):
    def __getitem__(self, name): raise AssertionError("its own code runs")
    def __iter__(self): raise AssertionError("its own code runs")
    keys = items = values = __len__ = __iter__
class Words(list): pass
class Names(set): pass
class Registry(dict): pass
class Cap(enum.Enum): BUTT, ROUND = range(2)
params = Params({"dpi": 100, "sizes": [1, 2], "cap": Cap.BUTT, "made": object(), "nested": {"on": True}})
words, names, stops = Words(["a"]), Names("ab"), {"the", "a"}
ordered = collections.OrderedDict(dpi=100)
registry = Registry({"a": print})
met, made = collections.Counter(), collections.defaultdict(int)
"""
READS = {
    "a dict": ("params", lambda lib: dict.__setitem__(lib.params, "dpi", 50)),
    "a list in it": ("params", lambda lib: dict.__getitem__(lib.params, "sizes").append(3)),
    "a member of an enum": ("params", lambda lib: dict.__setitem__(lib.params, "cap", lib.Cap.ROUND)),
    "a dict in it": ("params", lambda lib: dict.__getitem__(lib.params, "nested").update(on=False)),
    "a method of it": ("params.get", lambda lib: dict.__setitem__(lib.params, "dpi", 50)),
    "an ordered dict": ("ordered", lambda lib: lib.ordered.update(dpi=50)),
    "a list": ("words", lambda lib: lib.words.append("b")),
    "a set of its own class": ("names", lambda lib: lib.names.add("c")),
    "a set": ("stops", lambda lib: lib.stops.add("an")),
    "a method of another library's object": ("made", lambda lib: setattr(lib, "made", re.compile("b").match)),
    "another method of such an object": (
        "search",
        lambda lib: setattr(lib, "search", re.compile("b").search),
    ),
    "a generator's method": ("random.random", lambda lib: setattr(random, "random", random.Random(5).random)),
    "a method of an own object": ("log_write", lambda lib: setattr(lib, "log_write", lib.Log().write)),
    "a function of another library": ("made", lambda lib: setattr(lib, "made", textwrap.dedent)),
    "another function of such a library": ("wrap", lambda lib: setattr(lib, "wrap", textwrap.indent)),
}
OTHERS = {
    "code that is registered": ("registry", lambda lib: lib.registry.update(b=len)),
    "what was counted": ("met", lambda lib: lib.met.update("a")),
    "what readers made": ("made", lambda lib: lib.made["a"]),
    "a method of an object beside it": ("secrets.choice", id),
    "a method that another library has": ("get_start_method", lambda lib: lib.get_start_method()),
    "a generator's state": ("draw", lambda lib: lib.draw()),
    "what is no data": ("params", lambda lib: dict.__setitem__(lib.params, "made", object())),
}


@pytest.fixture
def library(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.install(monkeypatch, "library", LIBRARY)


def change_of(project: Project, read: str, change: Callable[[Any], object]) -> bool:
    """Whether a change of the library counts; each library, as it is loaded, must give the same key."""
    project.write(prep=f"import library\ndef f(x): return library.{read}\n")
    before = recipe(project.load().f, code="function").digest
    module = project.load()
    assert recipe(module.f, code="function").digest == before
    change(module.library)
    return recipe(module.f, code="function").digest != before


@pytest.mark.parametrize("name", READS)
@pytest.mark.usefixtures("library")
def test_a_setting_that_the_code_names_counts(project, name, monkeypatch):
    monkeypatch.setattr(random, "random", random.random)  # put back
    assert change_of(project, *READS[name])


class Drawing:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self) -> int:
        return self.seed


DRAWS: dict[str, tuple[Any, str, Callable[[int], Any]]] = {
    "a method of a generator": (random, "random", lambda seed: random.Random(seed).random),
    "an object": (random, "random", Drawing),
    "a method of one of numpy's": (
        numpy.random, "random_sample", lambda seed: numpy.random.RandomState(seed).random_sample,
    ),
}  # fmt: skip


@pytest.mark.parametrize("put", DRAWS)
def test_what_a_job_puts_in_the_place_of_a_draw_counts(put, monkeypatch):
    """By its state: only the draws of the global generators are watched."""

    def f(x: Any) -> Any:
        return random.random(), numpy.random.random_sample(), x

    home, name, make = DRAWS[put]
    digests = []
    for seed in (1, 1, 2):
        monkeypatch.setattr(home, name, make(seed))
        digests.append(recipe(f, code="function").digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.usefixtures("library")
def test_what_is_no_setting_or_not_read_does_not_count(project, name):
    assert not change_of(project, *OTHERS[name])


@pytest.mark.usefixtures("library")
def test_a_function_in_c_counts_that_a_job_puts_there(project):
    project.write(prep="import library\ndef f(x):\n    import library\n    return library.wrap(x)\n")
    module = project.load()
    before = recipe(module.f, code="function").digest
    module.library.wrap = math.sqrt
    assert recipe(module.f, code="function").digest != before


@pytest.mark.usefixtures("library")
def test_a_method_that_a_library_holds_counts_by_name(project):
    """As jieba's `cut`, whose object loads its words at the first call. The project's own counts whole."""
    project.write(
        prep="from library import write\nclass C:\n    K = 1\n    @classmethod\n"
        "    def g(cls, x): return cls.K\ng = C.g\ndef f(x): return write(x), g(x)\n"
    )
    module = project.load()
    before = recipe(module.f, code="function").digest
    module.write.__self__.words = [1]
    assert recipe(module.f, code="function").digest == before
    module.C.K = 2
    assert recipe(module.f, code="function").digest != before


def test_numpys_generator_counts_alike_before_it_is_loaded(project, monkeypatch):
    """Whoever first asks for `numpy.random` loads it; what a job puts there counts."""
    project.write(prep="import numpy as np\ndef f(x): return np.random.rand() * x\n")
    function = project.load().f
    loaded = recipe(function).digest
    with monkeypatch.context() as patch:
        patch.delattr(numpy, "random")
        assert recipe(function).digest == loaded
    for other in (numpy.random.normal, numpy.random.RandomState(1).rand):
        monkeypatch.setattr(numpy.random, "rand", other)
        assert recipe(function).digest != loaded


SETTINGS = ("-1.5", "('a', 1)", "['a']", "{'a': [1]}", "{'a'}", "1\nother = lambda held: (held := 2)")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_counts_alike_before_its_library_is_loaded(project, monkeypatch, setting):
    project.install(monkeypatch, "library", f"held = {setting}\n")
    project.write(prep="def f(x):\n    import library\n    return library.held\n")
    function = project.load().f
    before = recipe(function, code="function").digest
    library = importlib.import_module("library")
    assert recipe(function, code="function").digest == before
    library.held = [library.held]  # type: ignore[attr-defined]
    assert recipe(function, code="function").digest != before


def test_an_object_in_place_of_a_librarys_module_is_its_own(project, monkeypatch):
    """As `torch.backends.cudnn`: of classes of the project the code would count."""
    made = "import sys, types\nclass Props(types.ModuleType):\n    def __getattr__(self, name): return name\n"
    put = "Props.__module__ = 'library.p'\nprops = sys.modules['library.p'] = Props('library.p')\n"
    project.install(monkeypatch, "library", made + put)
    project.write(prep="from library import props\ndef f(x): return props.size\n")
    assert [*recipe(project.load().f).parts["code"]["definitions"]] == ["prep.f"]
