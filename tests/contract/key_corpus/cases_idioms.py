"""Idioms of real projects: registries, plugins, lookups by name, descriptors, and state in unlikely places."""

from .case import JOB, Case, by_job, must_change, must_stay, nothing, one, swap, write


def variable(name: str, source: str) -> Case:
    """A case in which the environment variable IDIOM is read."""
    return must_change(
        f"environment variable {name}",
        {"prep.py": f"import os\n{source}"},
        nothing,
        environ={"IDIOM": ("1", "2")},
    )


def keyed(name: str, source: str, job: str = JOB) -> Case:
    """A case of a value that must have one key in every process."""
    return must_stay(f"one key for {name}", {"prep.py": source}, nothing, job=job)


HELPER = {"helper.py": "K = 1\n"}
LIB = {
    "site/idiomlib/__init__.py": "import types\nDEFAULTS = {'k': 1}\nCFG = types.SimpleNamespace(k=1)\n",
    "site/idiomlib-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: idiomlib\nVersion: 1\n",
    "site/idiomlib-1.dist-info/RECORD": "idiomlib/__init__.py,sha256=one,1\n",
}


def library(name: str, use: str, job: str) -> Case:
    """A case in which the entry script sets something in an installed library to 5, then to 6."""
    path = "import pathlib, sys\nsys.path.append(str(pathlib.Path(__file__).parent / 'site'))\n"
    source = f"import idiomlib\n\ndef f(x):\n    return {use}\n"
    return must_change(
        name, {"prep.py": source, **LIB}, swap("job.py", "5", "6"), job=path + JOB + "import idiomlib\n" + job
    )


LOOKUPS = [
    by_job("submodule looked up by name", "import models\n\ndef f(x, n='resnet'):\n    return getattr(models, n).build(x)\n",
           "import models.resnet\nmodels.resnet.WIDTH = 5\n",
           **{"models/__init__.py": "from . import resnet\n", "models/resnet.py": "WIDTH = 1\n\ndef build(x):\n    return WIDTH\n"}),
    by_job("module looked up in sys.modules", "import sys\n\ndef f(x):\n    return sys.modules['helper'].K\n", "import helper\nhelper.K = 5\n", **HELPER),
    by_job("global looked up in a module's __dict__", "import helper\n\ndef f(x, n='K'):\n    return helper.__dict__[n]\n",
           "import helper\nhelper.K = 5\n", **HELPER),
    by_job("__dict__ of an args namespace", "args = None\n\ndef f(x):\n    return args.__dict__['k']\n",
           "import argparse, prep\nprep.args = argparse.Namespace(k=5)\n"),
    by_job("method of an args namespace", "args = None\n\ndef f(x):\n    return args._get_kwargs()\n",
           "import argparse, prep\nprep.args = argparse.Namespace(k=5)\n"),
    one("class found by __subclasses__", "class B:\n    pass\n\nclass C(B):\n    def g(self, x):\n        return 1\n\n"
        "def f(x):\n    return B.__subclasses__()[0]().g(x)\n", "return 1", "return 2"),
    must_change("plugin found by __subclasses__", {"prep.py": "class B:\n    pass\n\ndef f(x):\n    return B.__subclasses__()[0]().g(x)\n",
                "plugin.py": "import prep\n\nclass C(prep.B):\n    def g(self, x):\n        return 1\n"},
                swap("plugin.py", "return 1", "return 2"), job=JOB + "import plugin\n"),
    one("class named by an annotation that is read", "import typing\n\nclass Cfg:\n    K = 1\n\ndef g(x: typing.Optional[Cfg]):\n    return 0\n\n"
        "def f(x):\n    return typing.get_type_hints(g)\n", "K = 1", "K = 2"),
]  # fmt: skip

