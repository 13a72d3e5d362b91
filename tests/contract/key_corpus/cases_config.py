"""Config: every type that it may hold, and what tells two values of it apart; then the recipe's other arguments."""

from .case import Case, must_change, must_stay, nothing, swap, write

PREP = {"prep.py": "def f(x, **config):\n    return x\n"}
IMPORTS = """\
import collections, dataclasses, datetime, decimal, enum, functools, pathlib, re, types
import numpy as np, torch, prepcache
from prep import f as fn
here = pathlib.Path(__file__).parent
"""


def config(name: str, before: str, after: str, setup: str = "", stays: bool = False, **more: object) -> Case:
    """A case in which the value of one config key is another expression."""
    make = must_stay if stays else must_change
    edit = nothing if before == after else swap("job.py", f"'k': {before}}}", f"'k': {after}}}")
    return make(f"config: {name}", PREP, edit, job=f"{IMPORTS}{setup}\nconfig = {{'k': {before}}}\n", **more)


def definition(name: str, setup: str, old: str, new: str, value: str) -> Case:
    """A case in which config holds something that the entry script defines, and the definition is edited."""
    return must_change(
        f"config: {name}",
        PREP,
        swap("job.py", old, new),
        job=f"{IMPORTS}{setup}\nconfig = {{'k': {value}}}\n",
    )


POINT = "Point = collections.namedtuple('Point', 'x y')\nOther = collections.namedtuple('Other', 'x y')"
DATA = "@dataclasses.dataclass\nclass D:\n    a: int = 1\n    b: object = None\n"
MODEL = "import pydantic\n\nclass D(pydantic.BaseModel):\n    a: int = 1\n    b: str = ''\n"
ENUM = "class E(enum.Enum):\n    A = 1\n    B = 2\n\nclass F(enum.Enum):\n    A = 1\n"
OMEGA = (
    "class Omega(collections.abc.Mapping):\n    def __init__(self, d):\n        self._d = d\n    def __getitem__(self, k):\n"
    "        return self._d[k]\n    def __iter__(self):\n        return iter(self._d)\n    def __len__(self):\n        return len(self._d)\n"
)
KEYED = "class K:\n    def __init__(self, k):\n        self.k = k\n    def __prepcache_key__(self):\n        return self.k\n"
COMPOSE = "class Compose:\n    def __init__(self, ts):\n        self.ts = ts\n\nclass Resize:\n    def __init__(self, n):\n        self.n = n\n"

