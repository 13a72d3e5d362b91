"""What a function reaches: definitions by syntax tree, globals and class attributes by run-time value."""
# ruff: noqa: E501

from __future__ import annotations

from types import SimpleNamespace

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}

MANY = "".join(f"A{n} = {n}\n" for n in range(300))
MANY_NAMES = "".join(f"A{n}, " for n in range(300))

# Each row: the module before, the module after. `f` is the preprocessing function.
MUST_CHANGE = {
    "body": ("def f(x): return x", "def f(x): return -x"),
    "helper": ("def g(x): return x\ndef f(x): return g(x)", "def g(x): return -x\ndef f(x): return g(x)"),
    "helper of helper": (
        "def h(x): return x\ndef g(x): return h(x)\ndef f(x): return g(x)",
        "def h(x): return -x\ndef g(x): return h(x)\ndef f(x): return g(x)",
    ),
    "default": ("def f(x, n=1): return x", "def f(x, n=2): return x"),
    "keyword default": ("def f(x, *, n=1): return x", "def f(x, *, n=2): return x"),
    "default by a name": ("N = 1\ndef f(x, n=N): return x", "N = 2\ndef f(x, n=N): return x"),
    "keyword default by a name": ("N = 1\ndef f(x, *, n=N): return x", "N = 2\ndef f(x, *, n=N): return x"),
    "the last of many names": (
        MANY + "N = 1\ndef f(x): return [" + MANY_NAMES + " N]",
        MANY + "N = 2\ndef f(x): return [" + MANY_NAMES + " N]",
    ),
    "operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "end of a slice": ("def f(x): return x[1:]", "def f(x): return x[:1]"),
    "kind of an argument": ("def f(*x): return x", "def f(**x): return x"),
    "type of a default": ("def f(x, n=1): return x", "def f(x, n=1.0): return x"),
    "constant": ("N = 1\ndef f(x): return x * N", "N = 2\ndef f(x): return x * N"),
    "computed constant": ("N = len('a')\ndef f(x): return N", "N = len('ab')\ndef f(x): return N"),
    "constant read in a nested function": (
        "N = 1\ndef f(x):\n    def g(): return N\n    return g()",
        "N = 2\ndef f(x):\n    def g(): return N\n    return g()",
    ),
    "constant read in a comprehension": (
        "N = 1\ndef f(x): return [N for _ in x]", "N = 2\ndef f(x): return [N for _ in x]",
    ),
    "decorator": (
        "def d(g):\n    return lambda x: g(x) + 1\n@d\ndef f(x): return x",
        "def d(g):\n    return lambda x: g(x) + 2\n@d\ndef f(x): return x",
    ),
    "decorated function under a wrapper": (
        "import functools\ndef d(g):\n    @functools.wraps(g)\n    def w(x): return g(x)\n    return w\n"
        "@d\ndef f(x): return x",
        "import functools\ndef d(g):\n    @functools.wraps(g)\n    def w(x): return g(x)\n    return w\n"
        "@d\ndef f(x): return -x",
    ),
    "closure cell": (
        "def make(n):\n    def g(x): return x * n\n    return g\nf = make(1)",
        "def make(n):\n    def g(x): return x * n\n    return g\nf = make(2)",
    ),
    "partial": (
        "import functools\ndef g(x, n): return x\nf = functools.partial(g, n=1)",
        "import functools\ndef g(x, n): return x\nf = functools.partial(g, n=2)",
    ),
    "lru_cache": (
        "import functools\n@functools.lru_cache\ndef f(x): return x",
        "import functools\n@functools.lru_cache\ndef f(x): return -x",
    ),
    "singledispatch": (
        "import functools\n@functools.singledispatch\ndef f(x): return 1\n@f.register\ndef _(x: int): return 2",
        "import functools\n@functools.singledispatch\ndef f(x): return 1\n@f.register\ndef _(x: int): return 3",
    ),
    "lambda": ("f = lambda x: x", "f = lambda x: -x"),
    "one of two lambdas on a line": ("f, g = lambda x: x, lambda x: -x", "g, f = lambda x: x, lambda x: -x"),
    "callable object's code": (
        "class C:\n    def __call__(self, x): return x\nf = C()",
        "class C:\n    def __call__(self, x): return -x\nf = C()",
    ),
    "callable object's state": (
        "class C:\n    def __init__(self, n): self.n = n\n    def __call__(self, x): return x\nf = C(1)",
        "class C:\n    def __init__(self, n): self.n = n\n    def __call__(self, x): return x\nf = C(2)",
    ),
    "slots": (
        "class C:\n    __slots__ = ('n',)\n    def __call__(self, x): return x\nf = C()\nf.n = 1",
        "class C:\n    __slots__ = ('n',)\n    def __call__(self, x): return x\nf = C()\nf.n = 2",
    ),
    "bound method's object": (
        "class C:\n    def __init__(self, n): self.n = n\n    def g(self, x): return x * self.n\nf = C(1).g",
        "class C:\n    def __init__(self, n): self.n = n\n    def g(self, x): return x * self.n\nf = C(2).g",
    ),
    "which method is bound": (
        "class C:\n    def g(self, x): return x\n    def h(self, x): return x\nf = C().g",
        "class C:\n    def g(self, x): return x\n    def h(self, x): return x\nf = C().h",
    ),
    "base class": (
        "class B:\n    def g(self): return 1\nclass C(B): pass\ndef f(x): return C().g()",
        "class B:\n    def g(self): return 2\nclass C(B): pass\ndef f(x): return C().g()",
    ),
    "order of bases": (
        "class A: n = 1\nclass B: n = 2\nclass C(A, B): pass\ndef f(x): return C.n",
        "class A: n = 1\nclass B: n = 2\nclass C(B, A): pass\ndef f(x): return C.n",
    ),
    "metaclass": (
        "class M(type):\n    def __len__(c): return 1\nclass C(metaclass=M): pass\ndef f(x): return len(C)",
        "class M(type):\n    def __len__(c): return 2\nclass C(metaclass=M): pass\ndef f(x): return len(C)",
    ),
    "annotation in a class": (
        "class C:\n    a: int = 1\ndef f(x): return C", "class C:\n    a: str = 1\ndef f(x): return C",
    ),
    "bases set later": (
        "class A: n = 1\nclass B: n = 2\nclass C(A): pass\nC.__bases__ = (A,)\ndef f(x): return C.n",
        "class A: n = 1\nclass B: n = 2\nclass C(A): pass\nC.__bases__ = (B,)\ndef f(x): return C.n",
    ),
    "metaclass of a class made at run time": (
        "class M(type): n = 1\nC = M('C', (), {})\ndef f(x): return C.n",
        "class M(type): n = 2\nC = M('C', (), {})\ndef f(x): return C.n",
    ),
    "which of two classes of one name": (
        "def make(n):\n    class C: v = n\n    return C\nA, B = make(1), make(2)\nT = [A, B, A]\ndef f(x): return T",
        "def make(n):\n    class C: v = n\n    return C\nA, B = make(1), make(2)\nT = [A, B, B]\ndef f(x): return T",
    ),
    "class attribute": (
        "class C: n = 1\ndef f(x): return C.n", "class C: n = 2\ndef f(x): return C.n",
    ),
    "class attribute set later": (
        "class C: n = 1\nC.n = 1\ndef f(x): return C.n", "class C: n = 1\nC.n = 2\ndef f(x): return C.n",
    ),
    "staticmethod": (
        "class C:\n    @staticmethod\n    def g(): return 1\ndef f(x): return C.g()",
        "class C:\n    @staticmethod\n    def g(): return 2\ndef f(x): return C.g()",
    ),
    "property": (
        "class C:\n    @property\n    def g(self): return 1\ndef f(x): return C().g",
        "class C:\n    @property\n    def g(self): return 2\ndef f(x): return C().g",
    ),
    "dataclass default factory": (
        "import dataclasses\ndef n(): return 1\n@dataclasses.dataclass\nclass C:\n"
        "    n: int = dataclasses.field(default_factory=n)\ndef f(x): return C().n",
        "import dataclasses\ndef n(): return 2\n@dataclasses.dataclass\nclass C:\n"
        "    n: int = dataclasses.field(default_factory=n)\ndef f(x): return C().n",
    ),
    "namedtuple default": (
        "import typing\nclass C(typing.NamedTuple):\n    n: int = 1\ndef f(x): return C()",
        "import typing\nclass C(typing.NamedTuple):\n    n: int = 2\ndef f(x): return C()",
    ),
    "enum member": (
        "import enum\nclass C(enum.Enum):\n    A = 1\ndef f(x): return C.A.value",
        "import enum\nclass C(enum.Enum):\n    A = 2\ndef f(x): return C.A.value",
    ),
    "order of a global dict": ("D = {'a': 1, 'b': 2}\ndef f(x): return list(D)",
                               "D = {'b': 2, 'a': 1}\ndef f(x): return list(D)"),
    "which function is where in a table": (
        "def g(x): return 1\ndef h(x): return 2\nD = [g, h, g]\ndef f(x): return D[2](x)",
        "def g(x): return 1\ndef h(x): return 2\nD = [g, h, h]\ndef f(x): return D[2](x)",
    ),
    "which function is a global": (
        "def g(x): return 1\ndef h(x): return 2\nA, B = g, h\ndef f(x): return A(x) - B(x) - g(x)",
        "def g(x): return 1\ndef h(x): return 2\nA, B = h, g\ndef f(x): return A(x) - B(x) - g(x)",
    ),
    "function in a table": (
        "def g(x): return 1\nD = {'a': g}\ndef f(x): return D['a'](x)",
        "def g(x): return 2\nD = {'a': g}\ndef f(x): return D['a'](x)",
    ),
    "name of a path": (
        "import pathlib\nP = pathlib.Path('a')\ndef f(x): return P", "import pathlib\nP = pathlib.Path('b')\ndef f(x): return P",
    ),
    "regex": ("import re\nP = re.compile('a')\ndef f(x): return P", "import re\nP = re.compile('b')\ndef f(x): return P"),
    "regex flags": (
        "import re\nP = re.compile('a')\ndef f(x): return P",
        "import re\nP = re.compile('a', re.I)\ndef f(x): return P",
    ),
    "attribute of a function": (
        "def g(x): return g.n\ng.n = 1\ndef f(x): return g(x)", "def g(x): return g.n\ng.n = 2\ndef f(x): return g(x)",
    ),
    "annotation that is read": (
        "def f(x: int): return f.__annotations__", "def f(x: str): return f.__annotations__",
    ),
    "docstring that is read": (
        "def g():\n    'one'\ndef f(x): return g.__doc__", "def g():\n    'two'\ndef f(x): return g.__doc__",
    ),
    "name that is defined later": ("def f(x): return LATER", "LATER = 1\ndef f(x): return LATER"),
    "a name that shadows a builtin": ("def f(x): return len(x)", "def len(x): return 0\ndef f(x): return len(x)"),
    "dynamic look-up": (
        "def g(x): return 1\ndef f(x): return globals()['g'](x)",
        "def g(x): return 2\ndef f(x): return globals()['g'](x)",
    ),
    "nested function": (
        "def f(x):\n    def g(): return 1\n    return g()", "def f(x):\n    def g(): return 2\n    return g()",
    ),
    "empty closure cell": (
        "def make():\n    def g(x): return n\n    if 0: n = 1\n    return g\nf = make()",
        "def make():\n    def g(x): return n\n    if 1: n = 1\n    return g\nf = make()",
    ),
    "recursive closure": (
        "def make(n):\n    def g(x): return x and g(x - n)\n    return g\nf = make(1)",
        "def make(n):\n    def g(x): return x and g(x - n)\n    return g\nf = make(2)",
    ),
}  # fmt: skip

