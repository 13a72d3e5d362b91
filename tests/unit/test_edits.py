"""One edit of a small project each: it counts, and what differs from process to process does not."""
# ruff: noqa: E501

from pathlib import Path
from typing import Any

import numpy
import numpy.random
import pytest

from prepcache.keys.recipes import recipe
from support.programs import python
from support.projects import Project, project_fixture  # noqa: F401

LIBRARY = '''
import functools, os, pickle, random, threading, uuid
import numpy as np

class Kept:
    """Gives its attributes away as they are."""
    def __init__(self, n): self.n = n

class Given(Kept):
    def __getstate__(self): return dict(vars(self))

class Unseeded(Given):
    """As monai's Compose."""
    def __init__(self, n):
        super().__init__(n)
        self.R = np.random.RandomState()
        self.rng = np.random.default_rng()
    def __call__(self, x): return self.R.random_sample() < self.n

class Seeded(Given):
    def __init__(self, n):
        super().__init__(0)
        self.R, self.rng, self.py = np.random.RandomState(n), np.random.default_rng(5), random.Random(6)

class Global(Given):
    """As scipy's distributions."""
    def __init__(self, n):
        super().__init__(n)
        self.R, self.py = np.random.random_sample.__self__, random._inst
        np.random.random_sample(), random.random()

class Locked(Kept):
    """As rich's Console."""
    def __init__(self, n):
        super().__init__(n)
        self.lock, self.again = threading.Lock(), threading.RLock()

def checked(function):
    """As beartype: made from text, in the namespace of the function, with parameters named by addresses."""
    limit = (int, str)
    name = f"__limit_{id(limit)}"
    text = f"def {function.__name__}(x, *, __function=function, {name}=limit):\\n"
    text += f"    return __function(x) if isinstance(x, {name}) else (lambda: {name})()\\n"
    space = {"function": function, "limit": limit}
    exec(compile(text, f"<checked {function.__name__} at {id(limit)}>", "exec"), function.__globals__, space)
    return functools.update_wrapper(space[function.__name__], function)

def by_default(fn):
    def inner(x, _fn=fn): return _fn(x)
    return inner
def by_keyword(fn):
    def inner(x, *, _fn=functools.partial(fn)): return _fn(x)
    return inner
def by_attribute(fn):
    def inner(x): return inner.fn(x)
    inner.fn = fn
    inner.calls = 0
    return inner

def restored(name): ...

class by_name:
    def __init__(self, function):
        self._partial = functools.partial(function)
        self.name = function.__name__
    def __call__(self, x):
        return self._partial(x)
    def __reduce__(self):
        return restored, (self.name,)
'''
ALBUMENTATIONS = '''
import random
import numpy as np

class BasicTransform:
    """As albumentations: every transform holds generators, seeded or not."""
    def __init__(self, p=0.5):
        self.p = p
        names = {"image", "mask", "boxes", "volume", "points"}  # a set: another order in each process
        self._key2func = {name: self.apply for name in names}
        self.seed = None
        self.random_generator = np.random.default_rng(self.seed)
        self.py_random = random.Random(self.seed)
    def apply(self, image):
        return image

    def set_random_state(self, random_generator, py_random):
        self.random_generator, self.py_random = random_generator, py_random
        return self

class Resize(BasicTransform):
    def __init__(self, height, p=1):
        super().__init__(p)
        self.height = height

class Compose:
    def __init__(self, transforms, seed=None):
        self.transforms, self.seed = transforms, seed
        self.random_generator = np.random.default_rng(seed)
        self.py_random = random.Random(seed)
'''
OMEGACONF = """
class OmegaConf:
    @staticmethod
    def to_container(config, *, resolve, throw_on_missing): return config._content

class Container: pass

class DictConfig(Container):
    '''As OmegaConf: values in nodes, with parents, flags and caches beside them.'''
    def __init__(self, content):
        self._content, self._parent, self._flags_cache = content, self, (n for n in ())
"""