CLASSES = [
    one("default of a class by make_dataclass", "import dataclasses\nC = dataclasses.make_dataclass('C', [('k', int, dataclasses.field(default=1))])\n\n"
        "def f(x):\n    return C().k\n", "default=1", "default=2"),
    one("annotation of a class by make_dataclass", "import dataclasses\nC = dataclasses.make_dataclass('C', [('k', int)])\n\n"
        "def f(x):\n    return [g.type(x) for g in dataclasses.fields(C)]\n", "int", "float"),
    one("annotation of a class by type()", "C = type('C', (), {'__annotations__': {'k': int}})\n\ndef f(x):\n    return C.__annotations__['k'](x)\n", "int", "float"),
    one("metadata of a dataclass's field", "import dataclasses\nK = 1\n\n@dataclasses.dataclass\nclass C:\n"
        "    k: int = dataclasses.field(default=0, metadata={'scale': K})\n\ndef f(x):\n    return dataclasses.fields(C)[0].metadata['scale']\n", "K = 1", "K = 2"),
    one("table set on an enum", "import enum\n\nclass E(enum.Enum):\n    A = 1\n\nE.TABLE = {'a': 1}\n\ndef f(x):\n    return E.TABLE['a']\n", "'a': 1", "'a': 2"),
    one("functions of one name in an enum", "import enum\n\nclass E(enum.Enum):\n    A = ('a', lambda x: x * 1)\n    B = ('b', lambda x: x)\n\n"
        "def f(x):\n    return E.A.value[1](x)\n", "* 1", "* 2"),
    one("cached method of an enum", "import enum, functools\nK = 1\n\nclass E(enum.Enum):\n    A = 1\n    @functools.lru_cache\n    def g(self):\n        return K\n\n"
        "def f(x):\n    return E.A.g()\n", "K = 1", "K = 2"),
    one("cached_property of an enum", "import enum, functools\nK = 1\n\nclass E(enum.Enum):\n    A = 1\n    @functools.cached_property\n    def g(self):\n        return K\n\n"
        "def f(x):\n    return E.A.g\n", "K = 1", "K = 2"),
    one("state of a subclass of property", "class P(property):\n    pass\n\nclass C:\n    @P\n    def g(self):\n        return type(self).g.k\n\nC.g.k = 1\n\n"
        "def f(x):\n    return C().g\n", "k = 1", "k = 2"),
    one("state of a subclass of cached_property", "import functools\n\nclass P(functools.cached_property):\n    pass\n\nclass C:\n    @P\n    def g(self):\n"
        "        return type(self).g.k\n\nvars(C)['g'].k = 1\n\ndef f(x):\n    return C().g\n", "k = 1", "k = 2"),
    one("cached class method of an enum", "import enum, functools\nK = 1\n\nclass E(enum.Enum):\n    A = 1\n    @classmethod\n    @functools.cache\n    def g(cls):\n        return K\n\n"
        "def f(x):\n    return E.g()\n", "K = 1", "K = 2"),
    one("cached __str__ of an enum", "import enum, functools\n\nclass E(enum.StrEnum):\n    A = 'a'\n    @functools.cache\n    def __str__(self):\n        return 'b' * 1\n\n"
        "def f(x):\n    return str(E.A)\n", "* 1", "* 2"),
    one("boundary of a flag", "import enum\n\nclass E(enum.Flag, boundary=enum.KEEP):\n    A = 1\n\ndef f(x):\n    return E(8)\n", "enum.KEEP", "enum.CONFORM"),
    one("cached class method of a namedtuple", "import functools, typing\nK = 1\n\nclass P(typing.NamedTuple):\n    a: int\n    @classmethod\n    @functools.cache\n    def g(cls):\n        return K\n\n"
        "def f(x):\n    return P.g()\n", "K = 1", "K = 2"),
    one("name with underscores of a namedtuple", "import typing\n\nclass P(typing.NamedTuple):\n    a: int\n    __scale__ = 1\n\ndef f(x):\n    return P.__scale__\n", "__scale__ = 1", "__scale__ = 2"),
    one("cached __call__ of a namedtuple", "import functools, typing\nK = 1\n\nclass P(typing.NamedTuple):\n    a: int\n    @functools.lru_cache\n    def __call__(self):\n        return K\n\n"
        "def f(x):\n    return P(1)()\n", "K = 1", "K = 2"),
    one("defaults that were set on a namedtuple", "import collections\nP = collections.namedtuple('P', 'a')\nP.__new__.__defaults__ = (1,)\n\ndef f(x):\n    return P()\n", "(1,)", "(2,)"),
    one("type that a new type stands for", "import typing\nU = typing.NewType('U', int)\n\ndef f(x):\n    return U.__supertype__(x)\n", "int", "float"),
    one("bound of a type variable", "import typing\nT = typing.TypeVar('T', bound=int)\n\ndef f(x):\n    return T.__bound__(x)\n", "int", "float"),
    one("function in C of a namedtuple", "import math, typing\n\nclass P(typing.NamedTuple):\n    a: int\n    g = math.floor\n\ndef f(x):\n    return P.g(1.5)\n", "math.floor", "math.ceil"),
    *(
        one(f"class named by text in an annotation: {part}", "from typing import Annotated, Callable, Optional, Union, get_type_hints\n\nclass Inner:\n    K = 1\n\n"
            f"class C:\n    k: {part}\n\ndef f(x):\n    return get_type_hints(C)\n", "K = 1", "K = 2")
        for part in (
            "Optional['Inner']", "list['Inner']", "Union[int, 'Inner']", "Annotated['Inner', 3]", "tuple[int, list['Inner']]",
            "Callable[['Inner'], int]",
        )
    ),
    one("class named by text in an alias that an annotation names", "from __future__ import annotations\nfrom typing import Optional, get_type_hints\n\nclass Inner:\n    K = 1\n\n"
        "Alias = Optional['Inner']\n\ndef g(x: list[Alias]):\n    return 0\n\ndef f(x):\n    return get_type_hints(g)\n", "K = 1", "K = 2"),
    must_stay("a forward reference that the job has evaluated", {"prep.py": "from typing import Optional, get_type_hints\n\nclass Inner:\n    K = 1\n\n"
              "class C:\n    k: Optional['Inner'] = None\n\ndef f(x):\n    return get_type_hints(C)\n"},
              swap("job.py", "5", "prep.get_type_hints(prep.C)"), job=JOB + "import prep\n5\n"),
    one("function inside np.vectorize", "import numpy as np\nG = np.vectorize(lambda x: x * 1)\n\ndef f(x):\n    return G(x)\n", "* 1", "* 2"),
]  # fmt: skip

