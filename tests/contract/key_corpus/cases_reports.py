"""Situations of public reports about caches of computed results: joblib, Hugging Face datasets, marimo, Prefect,
redun, Metaflow, the compile caches of torch and vLLM, axolotl. What was stale there must change the key, what was
computed again for nothing must not."""

from .case import BOTH, JOB, Case, by_job, must_change, must_stay, nothing, one, swap, two, write
from .cases_environment import LIB, META, USES, installed


def calm(name: str, source: str, old: str, new: str, **files: str) -> Case:
    """A case whose edit does nothing to what runs; the default mode counts whole files."""
    return must_stay(name, {"prep.py": source, **files}, swap("prep.py", old, new), script_changes=True)


def alike(name: str, source: str, job: str = JOB) -> Case:
    """A case of what has one key in every process, whatever its hash seed and addresses."""
    return must_stay(name, {"prep.py": source}, nothing, job=job)


def config(name: str, made: str, old: str = "5", new: str = "6") -> Case:
    """A case in which the config is made otherwise."""
    source = "def f(x, c):\n    return c\n"
    return must_change(
        name, {"prep.py": source}, swap("job.py", old, new), job=f"{JOB}{made}\nconfig = {{'c': c}}\n"
    )


def of_notebook(name: str, before: str, after: str, *, changes: tuple[str, ...] = BOTH) -> Case:
    """A case of cells that are run one after the other, as a notebook does."""
    run = "import linecache\nfor i, cell in enumerate(open(__file__.replace('job.py', 'cells.txt')).read().split('---\\n')):\n"
    run += "    name = f'<ipython-input-{i}-abc>'\n    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)\n"
    run += "    exec(compile(cell, name, 'exec'))\n"
    files = {"job.py": run, "cells.txt": before}
    return Case(f"notebook: {name}", files, write("cells.txt", after), changes)