CASES: list[Case] = [
    config("bool for int", "1", "True"),
    config("float for int", "1", "1.0"),
    config("str for int", "1", "'1'"),
    config("0.0 and -0.0", "0.0", "-0.0"),
    config("last bit of a float", "0.3", "0.1 + 0.2"),
    config("int beyond 64 bits", "2**64", "2**64 + 1"),
    config("sign of an int beyond 64 bits", "2**70", "-2**70"),
    config("complex for float", "1.0", "1 + 0j"),
    config("composed and decomposed str", "'\\u00e9'", "'e\\u0301'"),
    config("empty str for None", "None", "''"),
    config("tuple for list", "[1]", "(1,)"),
    config("deep in nested containers", "[{'a': (1, [2])}]", "[{'a': (1, [3])}]"),
    config("set for frozenset", "{1}", "frozenset({1})"),
    config("element of a set", "{1, 2}", "{1, 3}"),
    config("OrderedDict for dict", "{'a': 1}", "collections.OrderedDict(a=1)"),
    config("order in an OrderedDict", "collections.OrderedDict(a=1, b=1)", "collections.OrderedDict(b=1, a=1)"),
    config("order in a partial's dict", "functools.partial(len, {'a': 1, 'b': 1})", "functools.partial(len, {'b': 1, 'a': 1})"),
    config("order in the dict of a bound method", "{'a': 1, 'b': 1}.get", "{'b': 1, 'a': 1}.get"),
    config("type of a dict's key", "{1: 2}", "{'1': 2}"),
    config("key set to None for no key", "{}", "{'a': None}"),
    config("datetime's time zone", "datetime.datetime(2026, 1, 1)", "datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)"),
    config("date for datetime", "datetime.date(2026, 1, 1)", "datetime.datetime(2026, 1, 1)"),
    config("timedelta", "datetime.timedelta(1)", "datetime.timedelta(2)"),
    config("enum's member", "E.A", "E.B", ENUM),
    config("enum's class", "E.A", "F.A", ENUM),
    config("enum's member for its value", "E.A", "1", ENUM),
    config("namedtuple for tuple", "Point(1, 2)", "(1, 2)", POINT),
    config("namedtuple's class", "Point(1, 2)", "Other(1, 2)", POINT),
    config("dataclass's field", "D(1)", "D(2)", DATA),
    config("dataclass in a dataclass", "D(1, D(2))", "D(1, D(3))", DATA),
    config("pydantic model's field", "D(b='x')", "D(b='y')", MODEL),
    config("value in a mapping like OmegaConf's", "Omega({'a': Omega({'b': 1})})", "Omega({'a': Omega({'b': 2})})", OMEGA),
    config("SimpleNamespace's value", "types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)"),
    config("numpy's dtype", "np.dtype('<i4')", "np.dtype('>i4')"),
    config("numpy's type for its dtype's name", "np.float32", "'float32'"),
    config("numpy scalar's dtype", "np.float32(1)", "np.float64(1)"),
    config("element of an array", "np.arange(3)", "np.array([0, 1, 3])"),
    config("torch's dtype", "torch.float16", "torch.bfloat16"),
    config("torch's device", "torch.device('cpu')", "torch.device('meta')"),
    config("element of a tensor", "torch.tensor([1.0])", "torch.tensor([2.0])"),
    config("regex's pattern", "re.compile('a')", "re.compile('b')"),
    config("argument of a partial", "functools.partial(int, base=2)", "functools.partial(int, base=8)"),
    config("what __prepcache_key__ gives", "K(1)", "K(2)", KEYED),
    config("parameter in a Compose", "Compose([Resize(1)])", "Compose([Resize(2)])", COMPOSE),
    config("transform in a Compose", "Compose([Resize(1)])", "Compose([Compose([1])])", COMPOSE),
    config("path's name", "here / 'no-a'", "here / 'no-b'"),
    config("path for str", "'no-such-thing'", "pathlib.Path('no-such-thing')"),
    config("layer of torch.nn", "torch.nn.Dropout(0.1)", "torch.nn.Dropout(0.2)"),
    definition("body of a function", "def g(x):\n    return x * 1\n", "* 1", "* 2", "g"),
    definition("body of a lambda", "g = lambda x: x * 1\n", "* 1", "* 2", "g"),
    definition("method of a class", "class C:\n    def g(self):\n        return 1\n", "return 1", "return 2", "C"),
    definition("method of an instance's class", "class C:\n    def __call__(self):\n        return 1\n", "return 1", "return 2", "C()"),
    definition("function behind register_key", "class C:\n    k = 1\n\nprepcache.register_key(C, lambda c: c.k)\n", "k = 1", "k = 2", "C()"),
    must_change("config: name of a key", PREP, swap("job.py", "'a': 1", "'b': 1"), job=IMPORTS + "config = {'a': 1}\n"),
    must_change("config: a path's bytes", {**PREP, "v.txt": "one"}, write("v.txt", "two"), job=IMPORTS + "config = {'v': here / 'v.txt'}\n"),
    must_change("config: bytes of the file that a str names", {**PREP, "v.txt": "one"}, write("v.txt", "two"),
                job=IMPORTS + "config = {'v': str(here / 'v.txt')}\n"),
    must_change("config: file in a tree()", {**PREP, "d/v.txt": "one"}, write("d/v.txt", "two"),
                job=IMPORTS + "config = {'v': prepcache.tree(here / 'd')}\n"),
    must_change("version=", PREP, swap("job.py", "'1'", "'2'"), job=IMPORTS + "options = {'version': '1'}\n"),
    must_change("version= alone", PREP, swap("job.py", "'1'", "'2'"), job=IMPORTS + "options = {'version': '1', 'code': None}\n"),
    must_change("expand=", PREP, swap("job.py", "True", "False"), job=IMPORTS + "options = {'expand': True}\n"),
    must_change("code=[paths]", {**PREP, "other.py": "1\n"}, write("other.py", "2\n"), job=IMPORTS + "options = {'code': [here / 'other.py']}\n"),
    config("order in a dict", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", stays=True),
    config("order in a set of str", "{'a', 'b', 'c', 'd'}", "{'d', 'c', 'b', 'a'}", stays=True),
    config("set of tuples of str", "{('a', 1), ('b', 2), ('c', 3)}", "{('c', 3), ('b', 2), ('a', 1)}", stays=True),
    config("payload of a NaN", "float('nan')", "np.float64('nan').item() * -1", stays=True),
    config("dict by keywords", "{'a': 1}", "dict(a=1)", stays=True),
    config("array in Fortran order", "np.ones((2, 3))", "np.ones((3, 2)).T", stays=True),
    config("instances of a class", "Compose([Resize(1)])", "Compose([Resize(2 - 1)])", COMPOSE, stays=True, script_changes=True),
    must_stay("config: file touched", {**PREP, "v.txt": "one"}, lambda p: (p / "v.txt").touch(), job=IMPORTS + "config = {'v': here / 'v.txt'}\n"),
    must_stay("version= alone: the function edited", PREP, swap("prep.py", "return x", "return -x"),
              job=IMPORTS + "options = {'version': '1', 'code': None}\n"),
    must_stay("code=[paths]: another file edited", {**PREP, "other.py": "1\n", "more.py": "1\n"}, write("more.py", "2\n"),
              job=IMPORTS + "options = {'code': [here / 'other.py']}\n"),
]  # fmt: skip