PUT = [
    *(
        by_job(f"{what} put in the place of a library's function", f"import {module}\n\ndef f(x):\n    return {module}.{name}(x)\n",
               f"import functools, json, math, {module}\n\nclass P:\n    k = 5\n    def g(self, x):\n        return self.k\n\n{module}.{name} = {value}\n")
        for what, module, name, value in (
            ("part of it", "json", "loads", "functools.partial(json.loads, parse_float=P.k)"),
            ("part of a function that it imports", "torch", "load", "functools.partial(torch.load, map_location=P.k)"),
            ("bound method", "json", "loads", "P().g"),
            ("cached function", "json", "loads", "functools.lru_cache(P().g)"),
            ("class", "json", "JSONDecoder", "P"),
            ("function in C of another", "json", "loads", "math.floor if P.k % 2 else math.ceil"),
        )
    ),
    by_job("part put in the place of a function that the function imports", "def f(x):\n    from json import loads\n    return loads(x)\n",
           "import functools, json\njson.loads = functools.partial(json.loads, parse_float=5)\n"),
    one("method in C of another class as a class attribute", "class P:\n    norm = str.lower\n\ndef f(x):\n    return P.norm(x)\n", "lower", "upper"),
    one("method of a tensor as a class attribute", "import torch\n\nclass P:\n    norm = torch.Tensor.sum\n\ndef f(x):\n    return P.norm(x)\n", "sum", "mean"),
    one("default of msgspec", "import msgspec\n\nclass A(msgspec.Struct):\n    n: int = 1\n\ndef f(x):\n    return A().n\n", "= 1", "= 2"),
    one("factory of msgspec", "import msgspec\n\nclass A(msgspec.Struct):\n    n: object = msgspec.field(default_factory=list)\n\ndef f(x):\n    return A().n\n", "list", "dict"),
    one("names in files of msgspec", "import msgspec\n\nclass A(msgspec.Struct, rename='camel'):\n    n_n: int\n\ndef f(x):\n    return msgspec.json.encode(A(x))\n", "camel", "kebab"),
    one("option of msgspec", "import msgspec\n\nclass A(msgspec.Struct, array_like=True):\n    n: int\n\ndef f(x):\n    return msgspec.json.encode(A(x))\n", "True", "False"),
    one("config of a pydantic dataclass", "from pydantic.dataclasses import dataclass\n\n@dataclass(config=dict(str_to_upper=True))\nclass A:\n    n: str\n\n"
        "def f(x):\n    return A(x).n\n", "upper", "lower"),
    one("config of a typed dict", "import typing_extensions as t\nimport pydantic\n\nclass D(t.TypedDict):\n    __pydantic_config__ = dict(str_to_upper=True)\n    n: str\n\n"
        "def f(x):\n    return pydantic.TypeAdapter(D).validate_python({'n': x})\n", "upper", "lower"),
    by_job("attribute of a cached function", "import functools\n\n@functools.lru_cache\ndef g(x):\n    return x * g.k\n\ndef f(x):\n    return g(x)\n", "import prep\nprep.g.k = 5\n"),
    by_job("attribute of a single dispatch", "import functools\n\n@functools.singledispatch\ndef g(x):\n    return x * g.k\n\ndef f(x):\n    return g(x)\n",
           "import prep\nprep.g.k = 5\n"),
    one("cache that tells types apart", "import functools\n\n@functools.lru_cache(typed=True)\ndef g(x):\n    return repr(x)\n\ndef f(x):\n    return g(x)\n", "True", "False"),
    one("content of an enum's member apart from its value", "import enum\n\nclass E(str, enum.Enum):\n    def __new__(cls, text, n):\n        made = str.__new__(cls, text)\n"
        "        made._value_ = n\n        return made\n    A = ('a', 1)\n\nM = E.A\n\ndef f(x, m=M):\n    return m.upper()\n", "'a'", "'b'"),
    by_job("class method in C of a class", "class D(dict):\n    k = 1\n    def __setitem__(self, key, value):\n        super().__setitem__(key, self.k)\n\nmake = D.fromkeys\n\n"
           "def f(x):\n    return make([x])\n", "import prep\nprep.D.k = 5\n"),
    by_job("descriptor that keeps its value under its own name", "class Scaled:\n    def __set_name__(self, owner, name):\n        self.name = name\n"
           "    def __get__(self, owner, kind=None):\n        return vars(owner)[self.name] * owner.scale\n    def __set__(self, owner, value):\n"
           "        vars(owner)[self.name] = value\n\nclass P:\n    size = Scaled()\n    def run(self, x):\n        return self.size\n\n"
           "p = P()\np.size = 3\nf = p.run\n", "import prep\nprep.p.scale = 5\n"),
    by_job("defaults beyond the arguments", "def f(x=1):\n    return x\n", "import prep\nprep.f.__defaults__ = (1, 5)\n"),
    must_stay("annotations that somebody has asked a class for", {"prep.py": "class P:\n    k = 1\n\ndef f(x):\n    return P.k\n"},
              swap("job.py", "5", "prep.P.__annotations__"), job=JOB + "import prep\n5\n"),
]  # fmt: skip

