"""What a function reaches: definitions by syntax tree, globals and class attributes by run-time value."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}

MANY = "".join(f"A{n} = {n}\n" for n in range(300))
MANY_NAMES = "".join(f"A{n}, " for n in range(300))

# Each row: the module before, the module after. `f` is the preprocessing function.
MUST_CHANGE = {
    "the last of many names": (
        MANY + "N = 1\ndef f(x): return [" + MANY_NAMES + " N]",
        MANY + "N = 2\ndef f(x): return [" + MANY_NAMES + " N]",
    ),
    "end of a slice": ("def f(x): return x[1:]", "def f(x): return x[:1]"),
    "kind of an argument": ("def f(*x): return x", "def f(**x): return x"),
    "which method is bound": (
        "class C:\n    def g(self, x): return x\n    def h(self, x): return x\nf = C().g",
        "class C:\n    def g(self, x): return x\n    def h(self, x): return x\nf = C().h",
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
    "name of a path": (
        "import pathlib\nP = pathlib.Path('a')\ndef f(x): return P", "import pathlib\nP = pathlib.Path('b')\ndef f(x): return P",
    ),
    "name that is defined later": ("def f(x): return LATER", "LATER = 1\ndef f(x): return LATER"),
    "a name that shadows a builtin": ("def f(x): return len(x)", "def len(x): return 0\ndef f(x): return len(x)"),
    "dynamic look-up": (
        "def g(x): return 1\ndef f(x): return globals()['g'](x)",
        "def g(x): return 2\ndef f(x): return globals()['g'](x)",
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
    "docstring of a nested class": (
        "def f(x):\n    class C:\n        'one'\n    return C", "def f(x):\n    class C:\n        'two'\n    return C",
    ),
    "an unreached method's neighbour class": (
        "class A: n = 1\nclass B: n = 1\ndef f(x): return A.n", "class A: n = 1\nclass B: n = 2\ndef f(x): return A.n",
    ),
    "order of a set": ("S = {'a', 'b', 'c'}\ndef f(x): return x in S", "S = {'c', 'b', 'a'}\ndef f(x): return x in S"),
    "a lambda beside it on the line": ("f, g = lambda x: x, lambda x: 1", "f, g = lambda x: x, lambda x: 2"),
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


READS_CELL = {
    "an attribute of one": "def f(x): return args.size.real",
    "in nested code": "def f(x): return [args.size for _ in x], (lambda: args.size)()",
    "in a class": "def f(x):\n        class C: n = args.size\n        return C",
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


def test_a_library_setting_that_is_read_counts_by_value(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(prep="import decimal\ndef f(x): return decimal.MAX_PREC")
    module = project.load()
    before = recipe(module.f).digest
    monkeypatch.setattr("decimal.MAX_PREC", 5)
    assert recipe(module.f).digest != before


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
