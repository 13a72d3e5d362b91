"""Run-time values: what a definition's text does not say, and what the entry script set."""

from .case import Case, must_change, swap

READS_K = "import helper\n\ndef f(x):\n    return helper.K\n"


def set_by_job(name: str, prep: str, job: str, old: str, new: str, **files: str) -> Case:
    """A case in which only the entry script is edited, and that is not one of the files that count."""
    return must_change(
        name, {"prep.py": prep, **files}, swap("job.py", old, new), job="from prep import f as fn\n" + job
    )


CASES: list[Case] = [
    set_by_job("constant set from outside", "K = 0\n\ndef f(x):\n    return K\n", "import prep\nprep.K = 1\n", "= 1", "= 2"),
    set_by_job("constant of another module set from outside", READS_K, "import helper\nhelper.K = 1\n", "K = 1", "K = 2", **{"helper.py": "K = 0\n"}),
    set_by_job("class attribute set from outside", "class cfg:\n    SIZE = 0\n\ndef f(x):\n    return cfg.SIZE\n",
               "import prep\nprep.cfg.SIZE = 512\n", "512", "513"),
    set_by_job("args of argparse", "args = None\n\ndef f(x):\n    return args.size\n",
               "import argparse, prep\np = argparse.ArgumentParser()\np.add_argument('--size', default=1)\nprep.args = p.parse_args([])\n",
               "default=1", "default=2"),
    set_by_job("list grown from outside", "L = []\n\ndef f(x):\n    return L[0]\n", "import prep\nprep.L.append(1)\n", "append(1)", "append(2)"),
    set_by_job("dict value set from outside", "D = {}\n\ndef f(x):\n    return D['k']\n", "import prep\nprep.D['k'] = 1\n", "= 1", "= 2"),
    set_by_job("order in a plain dict, which the function sees as it is", "D = {}\n\ndef f(x):\n    return list(D)\n",
               "import prep\nfor k in 'ab':\n    prep.D[k] = 1\n", "'ab'", "'ba'"),
    set_by_job("order in an OrderedDict", "import collections\nD = collections.OrderedDict()\n\ndef f(x):\n    return list(D)\n",
               "import prep\nfor k in 'ab':\n    prep.D[k] = 1\n", "'ab'", "'ba'"),
    set_by_job("set grown from outside", "S = set()\n\ndef f(x):\n    return x in S\n", "import prep\nprep.S.add(1)\n", "add(1)", "add(2)"),
    set_by_job("array written from outside", "import numpy as np\nA = np.zeros(3)\n\ndef f(x):\n    return A\n",
               "import prep\nprep.A[1] = 1\n", "A[1]", "A[2]"),
    set_by_job("tensor written from outside", "import torch\nT = torch.zeros(3)\n\ndef f(x):\n    return T\n",
               "import prep\nprep.T[1] = 1\n", "T[1]", "T[2]"),
    set_by_job("regex", "import re\nR = None\n\ndef f(x):\n    return R.match(x)\n", "import re, prep\nprep.R = re.compile('a')\n", "'a'", "'b'"),
    set_by_job("flags of a regex", "import re\nR = None\n\ndef f(x):\n    return R.match(x)\n",
               "import re, prep\nprep.R = re.compile('a', re.I)\n", "re.I", "re.M"),
    set_by_job("dtype", "import torch\nT = None\n\ndef f(x):\n    return torch.zeros(1, dtype=T)\n",
               "import torch, prep\nprep.T = torch.int32\n", "int32", "int64"),
    set_by_job("helper replaced from outside", "def g(x):\n    return x\n\ndef f(x):\n    return g(x)\n",
               "import prep\nprep.g = lambda x: x * 1\n", "* 1", "* 2"),
    set_by_job("method replaced from outside", "class C:\n    def g(self, x):\n        return x\n\ndef f(x):\n    return C().g(x)\n",
               "import prep\nprep.C.g = lambda self, x: x * 1\n", "* 1", "* 2"),
    set_by_job("attribute of an instance", "class C:\n    def __init__(self, k):\n        self.k = k\n\nc = None\n\ndef f(x):\n    return c.k\n",
               "import prep\nprep.c = prep.C(1)\n", "C(1)", "C(2)"),
    set_by_job("slots of an instance", "class C:\n    __slots__ = ('k',)\n\nc = C()\n\ndef f(x):\n    return c.k\n",
               "import prep\nprep.c.k = 1\n", "= 1", "= 2"),
    set_by_job("state given by __getstate__", "class C:\n    def __getstate__(self):\n        return self.k\n\nc = C()\n\ndef f(x):\n    return c.k\n",
               "import prep\nprep.c.k = 1\n", "= 1", "= 2"),
    set_by_job("instance in an instance in a list", "class C:\n    pass\n\nL = [C()]\nL[0].c = C()\n\ndef f(x):\n    return L[0].c.k\n",
               "import prep\nprep.L[0].c.k = 1\n", "= 1", "= 2"),
    set_by_job("class of an instance", "class A:\n    K = 1\n\nclass B:\n    K = 2\n\nc = None\n\ndef f(x):\n    return c.K\n",
               "import prep\nprep.c = prep.A()\n", "prep.A", "prep.B"),
    set_by_job("mutable default changed from outside", "def f(x, k=[]):\n    return k\n", "fn.__defaults__[0].append(1)\n", "append(1)", "append(2)"),
    set_by_job("attribute of a function", "def f(x):\n    return f.k\n", "fn.k = 1\n", "= 1", "= 2"),
    set_by_job("closure's cell", "def make(k):\n    def g(x):\n        return x * k\n    return g\n\nf = None\n",
               "import prep\nfn = prep.make(1)\n", "make(1)", "make(2)"),
    set_by_job("closure over a closure", "def make(k):\n    def g(x):\n        def h(y):\n            return y * k\n        return h\n    return g(0)\n\nf = None\n",
               "import prep\nfn = prep.make(1)\n", "make(1)", "make(2)"),
    set_by_job("closure over a function", "def make(h):\n    return lambda x: h(x)\n\ndef p(x):\n    return x\n\ndef q(x):\n    return -x\n\nf = None\n",
               "import prep\nfn = prep.make(prep.p)\n", "prep.p)", "prep.q)"),
    set_by_job("positional argument of a partial", "def f(k, x):\n    return x * k\n", "import functools\nfn = functools.partial(fn, 1)\n", "fn, 1", "fn, 2"),
    set_by_job("keyword of a partial", "def f(x, k, m=0):\n    return x * k\n", "import functools\nfn = functools.partial(fn, k=1)\n", "k=1", "k=2"),
    set_by_job("partial of a partial", "def f(a, b, x):\n    return x\n",
               "import functools\nfn = functools.partial(functools.partial(fn, 1), 0)\n", "fn, 1", "fn, 2"),
    set_by_job("function inside a partial", "def f(x):\n    return x\n\ndef g(x):\n    return -x\n",
               "import functools, prep\nfn = functools.partial(prep.f)\n", "(prep.f)", "(prep.g)"),
    set_by_job("object that a bound method is bound to", "class C:\n    def g(self, x):\n        return self.k\n\nf = None\n",
               "import prep\nc = prep.C()\nc.k = 1\nfn = c.g\n", "k = 1", "k = 2"),
    set_by_job("class that a class method is bound to", "class A:\n    K = 1\n    @classmethod\n    def g(cls, x):\n        return cls.K\n\n"
               "class B(A):\n    K = 2\n\nf = None\n", "import prep\nfn = prep.A.g\n", "prep.A", "prep.B"),
    set_by_job("state of a callable object", "class C:\n    def __init__(self, k):\n        self.k = k\n    def __call__(self, x):\n        return x * self.k\n\nf = None\n",
               "import prep\nfn = prep.C(1)\n", "C(1)", "C(2)"),
    set_by_job("argument of an operator.itemgetter", "import operator\nG = None\n\ndef f(x):\n    return G(x)\n",
               "import operator, prep\nprep.G = operator.itemgetter(1)\n", "(1)", "(2)"),
    set_by_job("parameter of a module of torch.nn", "import torch\nM = torch.nn.Linear(1, 1)\n\ndef f(x):\n    return M(x)\n",
               "import torch, prep\ntorch.nn.init.constant_(prep.M.weight, 1.0)\ntorch.nn.init.zeros_(prep.M.bias)\n", "1.0", "2.0"),
    set_by_job("buffer of a module of torch.nn", "import torch\n\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
               "        self.register_buffer('b', torch.zeros(1))\n    def forward(self, x):\n        return x + self.b\n\nm = M()\n\ndef f(x):\n    return m(x)\n",
               "import prep\nprep.m.b += 1\n", "+= 1", "+= 2"),
    set_by_job("eval for train", "import torch\nM = torch.nn.Dropout(0.5)\n\ndef f(x):\n    return M(x)\n",
               "import prep\nprep.M.eval()\n", "eval()", "train()"),
    set_by_job("plain attribute of a module of torch.nn", "import torch\nM = torch.nn.Dropout(0.5)\n\ndef f(x):\n    return M(x)\n",
               "import prep\nprep.M.p = 0.1\n", "0.1", "0.2"),
    must_change("forward of the project's module of torch.nn", {
        "prep.py": "import torch\n\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x * 1\n\nm = M()\n\ndef f(x):\n    return m(x)\n"},
        swap("prep.py", "* 1", "* 2")),
    set_by_job("parameter of a transform in a Compose", "class Compose:\n    def __init__(self, ts):\n        self.ts = ts\n    def __call__(self, x):\n"
               "        for t in self.ts:\n            x = t(x)\n        return x\n\nclass Scale:\n    def __init__(self, k):\n        self.k = k\n"
               "    def __call__(self, x):\n        return x * self.k\n\nf = None\n",
               "import prep\nfn = prep.Compose([prep.Scale(1)])\n", "Scale(1)", "Scale(2)"),
    set_by_job("order of the transforms in a Compose", "class Compose:\n    def __init__(self, ts):\n        self.ts = ts\n    def __call__(self, x):\n"
               "        return self.ts[1](self.ts[0](x))\n\ndef p(x):\n    return x + 1\n\ndef q(x):\n    return x * 2\n\nf = None\n",
               "import prep\nfn = prep.Compose([prep.p, prep.q])\n", "prep.p, prep.q", "prep.q, prep.p"),
    set_by_job("vocabulary of a tokenizer held as a global", "T = None\n\ndef f(x):\n    return T.encode(x).ids\n",
               "import prep\nfrom tokenizers import Tokenizer, models\nprep.T = Tokenizer(models.WordLevel({'a': 0, 'b': 1}, 'a'))\n",
               "'b': 1", "'c': 1"),
    set_by_job("default dtype of torch", "import torch\n\ndef f(x):\n    return torch.zeros(1)\n",
               "import torch\ntorch.set_default_dtype(torch.float64)\n", "float64", "float32"),
    set_by_job("global that a decorator's wrapper reads", "K = 0\n\ndef d(fn):\n    def w(x):\n        return fn(x) * K\n    return w\n\n@d\ndef f(x):\n    return x\n",
               "import prep\nprep.K = 1\n", "= 1", "= 2"),
    set_by_job("global that a base class's method reads", "K = 0\n\nclass B:\n    def g(self, x):\n        return K\n\nclass C(B):\n    pass\n\nf = C().g\n",
               "import prep\nprep.K = 1\n", "= 1", "= 2"),
    set_by_job("dict of functions", "def p(x):\n    return x\n\ndef q(x):\n    return -x\n\nD = {}\n\ndef f(x):\n    return D['g'](x)\n",
               "import prep\nprep.D['g'] = prep.p\n", "prep.p", "prep.q"),
]  # fmt: skip