HEAD = "import albumentations as A, argparse, ctypes, functools, library as L, omegaconf, pydantic, types, typing\n"
HELD = HEAD + "HELD = $\ndef f(x): return HELD"
OVER = (
    "class Over(pydantic.BaseModel):\n    crop: int = 1\n    size: int = 224\nOVER = $\n"
    "def f(x): return OVER.model_dump(exclude_unset=True)"
)
STRUCT = (
    "class H(ctypes.LittleEndianStructure):\n    _fields_ = [('a', $), ('b', ctypes.c_int8)]\n"
    "def f(x): return H.from_buffer_copy(x).a"
)
PARSER = (
    "PARSER = argparse.ArgumentParser()\nPARSER.add_argument_group('how').add_argument('--size', default=$)\n"
    "def f(x): return PARSER.format_help(), x"
)
INNER = "class Inner(pydantic.BaseModel):\n    n: $ = 1\n"
HIDES = "class Base: __slots__ = ('k',)\nclass Own(Base):\n    $\n    def run(self, x): return vars(Base)['k'].__get__(self)\n"
HIDES += "own = Own()\nvars(Base)['k'].__set__(own, 5)\nf = own.run"
CALLED = "class Called:\n    def __init__(self, n): self.n = n\n    def __call__(self, owner, x): return x * self.n\n"
HOLDS = (
    "class Holds:\n    def __init__(self, n): self.n, self.trainer = n, (i for i in ())\n"
    "    def sized(self, x, by): return x * self.n * by\n"
)
NAMES = "\n".join(f"A{number} = 1" for number in range(299)) + "\nA299 = $\n"

