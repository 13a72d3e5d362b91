"""Code: the function, what it reaches, and every road by which one module reaches another."""

from .case import Case, must_change, one, swap, two, write

HELPER = "from helper import g\n\ndef f(x):\n    return g(x)\n"

DEFINITIONS = [
    one("constant in the body", "def f(x):\n    return x + 1\n", "+ 1", "+ 2"),
    one("operator in the body", "def f(x):\n    return x + 1\n", "x + 1", "x - 1"),
    one("attribute name in the body", "def f(x):\n    return x.upper()\n", "upper", "lower"),
    one("keyword in a call", "def f(x):\n    return sorted(x, reverse=True)\n", "reverse=True", "key=None"),
    one("format spec of an f-string", "def f(x):\n    return f'{x:.2f}'\n", ".2f", ".3f"),
    one("case of a match", "def f(x):\n    match x:\n        case 1:\n            return 2\n", "case 1", "case 3"),
    one("comprehension", "def f(x):\n    return [y for y in x if y]\n", "if y", "if not y"),
    one("nested function", "def f(x):\n    def g(y):\n        return y * 2\n    return g(x)\n", "* 2", "* 3"),
    one("generator", "def f(x):\n    yield x\n    yield 1\n", "yield 1", "yield 2"),
    one("exception that is caught", "def f(x):\n    try:\n        return int(x)\n    except ValueError:\n        "
        "return 0\n", "ValueError", "TypeError"),
    one("helper in the same module", "def g(x):\n    return x\n\ndef f(x):\n    return g(x)\n", "return x", "return -x"),
    one("helper of a helper", "def h(x):\n    return x * 1\n\ndef g(x):\n    return h(x)\n\ndef f(x):\n    return g(x)\n",
        "* 1", "* 2"),
    one("helper passed as a value", "def g(x):\n    return x * 1\n\ndef f(x):\n    return list(map(g, x))\n", "* 1", "* 2"),
    one("recursion through a second function", "def g(x):\n    return f(x - 1) * 1\n\ndef f(x):\n    return g(x) if x else 1\n",
        "* 1", "* 2"),
    one("decorator's body", "def d(fn):\n    def w(x):\n        return fn(x) * 1\n    return w\n\n@d\ndef f(x):\n    return x\n",
        "* 1", "* 2"),
    one("decorator's argument", "def d(k):\n    def o(fn):\n        def w(x):\n            return fn(x) * k\n        return w\n"
        "    return o\n\n@d(1)\ndef f(x):\n    return x\n", "@d(1)", "@d(2)"),
    one("order of decorators", "def a(fn):\n    return lambda x: fn(x) + 1\n\ndef b(fn):\n    return lambda x: fn(x) * 2\n\n"
        "@a\n@b\ndef f(x):\n    return x\n", "@a\n@b", "@b\n@a"),
    one("body under functools.wraps", "import functools\n\ndef d(fn):\n    @functools.wraps(fn)\n    def w(x):\n        return fn(x)\n"
        "    return w\n\n@d\ndef f(x):\n    return x * 1\n", "* 1", "* 2"),
    one("body under lru_cache", "import functools\n\n@functools.lru_cache\ndef g(x):\n    return x * 1\n\ndef f(x):\n    return g(x)\n",
        "* 1", "* 2"),
    one("context manager that is entered", "import contextlib\n\n@contextlib.contextmanager\ndef c():\n    yield 1\n\ndef f(x):\n"
        "    with c() as y:\n        return x + y\n", "yield 1", "yield 2"),
    one("implementation registered with singledispatch", "import functools\n\n@functools.singledispatch\ndef g(x):\n    return x\n\n"
        "@g.register\ndef _(x: int):\n    return x * 1\n\ndef f(x):\n    return g(x)\n", "* 1", "* 2"),
    one("docstring that the function reads", "def g():\n    'one'\n\ndef f(x):\n    return g.__doc__\n", "'one'", "'two'"),
    one("default of a helper's argument", "def g(x, k=1):\n    return x * k\n\ndef f(x):\n    return g(x)\n", "k=1", "k=2"),
    one("keyword-only default", "def f(x, *, k=1):\n    return x * k\n", "k=1", "k=2"),
    one("default that is an expression", "A = 1\nB = 2\n\ndef f(x, k=A):\n    return x * k\n", "k=A", "k=B"),
    one("lambda's body", "f = lambda x: x + 1\n", "+ 1", "+ 2"),
    one("one of two lambdas on a line", "f, g = (lambda x: x + 1), (lambda x: x + 2)\n", "f, g", "g, f"),
    one("lambda that a helper makes", "def make():\n    return lambda x: x * 1\n\nf = make()\n", "* 1", "* 2"),
    one("function chosen at import", "A = 1\n\ndef p(x):\n    return x\n\ndef q(x):\n    return -x\n\nf = p if A else q\n",
        "A = 1", "A = 0"),
    one("async helper", "async def g(x):\n    return x * 1\n\ndef f(x):\n    import asyncio\n    return asyncio.run(g(x))\n",
        "* 1", "* 2"),
    one("augmented assignment to a global", "N = 1\n\ndef f(x):\n    global N\n    N += 1\n    return N\n", "N += 1", "N += 2"),
]  # fmt: skip