STATE = [
    by_job("slots of a subclass of dict", "class D(dict):\n    __slots__ = ('k',)\n\nd = D()\n\ndef f(x):\n    return d.k\n", "import prep\nprep.d.k = 5\n"),
    by_job("private slots of a subclass of list", "class D(list):\n    __slots__ = ('__k',)\n    def set(self, k):\n        self.__k = k\n\nd = D()\n\ndef f(x):\n"
           "    return d._D__k\n", "import prep\nprep.d.set(5)\n"),
    by_job("int keys of an attribute named as hooks are", "class H:\n    pass\n\nh = H()\n\ndef f(x):\n    return list(h.size_hooks)\n",
           "import prep\nprep.h.size_hooks = {5: 1, 9: 2}\n"),
    by_job("state of an object that reduces to its name", "class C:\n    def __reduce__(self):\n        return 'c'\n\nc = C()\n\ndef f(x):\n    return c.k\n",
           "import prep\nprep.c.k = 5\n"),
    by_job("attribute of a tensor", "import torch\nT = torch.zeros(1)\n\ndef f(x):\n    return T.tag\n", "import prep\nprep.T.tag = 5\n"),
    by_job("title of a structured array's field", "A = None\n\ndef f(x):\n    return A['t5']\n",
           "import numpy as np, prep\nprep.A = np.zeros(1, dtype=[(('t5', 'a'), 'i4')])\n"),
    library("dict that a library takes its defaults from", "idiomlib.DEFAULTS['k']", "idiomlib.DEFAULTS['k'] = 5\n"),
    library("namespace that a library takes its defaults from", "idiomlib.CFG.k", "idiomlib.CFG.k = 5\n"),
    library("object that the job put into a library", "idiomlib.mine.k", "class M:\n    pass\n\nidiomlib.mine = M()\nidiomlib.mine.k = 5\n"),
]  # fmt: skip

