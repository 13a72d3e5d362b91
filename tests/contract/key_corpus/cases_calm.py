"""Calm: what may differ between two starts without a miss. (The calm cases of data and config stand with those.)"""

from .case import JOB, Case, move_project, must_stay, nothing, remove, rename, swap, touch, write

PREP = """\
import os
from helper import g

SIZE = 3
UNREACHED = 4


class Unreached:
    K = 1


def unreached(x):
    return UNREACHED + SIZE


def f(x, k=1):
    "One line."
    # a comment
    total = g(x) + SIZE
    return total * k


if __name__ == "__main__":
    print("main")
"""
FILES = {
    "prep.py": PREP,
    "helper.py": "def g(x):\n    return x in {'a', 'b', 'c'}\n\n\ndef other(x):\n    return 1\n",
    "aside.py": "K = 1\n",
}


def stay(name: str, *edits: object, **more: object) -> Case:
    return must_stay(name, more.pop("files", FILES), *edits, **more)  # type: ignore[arg-type]


def text(name: str, old: str, new: str, file: str = "prep.py") -> Case:
    """An edit of a counted file that no reached definition can notice."""
    return must_stay(name, FILES, swap(file, old, new), script_changes=True)


CASES: list[Case] = [
    stay("nothing at all", nothing),
    stay("another place of the checkout", move_project),
    stay("a file touched", touch("prep.py")),
    stay("a new file beside the imported ones", write("new.py", "K = 1\n")),
    stay("a new package beside the imported ones", write("newpack/__init__.py", "K = 1\n")),
    stay("a file that nothing imports, edited", write("aside.py", "K = 2\n")),
    stay("a file that nothing imports, gone", remove("aside.py")),
    stay("a file that nothing imports, renamed", rename("aside.py", "aside2.py")),
    stay("data beside the code", write("data.txt", "one")),
    stay("bytecode beside the code", write("__pycache__/prep.cpython-311.pyc", "")),
    stay("the entry script: a line more", swap("job.py", JOB, JOB + "K = 1\n")),
    stay("the entry script: a comment", swap("job.py", JOB, "# a comment\n" + JOB)),
    stay("the entry script: another import", swap("job.py", JOB, "import json\n" + JOB)),
    stay("the entry script: the function under another name", swap("job.py", JOB, "import prep\nfn = prep.f\n")),
    stay("the entry script: its arguments", swap("job.py", JOB, "import sys\nsys.argv.append('--lr=1')\n" + JOB)),
    stay("the entry script: working directory", swap("job.py", JOB, JOB + "import os\nos.chdir('/')\n")),
    stay("the entry script: order on sys.path", swap("job.py", JOB, "import sys\nsys.path.append('/tmp')\n" + JOB)),
    stay("the entry script: level of a logger", swap("job.py", JOB, JOB + "import logging\nlogging.getLogger('prep').setLevel(10)\n")),
    stay("the entry script: seed of the generators", swap("job.py", JOB, JOB + "import random\nrandom.seed(7)\n")),
    stay("the entry script: a trace function, as debuggers set", swap("job.py", JOB, "import sys\nsys.settrace(lambda *a: None)\n" + JOB)),
    stay("the entry script: a profile function", swap("job.py", JOB, "import sys\nsys.setprofile(lambda *a: None)\n" + JOB)),
    stay("the entry script: an unreached global set", swap("job.py", JOB, JOB + "import prep\nprep.UNREACHED = 9\n")),
    stay("the entry script: a lock in an unreached global", swap("job.py", JOB, JOB + "import prep, threading\nprep.L = threading.Lock()\n")),
    stay("the entry script: the function called before", swap("job.py", JOB, JOB + "fn('a')\n")),
    stay("the entry script: one value set to what it is", swap("job.py", JOB, JOB + "import prep\nprep.SIZE = 1 + 2\n")),
    stay("the entry script: the module reloaded", swap("job.py", JOB, JOB + "import importlib, prep\nfn = importlib.reload(prep).f\n")),
    stay("the entry script: more threads", swap("job.py", JOB, JOB + "import torch\ntorch.set_num_threads(1)\n")),
    stay("-O where nothing reached has an assert", nothing, flags=("-O",)),
    stay("-OO where nothing reached reads a docstring", nothing, flags=("-OO",)),
    stay("isolated from user site", nothing, flags=("-s",)),
    stay("-X dev", nothing, flags=("-X", "dev")),
    stay("bytecode not written", nothing, environ={"PYTHONDONTWRITEBYTECODE": ("", "1")}),
    stay("another home", nothing, environ={"CORPUS_HOME": ("/a", "/b")}),
    stay("where a logger of the module writes", swap("job.py", "DEBUG", "ERROR"),
         files={"prep.py": "import logging\nlog = logging.getLogger(__name__)\n\ndef f(x):\n    log.info('x')\n    return x\n"},
         job=JOB + "import prep\nprep.log.setLevel('DEBUG')\n"),
    stay("a standard stream in a global: its buffering", swap("job.py", "=True", "=False"),
         files={"prep.py": "import sys\nERR = sys.stderr\n\ndef f(x):\n    print(x, file=ERR)\n    return x\n"},
         job=JOB + "import sys\nsys.stderr.reconfigure(line_buffering=True)\n"),
    stay("a standard stream in a global: where it leads", swap("job.py", "'/dev/null'", "'err.txt'"),
         files={"prep.py": "import sys\nERR = sys.stderr\n\ndef f(x):\n    print(x, file=ERR)\n    return x\n"},
         job="import sys\nsys.stderr = open('/dev/null', 'w')\n" + JOB),
    stay("order of insertion into a global set", swap("job.py", "'abcd'", "'dcba'"),
         files={"prep.py": "S = set()\n\ndef f(x):\n    return x in S\n"}, job=JOB + "import prep\nprep.S.update('abcd')\n"),
    stay("untracked= names a global", swap("job.py", "= 1", "= 2"), files={"prep.py": "K = 0\n\ndef f(x):\n    return K\n"},
         job=JOB + "import prep\nprep.K = 1\noptions = {'untracked': ('K',)}\n"),
    stay("a cell of a notebook run twice", swap("job.py", "range(1)", "range(2)"), files={},
         job="import linecache\ncell = 'def fn(x):\\n    return x * 1\\n'\nfor i in range(1):\n    name = f'<ipython-input-{i}-abc>'\n"
         "    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)\n    exec(compile(cell, name, 'exec'))\n"),
    stay("the instances made before", swap("job.py", "range(1)", "range(5)"), files={"prep.py": "class C:\n    def g(self, x):\n        return x\n\nf = None\n"},
         job="import prep\nfor i in range(1):\n    fn = prep.C().g\n"),
    text("a comment", "# a comment", "# another"),
    text("a docstring", '"One line."', '"Another line."'),
    text("a docstring taken away", '    "One line."\n', ""),
    text("blank lines", "    total =", "\n\n    total ="),
    text("spaces", "g(x) + SIZE", "g( x )  +  SIZE"),
    text("parentheses that mean nothing", "return total * k", "return (total * k)"),
    text("quotes of another kind", "{'a', 'b', 'c'}", '{"a", "b", "c"}', "helper.py"),
    text("an unreached function", "return UNREACHED + SIZE", "return 0"),
    text("an unreached function, of a helper's file", "return 1", "return 2", "helper.py"),
    text("an unreached function, taken away", "def unreached(x):\n    return UNREACHED + SIZE\n", ""),
    text("an unreached class", "K = 1", "K = 2"),
    text("an unreached constant", "UNREACHED = 4", "UNREACHED = 5"),
    text("a function more", "class Unreached:", "def more(x):\n    return 1\n\n\nclass Unreached:"),
    text("an import more", "import os\n", "import os\nimport json\n"),
    text("an import less", "import os\n", ""),
    text("order of definitions", "SIZE = 3\nUNREACHED = 4\n", "UNREACHED = 4\nSIZE = 3\n"),
    text("what runs as a script", 'print("main")', 'print("other")'),
    text("line endings", "SIZE = 3\n", "SIZE = 3\r\n"),
    text("a number in another notation", "SIZE = 3", "SIZE = 0x3"),
    text("an encoding's declaration", "import os\n", "# -*- coding: utf-8 -*-\nimport os\n"),
]  # fmt: skip