CLASSES = [
    one("method of an instance", "class C:\n    def g(self, x):\n        return x * 1\n\nf = C().g\n", "* 1", "* 2"),
    one("method that a method calls", "class C:\n    def h(self, x):\n        return x * 1\n    def g(self, x):\n        return self.h(x)\n\n"
        "f = C().g\n", "* 1", "* 2"),
    one("base class's method", "class B:\n    def g(self, x):\n        return x * 1\n\nclass C(B):\n    pass\n\nf = C().g\n", "* 1", "* 2"),
    one("base class of a base class", "class A:\n    K = 1\n\nclass B(A):\n    pass\n\nclass C(B):\n    def g(self, x):\n        return self.K\n\n"
        "f = C().g\n", "K = 1", "K = 2"),
    one("order of base classes", "class A:\n    def g(self, x):\n        return 1\n\nclass B:\n    def g(self, x):\n        return 2\n\n"
        "class C(A, B):\n    pass\n\nf = C().g\n", "C(A, B)", "C(B, A)"),
    one("__call__", "class C:\n    def __call__(self, x):\n        return x * 1\n\nf = C()\n", "* 1", "* 2"),
    one("property", "class C:\n    @property\n    def k(self):\n        return 1\n    def g(self, x):\n        return self.k\n\nf = C().g\n",
        "return 1", "return 2"),
    one("class method", "class C:\n    @classmethod\n    def g(cls, x):\n        return x * 1\n\nf = C.g\n", "* 1", "* 2"),
    one("static method", "class C:\n    @staticmethod\n    def g(x):\n        return x * 1\n\nf = C.g\n", "* 1", "* 2"),
    one("metaclass", "class M(type):\n    def k(cls):\n        return 1\n\nclass C(metaclass=M):\n    def g(self, x):\n        return type(self).k()\n\n"
        "f = C().g\n", "return 1", "return 2"),
    one("descriptor", "class D:\n    def __get__(self, o, t):\n        return 1\n\nclass C:\n    k = D()\n    def g(self, x):\n        return self.k\n\n"
        "f = C().g\n", "return 1", "return 2"),
    one("class decorator", "def d(c):\n    c.K = 1\n    return c\n\n@d\nclass C:\n    def g(self, x):\n        return self.K\n\nf = C().g\n",
        "K = 1", "K = 2"),
    one("__init_subclass__", "class B:\n    def __init_subclass__(cls):\n        cls.K = 1\n\nclass C(B):\n    def g(self, x):\n        return self.K\n\n"
        "f = C().g\n", "K = 1", "K = 2"),
    one("dataclass field's default", "import dataclasses\n\n@dataclasses.dataclass\nclass C:\n    k: int = 1\n\ndef f(x):\n    return C().k\n",
        "= 1", "= 2"),
    one("class made in the function", "class C:\n    def __init__(self):\n        self.k = 1\n\ndef f(x):\n    return C().k\n", "= 1", "= 2"),
    one("operator of a class", "class C:\n    def __add__(self, o):\n        return 1\n\ndef f(x):\n    return C() + x\n", "return 1", "return 2"),
    one("enum member's value", "import enum\n\nclass E(enum.Enum):\n    A = 1\n\ndef f(x):\n    return E.A.value\n", "A = 1", "A = 2"),
    one("class nested in a class", "class C:\n    class D:\n        K = 1\n\ndef f(x):\n    return C.D.K\n", "K = 1", "K = 2"),
]  # fmt: skip