VARIABLES = [
    variable("by a global for os.environ", "E = os.environ\n\ndef f(x):\n    return E['IDIOM']\n"),
    variable("by a local name for os.environ", "def f(x):\n    e = os.environ\n    return e['IDIOM']\n"),
    variable("by a helper that is given the name", "def env(n, d=None):\n    return os.environ.get(n, d)\n\ndef f(x):\n    return env('IDIOM')\n"),
    variable("by getenv under another name", "from os import getenv as g\n\ndef f(x):\n    return g('IDIOM')\n"),
    variable("by a keyword", "def f(x):\n    return os.getenv(key='IDIOM')\n"),
    variable("by a loop over names", "NAMES = ('IDIOM', 'NO_SUCH')\n\ndef f(x):\n    return [os.environ.get(n) for n in ('IDIOM', 'NO_SUCH')]\n"),
]  # fmt: skip

CALM = [
    keyed("a dataclass whose field is not set yet", "import dataclasses\n\n@dataclasses.dataclass\nclass C:\n    a: int\n    b: int = dataclasses.field(init=False)\n\n"
          "c = C(1)\n\ndef f(x):\n    return c.a\n"),
    keyed("an int of thousands of digits, global and config", "K = 10**6000\nL = [K]\n\ndef f(x, **k):\n    return K, L\n",
          JOB + "config = {'k': 10**6000, 'l': [10**6000]}\n"),
    keyed("methods of the global generators", "import secrets\nfrom random import randint, random\nfrom numpy.random import rand\n\ndef f(x):\n    return random(), randint(1, 2), rand(), secrets.choice(x)\n"),
    keyed("typing's objects", "import typing\nT = typing.TypeVar('T')\nU = typing.Optional[list[int]]\n\ndef f(x):\n    return T, U\n"),
]  # fmt: skip

PLUGIN = {"plugin.py": "from inner import g\n", "inner.py": "def g(x):\n    return 1\n"}
LOADED = JOB + "import plugin\nitems = [0]\n"
PLACE = "import os, pathlib\nHERE = pathlib.Path(__file__).parent\n\n"


def loaded(name: str, source: str, file: str, old: str, new: str, **more: object) -> Case:
    """A case in which the function gets a module by a computed name that the job had loaded before."""
    return must_change(
        f"observed: {name}",
        {"prep.py": source, **PLUGIN},
        swap(file, old, new),
        job=LOADED,
        runs=True,
        **more,
    )


def listed(name: str, use: str, *edits: object, stays: bool = False) -> Case:
    """A case in which the function lists a folder."""
    make = must_stay if stays else must_change
    source = f"{PLACE}def f(x):\n    return {use}\n"
    return make(
        f"observed: {name}",
        {"prep.py": source, "d/a.txt": "one"},
        *edits,
        job=JOB + "items = [0]\n",
        runs=True,
    )  # type: ignore[arg-type]