MUST_NOT_CHANGE = {
    "comment": ("def f(x): return x", "# one\ndef f(x): return x  # two"),
    "docstring": ("def f(x):\n    'one'\n    return x", "def f(x):\n    'two, longer'\n    return x"),
    "docstring taken away": ("def f(x):\n    'one'\n    return x", "def f(x):\n    return x"),
    "docstring of a nested class": (
        "def f(x):\n    class C:\n        'one'\n    return C", "def f(x):\n    class C:\n        'two'\n    return C",
    ),
    "formatting": ("def f(x): return [x, 1]", "def f(\n    x,\n):\n    return [\n        x,\n        1,\n    ]"),
    "parentheses": ("def f(x): return x + 1", "def f(x): return ((x) + (1))"),
    "quotes": ("def f(x): return 'a'", 'def f(x): return "a"'),
    "another function": ("def f(x): return x\ndef g(x): return 1", "def f(x): return x\ndef g(x): return 2"),
    "another constant": ("A, B = 1, 1\ndef f(x): return A", "A, B = 1, 2\ndef f(x): return A"),
    "another import": ("def f(x): return x", "import json\nimport os.path as p\ndef f(x): return x"),
    "lines above": ("def f(x): return x", "\n\n\nN = 3\n\ndef f(x): return x"),
    "an unreached method's neighbour class": (
        "class A: n = 1\nclass B: n = 1\ndef f(x): return A.n", "class A: n = 1\nclass B: n = 2\ndef f(x): return A.n",
    ),
    "order of a set": ("S = {'a', 'b', 'c'}\ndef f(x): return x in S", "S = {'c', 'b', 'a'}\ndef f(x): return x in S"),
    "lambda's formatting": ("f = lambda x: x + 1", "f = (\n    lambda x: x\n    + 1\n)"),
    "a lambda beside it on the line": ("f, g = lambda x: x, lambda x: 1", "f, g = lambda x: x, lambda x: 2"),
    "order of definitions": (
        "def g(x): return x\ndef h(x): return x\ndef f(x): return g(h(x))",
        "def h(x): return x\ndef f(x): return g(h(x))\ndef g(x): return x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUST_CHANGE)
def test_what_is_reached_changes_the_key(project: Project, name: str) -> None:
    """An edit does, and a second load of the same text does not."""
    before, after = MUST_CHANGE[name]
    for code in ("function", "script"):
        project.write(prep=before)
        assert not changes(project, lambda: None, code=code)
        assert changes(project, lambda: project.write(prep=after), code=code), code


@pytest.mark.parametrize("name", MUST_NOT_CHANGE)
def test_what_is_not_reached_does_not_change_the_key(project: Project, name: str) -> None:
    before, after = MUST_NOT_CHANGE[name]
    project.write(prep=before)
    assert not changes(project, lambda: project.write(prep=after), **FUNCTION)


@pytest.mark.parametrize("code", ["function", "script"])
def test_a_global_set_by_the_entry_script_counts_by_its_value(project: Project, code: str) -> None:
    project.write(prep="import cfg\ndef f(x): return cfg.SIZE", cfg="SIZE = 1\nOTHER = 1")
    module = project.load()
    before = recipe(module.f, code=code).digest
    module.cfg.SIZE = 2
    assert recipe(module.f, code=code).digest != before
    module.cfg.SIZE = 1
    module.cfg.OTHER = 5
    assert recipe(module.f, code=code).digest == before


def test_of_an_args_namespace_only_what_is_read_counts(project: Project) -> None:
    project.write(prep="import argparse\nargs = argparse.Namespace(size=1, lr=1)\ndef f(x): return args.size")
    module = project.load()
    before = recipe(module.f).digest
    module.args.lr = 2
    assert recipe(module.f).digest == before
    module.args.size = 2
    assert recipe(module.f).digest != before


def test_an_args_namespace_that_is_passed_on_counts_whole(project: Project) -> None:
    project.write(prep="def f(x): return vars(args)")
    module = project.load()
    module.args = SimpleNamespace(size=1, lr=1)
    before = recipe(module.f).digest
    module.args.lr = 2
    assert recipe(module.f).digest != before


READS_CELL = {
    "an attribute": "def f(x): return args.size",
    "an attribute of one": "def f(x): return args.size.real",
    "a method of one": "def f(x): return args.size.bit_length()",
    "in nested code": "def f(x): return [args.size for _ in x], (lambda: args.size)()",
    "in a class": "def f(x):\n        class C: n = args.size\n        return C",
    "a lambda": "f = lambda x: args.size",
}
READS_CELL_WHOLE = {
    "all attributes": "def f(x): return vars(args)",
    "by name": "def f(x): return getattr(args, x)",
    "handed on": "def f(x): return g(args)",
    "in nested code": "def f(x): return args.size, [g(args) for _ in x]",
    "a class's attribute": "def f(x): return args.size, args.__dict__",
    "from the frame": "def f(x): return args.size, locals()",
    "by text": "def f(x): return args.size, eval(x)",
    "by a query": "def f(x): return args.size, x.query('a > @args.lr')",
    "compared": "def f(x): return args.size, args == x",
    "set": "def f(x): args.size = args.lr = 1",
    "bound anew": "def f(x):\n        nonlocal args\n        args = x",
}


def _main(code: str) -> str:
    made = "def g(x): return x\nARGS = types.SimpleNamespace(size=1, lr=1)"
    return f"import types\n{made}\ndef main():\n    args = ARGS\n    {code}\n    return f\nf = main()\n"


@pytest.mark.parametrize("how", READS_CELL)
def test_of_an_enclosing_namespace_only_what_is_read_counts(project: Project, how: str) -> None:
    project.write(prep=_main(READS_CELL[how]))
    module = project.load()
    before = recipe(module.f, **FUNCTION).digest
    module.ARGS.lr = 2
    assert recipe(module.f, **FUNCTION).digest == before
    module.ARGS.size = 2
    assert recipe(module.f, **FUNCTION).digest != before


@pytest.mark.parametrize("how", READS_CELL_WHOLE)
def test_an_enclosing_namespace_used_whole_counts_whole(project: Project, how: str) -> None:
    project.write(prep=_main(READS_CELL_WHOLE[how]))
    module = project.load()
    before = recipe(module.f, **FUNCTION).digest
    module.ARGS.lr = 2
    assert recipe(module.f, **FUNCTION).digest != before


def test_a_module_used_as_a_value_counts_whole(project: Project) -> None:
    project.write(prep="import cfg\ndef f(x): return getattr(cfg, x)", cfg="A = 1\nB = 1")
    assert changes(project, lambda: project.write(cfg="A = 1\nB = 2"), **FUNCTION)


@pytest.mark.parametrize("value", ["1", "lambda x: x"])
def test_what_is_read_from_another_module_counts(project: Project, value: str) -> None:
    project.write(prep="import other\ndef f(x): return other.n", other=f"n = {value}")
    assert changes(project, lambda: project.write(other=f"n = {value} * 2"), **FUNCTION)


def test_a_helper_in_another_module_counts_by_definition(project: Project) -> None:
    project.write(
        prep="from util import g\ndef f(x): return g(x)", util="def g(x): return x\ndef h(x): return 1"
    )
    assert not changes(
        project, lambda: project.write(util="def h(x): 2\n\ndef g(x):\n    return x"), **FUNCTION
    )
    assert changes(project, lambda: project.write(util="def g(x): return -x"), **FUNCTION)


def test_a_method_that_was_replaced_at_run_time_counts(project: Project) -> None:
    project.write(
        prep="class C:\n    def g(self): return 1\ndef one(self): return 1\ndef two(self): return 2\n"
        "def f(x): return C().g()"
    )
    module = project.load()
    before = recipe(module.f, code="function").digest
    module.C.g = module.two
    assert recipe(module.f, code="function").digest != before


def test_a_library_setting_that_is_read_counts_by_value(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(prep="import decimal\ndef f(x): return decimal.MAX_PREC")
    module = project.load()
    before = recipe(module.f).digest
    monkeypatch.setattr("decimal.MAX_PREC", 5)
    assert recipe(module.f).digest != before


@pytest.mark.parametrize(
    "read",
    [
        "os.environ['SIZE_OF_X']", "os.environ.get('SIZE_OF_X', 1)", "os.getenv('SIZE_OF_X')",
        "'SIZE_OF_X' in os.environ", "os.environ.get(NAME)",
    ],
)  # fmt: skip
def test_a_variable_named_in_the_code_counts_by_value(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    read: str,
) -> None:
    project.write(prep=f"import os\nNAME = 'SIZE_OF_X'\ndef f(x): return {read}")
    monkeypatch.delenv("SIZE_OF_X", raising=False)
    before = project.digest(**FUNCTION)
    monkeypatch.setenv("SIZE_OF_X", "1")
    assert project.digest(**FUNCTION) != before


@pytest.mark.parametrize(
    ("loaded", "edited"),
    [
        ("x", "-x"),
        ("x.real", "x.imag"),
        ("1", "1.0"),
        ("'1'", "b'1'"),
        ("(1, 2)", "(1, 3)"),
        ("abs(x)", "len(x)"),
    ],
)
def test_what_runs_is_keyed_after_an_edit_of_its_source(project: Project, loaded: str, edited: str) -> None:
    project.write(prep=f"def f(x): return {loaded}")
    module = project.load()
    before = {code: recipe(module.f, code=code).digest for code in ("script", "function")}
    project.write(prep=f"def f(x): return {edited}")
    assert recipe(module.f, **FUNCTION).digest == before["function"]
    after = recipe(module.f).digest
    project.write(prep=f"def f(x): return {edited}  # and again")
    assert recipe(module.f).digest == after
    assert after not in (before["script"], project.digest())
    assert project.digest(**FUNCTION) != before["function"]


def test_a_function_that_a_decorator_rewrites_counts_by_its_code(project: Project) -> None:
    """As typeguard's does."""
    rewrites = (
        "import types\n"
        "def rewritten(f):\n"
        "    text = f'def f(x): return x * {FACTOR}'\n"
        "    made = compile(text, f.__code__.co_filename, 'exec')\n"
        "    f.__code__ = next(c for c in made.co_consts if isinstance(c, types.CodeType))\n"
        "    return f\n"
        "@rewritten\n"
        "def f(x): return x\n"
    )
    project.write(prep=f"FACTOR = 2\n{rewrites}")
    twice, again = project.recipe(**FUNCTION), project.recipe(**FUNCTION)
    assert twice == again
    project.write(prep=f"FACTOR = 3\n{rewrites}")
    assert project.recipe(**FUNCTION) != twice


def test_source_edited_elsewhere_after_the_import_still_matches(project: Project) -> None:
    project.write(prep="def f(x): return x")
    module = project.load()
    before = recipe(module.f, code="function").digest
    project.write(prep="N = 1\n\n\ndef f(x):\n    # moved down\n    return x")
    assert recipe(module.f, code="function").digest == before


def test_a_generated_function_counts_by_its_code(project: Project) -> None:
    def made(text: str) -> str:
        space: dict[str, object] = {"__name__": "made"}
        exec(text, space)
        return recipe(space["f"]).digest  # type: ignore[arg-type]

    assert made("def f(x): return x") == made("\n\ndef f(x): return x")
    assert made("def f(x): return x") != made("def f(x): return -x")


@pytest.mark.parametrize(
    "value",
    ["socket.socket()", "(i for i in [1])", "open(__file__)", "Holder()"],
)
def test_what_has_no_stable_bytes_is_refused_by_name(
    project: Project,
    value: str,
    recwarn: pytest.WarningsRecorder,
) -> None:
    project.write(
        prep="import socket\nclass Holder:\n    def __init__(self): self.lines = (line for line in ())\n"
        f"STATE = {value}\ndef f(x): return STATE\ndef close():\n    getattr(STATE, 'close', int)()"
    )
    module = project.load()
    with pytest.raises(UnkeyableError, match=r"prep\.STATE.*untracked"):
        recipe(module.f)
    assert recipe(module.f, untracked=("STATE",)).parts["code"]["untracked"] == ["STATE"]
    module.close()


def test_untracked_names_that_are_not_reached_are_noted(project: Project) -> None:
    project.write(prep="def f(x): return x")
    assert project.recipe(untracked=("nothing",)).notes == (
        "untracked='nothing' names nothing that the code reaches",
    )