G = "def g(x):\n    return x * 1\n\n"
F = "def fn(x):\n    return g(x)\n"
BODY = "def f(x):\n    return x * 1\n"
JOBLIB = [
    one("joblib: a helper of the cached function", "def g(x):\n    return x * 1\n\ndef f(x):\n    return g(x)\n", "* 1", "* 2"),
    one("joblib: two functions of one name, the later counts", "def f(x):\n    return x\n\ndef f(x):\n    return x * 1\n", "* 1", "* 2"),
    one("joblib: lambdas with the same first line", "def make(k):\n    return lambda x: (\n        x * k)\n\nf = make(1)\n", "make(1)", "make(2)"),
    one("joblib: a method of an instance with state",
        "class P:\n    def __init__(self, k):\n        self.k = k\n    def run(self, x):\n        return x * self.k\n\nf = P(1).run\n", "P(1)",
        "P(2)"),
    one("joblib: what a decorator adds",
        "import functools\n\ndef d(fn):\n    @functools.wraps(fn)\n    def w(x):\n        return fn(x) + 1\n    return w\n\n@d\ndef f(x):\n    return x\n",
        "+ 1", "+ 2"),
    one("joblib: a mutable default", "def f(x, k=[1]):\n    return k\n", "[1]", "[2]"),
    one("joblib: partial of a ufunc's argument", "import functools, numpy\nf = functools.partial(numpy.power, 2)\n", "power, 2", "power, 3"),
    one("joblib: a recursive helper", "def g(n):\n    return n * g(n - 1) if n > 1 else 1\n\ndef f(x):\n    return g(x)\n", "n > 1", "n > 2"),
    calm("joblib: a function above was made longer", "def above(x):\n    return x\n\n" + BODY, "def above(x):\n", "def above(x):\n    x += 1\n"),
    calm("joblib: a comment in the function", "def f(x):\n    # one\n    return x\n", "# one", "# two"),
    calm("joblib: the function was moved in its file", "K = 1\n\n" + BODY, "K = 1\n", "K = 1\nL = 2\nM = 3\n"),
]  # fmt: skip
DATASETS = [
    alike("datasets: a set in a global", "S = {'a', 'b', 'c', 'd', 'e'}\n\ndef f(x):\n    return x in S\n"),
    alike("datasets: a compiled regex", "import re\nR = re.compile(r'\\w+', re.I)\n\ndef f(x):\n    return R.findall(x)\n"),
    alike("datasets: a lambda over a method", "class T:\n    def __call__(self, x):\n        return x\n\nt = T()\nf = lambda x: t(x)\n"),
    alike("datasets: a frozenset constant", "def f(x):\n    return x in {'aa', 'bb', 'cc', 'dd'}\n"),
    alike("datasets: a class made in main", "def f(x, k):\n    return k\n", JOB + "class K:\n    n = 1\n\nconfig = {'k': K()}\n"),
    alike("datasets: a logger in a global", "import logging\nlog = logging.getLogger(__name__)\n\ndef f(x):\n    log.info('x')\n    return x\n"),
    alike("datasets: a generator of torch", "import torch\nG = torch.Generator().manual_seed(1)\n\ndef f(x):\n    return torch.rand(1, generator=G)\n"),
    alike("datasets: a nested partial", "import functools\n\ndef g(a, b, x):\n    return a, b, x\n\nf = functools.partial(functools.partial(g, 1), 2)\n"),
    alike("datasets: a cycle between objects", "class N:\n    pass\n\na, b = N(), N()\na.o, b.o = b, a\n\ndef f(x):\n    return a.o\n"),
    by_job("datasets: arguments of a script", "args = None\n\ndef f(x):\n    return args.size\n",
           "import types, prep\nprep.args = types.SimpleNamespace(size=5, lr=1)\n"),
    must_stay("datasets: an argument of a script that is not read", {"prep.py": "args = None\n\ndef f(x):\n    return args.size\n"},
              swap("job.py", "lr=5", "lr=6"), job=JOB + "import types, prep\nprep.args = types.SimpleNamespace(size=1, lr=5)\n"),
    by_job("datasets: a vocabulary that grew after the import", "V = ['a']\n\ndef f(x):\n    return V.index(x)\n", "import prep\nprep.V += ['5']\n"),
    one("datasets: a function in a dict of functions", "T = {'a': lambda x: x * 1}\n\ndef f(x):\n    return T['a'](x)\n", "* 1", "* 2"),
    one("datasets: a class that the function makes", "class C:\n    def run(self, x):\n        return x * 1\n\ndef f(x):\n    return C().run(x)\n", "* 1", "* 2"),
    one("datasets: a classmethod that makes it",
        "class C:\n    def __init__(self, k):\n        self.k = k\n    @classmethod\n    def of(cls):\n        return cls(1)\n\ndef f(x):\n    return C.of().k\n",
        "cls(1)", "cls(2)"),
]  # fmt: skip
NOTEBOOKS = [
    of_notebook("a def moved to another cell", f"{G}---\nK = 1\n---\n{F}", f"K = 1\n---\n{G}{F}", changes=()),
    of_notebook("a cell between was added", f"{G}---\n{F}", f"{G}---\nK = 1\n---\n{F}", changes=()),
    of_notebook("a comment in a cell", f"{G}---\n{F}", f"# more\n{G}---\n{F}", changes=()),
    of_notebook("a helper in another cell", f"{G}---\n{F}", f"{G.replace('1', '2')}---\n{F}"),
    of_notebook("a helper defined again in a later cell", f"{G}---\n{F}", f"{G}---\n{F}---\n{G.replace('1', '2')}"),
    of_notebook("an import under another name", "import math as m\n---\ndef fn(x):\n    return m.floor(x)\n",
                "import cmath as m\n---\ndef fn(x):\n    return m.floor(x)\n"),
    of_notebook("a list changed by a later cell", "L = [1]\n---\ndef fn(x):\n    return L\n", "L = [1]\n---\ndef fn(x):\n    return L\n---\nL.append(2)\n"),
    of_notebook("a variable that no cell reads", "K = 1\nL = 1\n---\ndef fn(x):\n    return K\n", "K = 1\nL = 2\n---\ndef fn(x):\n    return K\n", changes=()),
    of_notebook("cells in another order", f"K = 1\n---\n{G}---\n{F}", f"{G}---\n{F}---\nK = 1\n", changes=()),
    of_notebook("a closure over a variable of a cell", "def make():\n    k = 1\n    return lambda x: x * k\n---\nfn = make()\n",
                "def make():\n    k = 2\n    return lambda x: x * k\n---\nfn = make()\n"),
    of_notebook("a class defined again", "class A:\n    k = 1\n---\ndef fn(x):\n    return A.k\n", "class A:\n    k = 2\n---\ndef fn(x):\n    return A.k\n"),
]  # fmt: skip
FLOWS = [
    calm("Prefect: white space in a task", BODY, "x * 1", "x  *  1"),
    calm("redun: the docstring of a task", 'def f(x):\n    "One."\n    return x\n', "One.", "Two."),
    calm("redun: an unused function beside a task", "def unused(x):\n    return 1\n\n" + BODY, "return 1", "return 2"),
    one("Prefect: an annotation that a library reads",
        "import pydantic\n\ndef g(x: int):\n    return x\n\ndef f(x):\n    return pydantic.validate_call(g)(x)\n", "x: int", "x: float"),
    two("Prefect: a helper in another module", "from helper import g\n\ndef f(x):\n    return g(x)\n", "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    two("Metaflow: a constant in another module", "import helper\n\ndef f(x):\n    return helper.K\n", "K = 1\n", "1", "2"),
    two("Metaflow: a base class in another module", "from helper import B\n\nclass S(B):\n    pass\n\ndef f(x):\n    return S().run(x)\n",
        "class B:\n    def run(self, x):\n        return x * 1\n", "* 1", "* 2"),
    two("redun: a module imported in the task", "def f(x):\n    import helper\n    return helper.g(x)\n", "def g(x):\n    return x * 1\n", "* 1", "* 2"),
    one("redun: an argument's default in a nested function", "def f(x):\n    def g(k=1):\n        return k\n    return g()\n", "k=1", "k=2"),
    one("Prefect: a task behind a class with __call__",
        "class T:\n    def __init__(self, fn):\n        self.fn = fn\n    def __call__(self, x):\n        return self.fn(x)\n\n@T\ndef f(x):\n    return x * 1\n",
        "* 1", "* 2"),
    one("Metaflow: a property that a step reads",
        "class S:\n    @property\n    def k(self):\n        return 1\n\ns = S()\n\ndef f(x):\n    return s.k\n", "return 1", "return 2"),
    must_stay("Prefect: the order of parameters in a call", {"prep.py": "def f(x, a, b):\n    return a, b\n"},
              swap("job.py", "'a': 1, 'b': 2", "'b': 2, 'a': 1"), job=JOB + "config = {'a': 1, 'b': 2}\n"),
]  # fmt: skip
COMPILERS = [
    two("vLLM: a file that the traced one imports",
        "from helper import scale\n\ndef layer(x):\n    return scale(x)\n\ndef f(x):\n    return layer(x)\n", "def scale(x):\n    return x * 1.0\n",
        "1.0", "2.0"),
    must_change("vLLM: an environment variable read by a helper",
                {"prep.py": "import envs\n\ndef f(x):\n    return envs.level()\n", "envs.py": "import os\n\ndef level():\n    return int(os.environ.get('VLLM_LEVEL', '0'))\n"},
                nothing, environ={"VLLM_LEVEL": ("1", "2")}),
    must_change("torch: an environment variable named by a constant",
                {"prep.py": "import os\nNAME = 'TORCH_LEVEL'\n\ndef f(x):\n    return os.getenv(NAME)\n"}, nothing,
                environ={"TORCH_LEVEL": ("1", "2")}),
    one("torch: a custom operator's body",
        "import torch\n\n@torch.library.custom_op('reports::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x * 1\n\ndef f(x):\n    return op(x)\n",
        "* 1", "* 2", is_refused=True),
    one("torch: a custom operator called by its name",
        "import torch\n\n@torch.library.custom_op('reports::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x * 1\n\ndef f(x):\n    return torch.ops.reports.op(x)\n",
        "* 1", "* 2", is_refused=True),
    one("torch: an operator of torch's by its name", "import torch\n\ndef f(x):\n    return torch.ops.aten.relu(x)\n", "relu", "tanh"),
    one("torch: a hook of a module",
        "import torch\nM = torch.nn.Linear(1, 1)\ntorch.nn.init.ones_(M.weight)\ntorch.nn.init.ones_(M.bias)\n\ndef hook(m, a, o):\n    return o * 1\n\nM.register_forward_hook(hook)\n\ndef f(x):\n    return M(x)\n",
        "o * 1", "o * 2"),
    one("torch: a method of a module",
        "import torch\n\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x * 1\n\nm = M()\n\ndef f(x):\n    return m(x)\n",
        "* 1", "* 2"),
    config("vLLM: a field of a nested config",
           "import dataclasses\n\n@dataclasses.dataclass\nclass I:\n    n: int = 5\n\n@dataclasses.dataclass\nclass C:\n    i: I\n\nc = C(I())"),
    alike("vLLM: a config with functions in it", "def f(x, c):\n    return c['g'](x)\n", JOB + "def g(x):\n    return x\n\nconfig = {'c': {'g': g}}\n"),
    must_change("-O where the function has an assert", {"prep.py": "def f(x):\n    assert x\n    return x\n"}, nothing, flags=("-O",)),
    must_change("-O where a module imported in the function has an assert",
                {"prep.py": "def f(x):\n    import helper\n    return helper.g(x)\n", "helper.py": "def g(x):\n    assert x\n    return x\n"},
                nothing, flags=("-O",)),
]  # fmt: skip
AXOLOTL = [
    config("axolotl: a template of the prompt", "c = {'template': '{a}5{b}'}"),
    config("axolotl: the order of data sets in a list", "c = ['5', '7'][::1]", "[::1]", "[::-1]"),
    config("axolotl: a limit of the length", "c = {'dataset': {'sequence_len': 5}}"),
    config("axolotl: None beside a missing key", "c = {'a': 1, 'b': None}", ", 'b': None", ""),
    config("axolotl: a float beside an int", "c = {'a': 5}", "5", "5.0"),
    by_job("axolotl: a token added to a tokenizer",
           "class Tokenizer:\n    def __init__(self):\n        self.vocab = {'a': 0}\n    def add(self, t):\n        self.vocab[t] = len(self.vocab)\n\nT = Tokenizer()\n\ndef f(x):\n    return T.vocab[x]\n",
           "import prep\nprep.T.add('5')\n"),
    by_job("axolotl: the template of a tokenizer", "class Tokenizer:\n    template = None\n\nT = Tokenizer()\n\ndef f(x):\n    return T.template\n",
           "import prep\nprep.T.template = '5'\n"),
    one("axolotl: a strategy looked up by its name", "def load_a(x):\n    return x * 1\n\ndef f(x, kind='a'):\n    return globals()['load_' + kind](x)\n", "* 1", "* 2"),
    two("axolotl: a strategy in a module of its name",
        "import importlib\n\ndef f(x, kind='helper'):\n    import helper\n    return importlib.import_module(kind).load(x)\n",
        "def load(x):\n    return x * 1\n", "* 1", "* 2"),
]  # fmt: skip
TOOLS = [
    by_job("joblib: what a cache holds", "import functools\n\n@functools.lru_cache\ndef g(x):\n    return x\n\ndef f(x):\n    return g(x)\n", "fn(5)\n"),
    must_stay("an upgrade of a packaging tool that a library requires",
              {"prep.py": "import fakelib\n\ndef f(x):\n    return fakelib.g(x)\n", **installed("fakelib", "1", "def g(x):\n    return x\n", "packaging"), **installed("packaging", "1", "")},
              swap(META.format("packaging"), "Version: 1", "Version: 2"), job=USES),
    must_change("a library that is imported in the function only", {"prep.py": "def f(x):\n    from fakelib import g\n    return g(x)\n", **LIB},
                swap(META.format("fakelib"), "Version: 1", "Version: 2"), job=USES),
]  # fmt: skip
CASES: list[Case] = [*JOBLIB, *DATASETS, *NOTEBOOKS, *FLOWS, *COMPILERS, *AXOLOTL, *TOOLS]  # fmt: skip