IMPORTS = "import importlib\n\ndef f(x):\n    return importlib.import_module(str('plug') + 'in').g(x)\n"
FROM_IMPORTS = (
    "from importlib import import_module as load\n\ndef f(x):\n    return load(str('plug') + 'in').g(x)\n"
)
UNPICKLES = "import pickle\n\ndef f(x):\n    return pickle.loads(b'cplugin\\ng\\n.')(x)\n"
PATHLIKE = (
    "import os, pathlib\n\nclass P(os.PathLike):\n    def __init__(self, p, crop):\n        self.p, self.crop = p, crop\n"
    "    def __fspath__(self):\n        return self.p\n\nclass Q(type(pathlib.Path())):\n    pass\n\n"
)

OBSERVED = [
    loaded("module loaded before, edited", IMPORTS, "plugin.py", "import g", "import g  # edited"),
    loaded("module that a module loaded before imports", FROM_IMPORTS, "inner.py", "return 1", "return 2"),
    loaded("module found in sys.modules by a computed name, edited", "import sys\n\ndef f(x):\n    return sys.modules[str('plug') + 'in'].g(x)\n",
           "inner.py", "return 1", "return 2", is_refused=True),
    loaded("module that __import__ gives by a computed name, edited", "def f(x):\n    return __import__(str('plug') + 'in').g(x)\n",
           "inner.py", "return 1", "return 2", is_refused=True),
    loaded("module found by find_spec and a computed name, edited",
           "import importlib.util\n\ndef f(x):\n    return importlib.util.find_spec(str('plug') + 'in').origin\n",
           "plugin.py", "import g", "import g  # edited"),
    loaded("module that a pickle names", UNPICKLES, "inner.py", "return 1", "return 2"),
    must_change("observed: distribution by a computed name",
                {"prep.py": "import importlib\n\ndef f(x):\n    return importlib.import_module(str('idiom') + 'lib')\n", **LIB},
                swap("site/idiomlib-1.dist-info/METADATA", "Version: 1", "Version: 2"),
                job="import pathlib, sys\nsys.path.append(str(pathlib.Path(__file__).parent / 'site'))\n" + JOB + "items = [0]\n", runs=True),
    listed("file added to a folder that glob lists", "[p.name for p in (HERE / 'd').glob('*')]", write("d/b.txt", "")),
    listed("file added to a folder that os.listdir lists", "os.listdir(HERE / 'd')", write("d/b.txt", "")),
    listed("folder that came to be", "list(os.walk(HERE / 'e'))", write("e/a.txt", "")),
    listed("bytes of a file in a folder that is only listed", "os.listdir(HERE / 'd')", write("d/a.txt", "two"), stays=True),
    listed("file added to a folder that the function makes", "[os.mkdir(HERE / 'own'), os.listdir(HERE / 'own')]",
           write("own/a.txt", ""), stays=True),
    listed("file added beside a folder that is listed", "os.listdir(HERE / 'd')", write("b.txt", ""), stays=True),
    by_job("state of an object that is a path", f"{PATHLIKE}def f(x, p):\n    return p.crop\n", "import prep\nitems = [prep.P('no-file', 5)]\n"),
    by_job("attribute of a subclass of Path", f"{PATHLIKE}def f(x, p):\n    return p.crop\n",
           "import prep\np = prep.Q('no-file')\np.crop = 5\nconfig = {'p': p}\n"),
]  # fmt: skip