EDITS = {
    "generators made from entropy": (HELD, "L.Unseeded(1)", "L.Unseeded(2)"),
    "generators made from a seed": (HELD, "L.Seeded(1)", "L.Seeded(2)"),
    "the global generators": (HELD, "L.Global(1)", "L.Global(2)"),
    "locks": (HELD, "L.Locked(1)", "L.Locked(2)"),
    "transforms": (HELD, "A.Compose([A.Resize(4)])", "A.Compose([A.Resize(5)])"),
    "the seed of transforms": (HELD, "A.Compose([A.Resize(1)], seed=1)", "A.Compose([A.Resize(1)], seed=2)"),
    "a generator that a transform of the job's own holds": (
        "class Noise(A.BasicTransform):\n    def __init__(self, seed):\n        super().__init__()\n"
        "        self.noise = L.random.Random(seed)\nHELD = Noise($)\ndef f(x): return HELD", "1", "2",
    ),
    "generators that a transform was given": (
        "def given(n): return A.np.random.default_rng(n), A.random.Random(n)\n"
        "HELD = A.Resize(1).set_random_state(*given($))\ndef f(x): return HELD", "1", "2",
    ),
    "a config library": (HELD, "omegaconf.DictConfig({'size': 1})", "omegaconf.DictConfig({'size': 2})"),
    "a parameter named by an address": ("@L.checked\ndef g(x): return $\ndef f(x): return g(x)", "1", "2"),
    "what a decorator keeps in a default": ("@L.by_default\ndef f(x): return $", "1", "2"),
    "what a decorator keeps in a keyword": ("@L.by_keyword\ndef f(x): return $", "1", "2"),
    "what a decorator keeps in an attribute": ("@L.by_attribute\ndef f(x): return $", "1", "2"),
    "what a decorator names": ("@L.by_name\ndef f(x): return $", "1", "2"),
    "code made from text that calls itself a file": (
        "space = {'__file__': '<made>'}\nexec(compile('def g(x): return $', '<made>', 'exec'), space)\n"
        "g = space['g']\ndef f(x): return g(x)", "1", "2",
    ),
    "code compiled under another name": (
        "exec(compile('def f(x): return $', 'rules.py', 'exec'))", "1", "2",
    ),
    "a hash": ("class C:\n    def __hash__(self): return $\ndef f(x): return C()", "1", "2"),
    "a validated function": (
        "@pydantic.validate_call\ndef g(x: $): return x\ndef f(x): return g(x)", "int", "float",
    ),
    "a model that an annotation names": (
        f"{INNER}@pydantic.validate_call\ndef g(x: Inner): return x.n\ndef f(x): return g({{'n': x}})", "int", "float",
    ),
    "a model that an annotation names by text": (
        f"{INNER}@pydantic.validate_call\ndef g(x: 'Inner'): return x.n\ndef f(x): return g({{'n': x}})", "int", "float",
    ),
    "the config of a validated call": (
        "@pydantic.validate_call(config={'str_to_$': True})\ndef g(x: str): return x\ndef f(x): return g(x)", "lower", "upper",
    ),
    "what a generic model is given": (
        "T = typing.TypeVar('T')\nclass Holder(pydantic.BaseModel, typing.Generic[T]):\n    value: T\n"
        "class Given(pydantic.BaseModel):\n    number: typing.ClassVar[int] = $\nkind = Holder[Given]\ndef f(x): return kind", "1", "2",
    ),
    "which fields of a model were given": (OVER, "Over(crop=4)", "Over(crop=4, size=224)"),
    "the size of a field of ctypes": (STRUCT, "ctypes.c_int8 * 4", "ctypes.c_int8 * 5"),
    "the type of a field of ctypes": (STRUCT, "ctypes.c_int8", "ctypes.c_uint8"),
    "the byte order of ctypes": (
        "class H(ctypes.$EndianStructure):\n    _fields_ = [('a', ctypes.c_int16)]\ndef f(x): return H", "Little", "Big",
    ),
    "a parser of arguments, which stands in a list of its groups": (PARSER, "1", "2"),
    "the last of very many names": (f"{NAMES}def f(x): return [{', '.join(f'A{n}' for n in range(300))}]", "1", "2"),
    "a slot that a slot of a subclass hides": (HIDES.replace("$", "__slots__ = ('k',)").replace("5", "$"), "1", "2"),
    "a slot that a property of a subclass hides": (
        HIDES.replace("$", "k = property(lambda self: 0)").replace("5", "$"), "1", "2",
    ),
    "a method made of an object": (CALLED + "f = types.MethodType(Called($), 'owner')", "1", "2"),
    "a method made of a partial": ("f = types.MethodType(functools.partial(pow, $), 'owner')", "1", "2"),
    "what a static method calls": (
        "class Static(staticmethod):\n    def read(self, x): return self.__func__(x)\nf = Static($).read", "pow", "max",
    ),
    "the call of a partial": ("f = functools.partial(pow, $).__call__", "1", "2"),
    "a partial of a method": (HOLDS + "f = functools.partial(Holds($).sized, 2)", "1", "2"),
    "a partial of a partial of a method": (
        HOLDS + "f = functools.partial(functools.partial(Holds($).sized, by=2))", "1", "2",
    ),
    "a method of a partial of a method": (
        HOLDS + "f = types.MethodType(functools.partial(Holds($).sized, by=2), 3)", "1", "2",
    ),
    "what a subclass of a semaphore keeps": (
        "class Slots(L.threading.Semaphore): pass\nSLOTS = Slots(2)\nSLOTS.size = $\ndef f(x):\n    with SLOTS: return x * SLOTS.size",
        "1", "2",
    ),
    "a function that a query names": ("def keep(a): return a > $\ndef f(x): return x.query('@keep(a)')", "5", "6"),
}  # fmt: skip


@pytest.fixture
def libraries(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    texts = {"library": LIBRARY, "albumentations": ALBUMENTATIONS, "omegaconf": OMEGACONF}
    for name, text in texts.items():
        project.install(monkeypatch, name, text)
    return project.folder


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.usefixtures("libraries")
def test_an_edit_counts_and_addresses_do_not(project, name):
    text, one, other = EDITS[name]
    kept: list[Any] = []  # alive: what is made next lies elsewhere

    def digest(part: str) -> str:
        project.write(prep=(text if text.startswith(HEAD) else HEAD + text).replace("$", part))
        kept.append(project.load())
        return recipe(kept[-1].f, code="function").digest

    before = digest(one)
    numpy.random.seed(5)
    assert digest(one) == before
    assert digest(other) != before


def test_a_class_of_attrs_counts_alike_in_every_process(project):
    """Its hash holds a number of the process."""
    project.write(prep="import attr\n@attr.frozen\nclass C: n: int = 1\ndef f(x): return C()")
    ask = "import prep; from prepcache.keys.recipes import recipe; print(recipe(prep.f, code='function').digest)"
    runs = [python("-c", ask, cwd=project.folder, env={"PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert runs[0].stdout == runs[1].stdout