MODULES = [
    two("from-import", HELPER, "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("import under another name", "import helper as h\n\ndef f(x):\n    return h.g(x)\n", "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("star import", "from helper import *\n\ndef f(x):\n    return g(x)\n", "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("import in the function", "def f(x):\n    from helper import g\n    return g(x)\n", "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("import in a class's body", "class C:\n    from helper import K\n\ndef f(x):\n    return C.K\n", "K = 1\n", "K = 1", "K = 2"),
    two("conditional import", "try:\n    import no_such_module_at_all\nexcept ImportError:\n    from helper import g\n\ndef f(x):\n    return g(x)\n",
        "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("import_module of a literal", "import importlib\n\ndef f(x):\n    return importlib.import_module('helper').g(x)\n",
        "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("__import__ of a literal", "def f(x):\n    return __import__('helper').g(x)\n", "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("module of a namespace package", "from space.helper import g\n\ndef f(x):\n    return g(x)\n", "def g(x):\n    return x * 1\n",
        "* 1", "* 2", file="space/helper.py"),
    two("re-export by a package", "from pack import g\n\ndef f(x):\n    return g(x)\n", "def g(x):\n    return x * 1\n", "* 1", "* 2",
        file="pack/inner.py", **{"pack/__init__.py": "from .inner import g\n"}),
    two("submodule reached by attribute", "import pack.inner\n\ndef f(x):\n    return pack.inner.g(x)\n", "def g(x):\n    return x * 1\n",
        "* 1", "* 2", file="pack/inner.py", **{"pack/__init__.py": ""}),
    two("relative import of a sibling", "from pack.a import g as f\n", "def h(x):\n    return x * 1\n", "* 1", "* 2", file="pack/b.py",
        **{"pack/__init__.py": "", "pack/a.py": "from .b import h\n\ndef g(x):\n    return h(x)\n"}),
    two("relative import of the parent's module", "from pack.sub.a import g as f\n", "def h(x):\n    return x * 1\n", "* 1", "* 2",
        file="pack/b.py", **{"pack/__init__.py": "", "pack/sub/__init__.py": "",
                             "pack/sub/a.py": "from ..b import h\n\ndef g(x):\n    return h(x)\n"}),
    must_change("parent's __init__ that acts on import", {
        "prep.py": "from pack.a import g as f\n", "pack/__init__.py": "from . import state\nstate.K = 1\n", "pack/state.py": "K = 0\n",
        "pack/a.py": "from . import state\n\ndef g(x):\n    return state.K\n"}, swap("pack/__init__.py", "K = 1", "K = 2")),
    two("module-level __getattr__", "import helper\n\ndef f(x):\n    return helper.K\n", "def __getattr__(name):\n    return 1\n",
        "return 1", "return 2"),
    two("modules that import each other", "import helper\n\ndef k(x):\n    return x\n\ndef f(x):\n    return helper.g(x)\n",
        "import prep\n\ndef g(x):\n    return prep.k(x) * 1\n", "* 1", "* 2"),
    two("base class in another module", "from helper import B\n\nclass C(B):\n    pass\n\nf = C().g\n",
        "class B:\n    def g(self, x):\n        return x * 1\n", "* 1", "* 2"),
    two("decorator in another module", "from helper import d\n\n@d\ndef f(x):\n    return x\n",
        "def d(fn):\n    def w(x):\n        return fn(x) * 1\n    return w\n", "* 1", "* 2"),
    two("constant in another module", "import helper\n\ndef f(x):\n    return helper.K\n", "K = 1\n", "K = 1", "K = 2"),
    two("constant imported by name", "from helper import K\n\ndef f(x):\n    return K\n", "K = 1\n", "K = 1", "K = 2"),
    two("constant made of another's constant", "from helper import K\n\nM = K * 2\n\ndef f(x):\n    return M\n", "K = 1\n", "K = 1", "K = 2"),
    must_change("module shadowed by a package of its name", {"prep.py": HELPER, "helper.py": "def g(x):\n    return 1\n"},
        write("helper/__init__.py", "def g(x):\n    return 2\n")),
    must_change("fallback module appears", {
        "prep.py": "try:\n    from quick import g\nexcept ImportError:\n    from helper import g\n\ndef f(x):\n    return g(x)\n",
        "helper.py": "def g(x):\n    return 1\n"}, write("quick.py", "def g(x):\n    return 2\n")),
    must_change("project's C extension", {
        "prep.py": "def f(x):\n    import _quick\n    return _quick.g(x)\n", "_quick.abi3.so": "one"}, write("_quick.abi3.so", "two")),
    must_change("module of an archive, imported in a function", {
        "prep.py": "def f(x):\n    import packed\n    return packed.g(x)\n", "packed.txt": "def g(x):\n    return x * 1\n"},
        swap("packed.txt", "* 1", "* 2"),
        job="import sys, zipfile\nfrom pathlib import Path\nhere = Path(__file__).resolve().parent\n"
        "with zipfile.ZipFile(here / 'packed.zip', 'w') as file:\n    file.write(here / 'packed.txt', 'packed.py')\n"
        "sys.path.insert(0, str(here / 'packed.zip'))\nfrom prep import f as fn\n", is_refused=True),
    must_change("entry script's own function", {}, swap("job.py", "* 1", "* 2"), job="def fn(x):\n    return x * 1\n"),
    must_change("entry script's own constant", {}, swap("job.py", "K = 1", "K = 2"), job="K = 1\n\ndef fn(x):\n    return x * K\n"),
    must_change("function in a notebook's cell", {}, swap("job.py", "* 1", "* 2"),
        job="import linecache\ncell = 'def fn(x):\\n    return x * 1\\n'\nname = '<ipython-input-1-abc>'\n"
        "linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)\nexec(compile(cell, name, 'exec'))\n"),
]  # fmt: skip

CASES: list[Case] = [*DEFINITIONS, *CLASSES, *MODULES]