OTHERS = {
    "helper.py": "def g(x):\n    return 1\n",
    "third5.py": "def g(x):\n    return 3\n",
    "third6.py": "def g(x):\n    return 4\n",
}
REPLACED = [
    *(
        must_change(f"table that a lazy module computes, {how}",
                    {"prep.py": source, "tables.json": '{"a": 5}', "helper.py": "import json\nfrom pathlib import Path\nTABLES = json.loads((Path(__file__).parent / 'tables.json').read_text())\n"},
                    swap("tables.json", "5", "6"), job=JOB + "import helper\n")
        for how, source in {
            "read by getattr": "def f(x, table):\n    import helper\n    return getattr(helper, table)['a'] + x\n",
            "of a module that is handed on": "def helpers():\n    import helper\n    return helper\n\ndef f(x):\n    return helpers().TABLES['a'] + x\n",
        }.items()
    ),
    must_change("function replaced by one of its name in a lazy module",
                {"prep.py": "def f(x):\n    import helper, third5, third6\n    return helper.g(x)\n", **OTHERS},
                swap("job.py", "third5.g", "third6.g"), job=JOB + "import helper, third5, third6\nhelper.g = third5.g\n"),
    must_change("class replaced by one of its name in a lazy module",
                {"prep.py": "def f(x):\n    import helper, third5, third6\n    return helper.C.k\n", "helper.py": "class C:\n    k = 4\n",
                 "third5.py": "class C:\n    k = 5\n", "third6.py": "class C:\n    k = 6\n"},
                swap("job.py", "third5.C", "third6.C"), job=JOB + "import helper, third5, third6\nhelper.C = third5.C\n"),
    must_change("text in a lazy module that became one of a class that prints alike",
                {"prep.py": "def f(x):\n    import helper\n    return helper.NAME.lower()\n",
                 "helper.py": "NAME = 'a'\n\nclass Loud(str):\n    def lower(self):\n        return 'A'\n"},
                swap("job.py", "str('a')", "helper.Loud('a')"), job=JOB + "import helper\nhelper.NAME = str('a')\n"),
    must_change("constant set in a module that a helper reads which is not loaded",
                {"prep.py": "def f(x):\n    from helper import g\n    return g(x)\n", "settings.py": "S = 1\n",
                 "helper.py": "import settings\n\ndef g(x):\n    return x * settings.S\n"},
                swap("job.py", "5", "6"), job=JOB + "import settings\nsettings.S = 5\n"),
    must_change("object changed in a module that a helper takes it from which is not loaded",
                {"prep.py": "def f(x):\n    import helper\n    return helper.g(x)\n",
                 "conf.py": "class C:\n    pass\n\ncfg = C()\n",
                 "helper.py": "from conf import cfg\n\ndef g(x):\n    return x * cfg.size\n"},
                swap("job.py", "5", "6"), job=JOB + "import conf\nconf.cfg.size = 5\n"),
    must_change("setting of a library that the function imports",
                {"prep.py": "def f(x):\n    from PIL import ImageFile\n    return x * ImageFile.MAXBLOCK\n"},
                swap("job.py", "5", "6"), job=JOB + "import PIL.ImageFile\nPIL.ImageFile.MAXBLOCK = 5\n"),
    must_change("class registered with an abstract one",
                {"prep.py": "import abc\n\nclass A(abc.ABC):\n    pass\n\nclass B5:\n    pass\n\nclass B6:\n    pass\n\n"
                 "def f(x):\n    return isinstance(B5(), A), B6\n"},
                swap("job.py", "B5", "B6"), job=JOB + "import prep\nprep.A.register(prep.B5)\n"),
    must_change("default device of torch", {"prep.py": "import torch\n\ndef f(x):\n    return torch.zeros(1)\n"},
                swap("job.py", "meta", "cpu"), job=JOB + "import torch\ntorch.set_default_device('meta')\n"),
    must_change("declared type of a C function", {
                "prep.py": "import ctypes\nL = ctypes.CDLL('libm.so.6')\nL.cos.restype = ctypes.c_double\n\ndef f(x):\n    return L.cos(x)\n"},
                swap("prep.py", "c_double", "c_float"), is_refused=True),
    must_change("function under torch.compile", {"prep.py": "import torch\n\n@torch.compile\ndef f(x):\n    return x * 1\n"},
                swap("prep.py", "* 1", "* 2")),
    must_stay("one key for a C library", {"prep.py": "import ctypes\nL = ctypes.CDLL('libm.so.6')\n\ndef f(x):\n    return L.cos(x)\n"},
              nothing, job=JOB + "fn(0)\n", is_refused=True),
    keyed("a function under torch.compile", "import torch\n\n@torch.compile\ndef f(x):\n    return x\n"),
    keyed("a module under torch.compile", "import torch\nM = torch.compile(torch.nn.Dropout(0.5))\n\ndef f(x):\n    return M(x)\n"),
]  # fmt: skip

CASES: list[Case] = [*LOOKUPS, *CLASSES, *PUT, *STATE, *VARIABLES, *OBSERVED, *REPLACED, *CALM]
