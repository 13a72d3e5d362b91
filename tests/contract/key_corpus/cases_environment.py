"""Environment and observed inputs: installed distributions, environment variables, and files found only by running."""

import shutil

from .case import Case, must_change, must_stay, remove, swap, write


def installed(name: str, version: str, body: str, requires: str = "") -> dict[str, str]:
    """The files of an installed distribution, under site/."""
    info = f"site/{name}-1.dist-info"
    need = f"Requires-Dist: {requires}\n" if requires else ""
    return {
        f"site/{name}/__init__.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{need}",
        f"{info}/RECORD": f"{name}/__init__.py,sha256=one,1\n{name}-1.dist-info/METADATA,,\n",
        f"{info}/top_level.txt": name + "\n",
        f"{info}/INSTALLER": "pip\n",
    }


SITE = "import pathlib, sys\nsys.path.append(str(pathlib.Path(__file__).parent / 'site'))\n"
USES = SITE + "from prep import f as fn\n"
PREP = {"prep.py": "import fakelib\n\ndef f(x):\n    return fakelib.g(x)\n"}
LIB = installed("fakelib", "1", "def g(x):\n    return x\n")
BASE = installed("fakebase", "1", "")
ASIDE = installed("fakeaside", "1", "")
META, RECORD = "site/{}-1.dist-info/METADATA", "site/{}-1.dist-info/RECORD"
OPENS = "from prep import f as fn\nimport pathlib\nroot = pathlib.Path(__file__).parent\nitems = [0]\n"


def observed(
    name: str, source: str, *edits: object, job: str = OPENS, stays: bool = False, **files: str
) -> Case:
    """A case in which the function reaches an input that only running it shows."""
    make = must_stay if stays else must_change
    return make(f"observed: {name}", {"prep.py": source, **files}, *edits, job=job, runs=True)  # type: ignore[arg-type]


HERE = "import pathlib\nHERE = pathlib.Path(__file__).parent\n\n"

CASES: list[Case] = [
    must_change("distribution's version", {**PREP, **LIB}, swap(META.format("fakelib"), "Version: 1", "Version: 2"), job=USES),
    must_change("distribution's files, same version", {**PREP, **LIB}, swap(RECORD.format("fakelib"), "sha256=one", "sha256=two"), job=USES),
    must_change("version of what a distribution requires",
                {**PREP, **BASE, **installed("fakelib", "1", "def g(x):\n    return x\n", "fakebase")},
                swap(META.format("fakebase"), "Version: 1", "Version: 2"), job=USES),
    must_change("distribution imported in the function", {"prep.py": "def f(x):\n    import fakelib\n    return fakelib.g(x)\n", **LIB},
                swap(META.format("fakelib"), "Version: 1", "Version: 2"), job=USES),
    must_change("distribution imported by a helper", {"prep.py": "from helper import g as f\n",
                "helper.py": "import fakelib\n\ndef g(x):\n    return fakelib.g(x)\n", **LIB},
                swap(META.format("fakelib"), "Version: 1", "Version: 2"), job=USES),
    must_change("environment= names a distribution", {"prep.py": "def f(x):\n    return x\n", **ASIDE},
                swap(META.format("fakeaside"), "Version: 1", "Version: 2"), job=USES + "options = {'environment': ['fakeaside']}\n"),
    must_stay("distribution that nothing imports", {**PREP, **LIB, **ASIDE}, swap(META.format("fakeaside"), "Version: 1", "Version: 2"), job=USES),
    must_stay("environment= leaves a distribution out", {**PREP, **LIB, **ASIDE}, swap(META.format("fakelib"), "Version: 1", "Version: 2"),
              job=USES + "options = {'environment': ['fakeaside']}\n"),
    must_change("environment variable by os.environ[...]", {"prep.py": "import os\n\ndef f(x):\n    return os.environ['CORPUS_A']\n"}, lambda p: None,
                environ={"CORPUS_A": ("1", "2")}),
    must_change("environment variable by os.getenv", {"prep.py": "import os\n\ndef f(x):\n    return os.getenv('CORPUS_B')\n"}, lambda p: None,
                environ={"CORPUS_B": ("1", "2")}),
    must_change("environment variable by environ.get in a helper",
                {"prep.py": "from helper import g as f\n", "helper.py": "from os import environ\n\ndef g(x):\n    return environ.get('CORPUS_C', '')\n"},
                lambda p: None, environ={"CORPUS_C": ("1", "2")}),
    must_change("environment variable in a format", {"prep.py": "import os\n\ndef f(x):\n    return '{CORPUS_F}/x'.format(**os.environ)\n"},
                lambda p: None, environ={"CORPUS_F": ("1", "2")}),
    must_change("environment variable in a format with %", {"prep.py": "import os\n\ndef f(x):\n    return '%(CORPUS_G)s' % os.environ\n"},
                lambda p: None, environ={"CORPUS_G": ("1", "2")}),
    must_change("environment variable by os.environb[...]", {"prep.py": "import os\n\ndef f(x):\n    return os.environb[b'CORPUS_H']\n"},
                lambda p: None, environ={"CORPUS_H": ("1", "2")}),
    must_change("environment variable by os.getenvb", {"prep.py": "import os\n\ndef f(x):\n    return os.getenvb(b'CORPUS_I')\n"},
                lambda p: None, environ={"CORPUS_I": ("1", "2")}),
    must_change("environment variable in a command", {"prep.py": "import subprocess\n\ndef f(x):\n    return subprocess.check_output('echo $CORPUS_L', shell=True)\n"},
                lambda p: None, environ={"CORPUS_L": ("1", "2")}),
    must_stay("environment variable that no format names", {"prep.py": "import os\n\ndef f(x):\n    return '{CORPUS_J}'.format(**os.environ)\n"},
              lambda p: None, environ={"CORPUS_J": ("1", "1"), "CORPUS_K": ("1", "2")}),
    must_stay("environment variable that nothing names", {"prep.py": "import os\n\ndef f(x):\n    return os.getenv('CORPUS_D')\n"}, lambda p: None,
              environ={"CORPUS_E": ("1", "2")}),
    observed("file by open()", HERE + "def f(x):\n    with open(HERE / 'v.txt') as file:\n        return file.read()\n",
             write("v.txt", "two"), **{"v.txt": "one"}),
    observed("file by Path.read_bytes", HERE + "def f(x):\n    return HERE.joinpath('v.txt').read_bytes()\n", write("v.txt", "two"), **{"v.txt": "one"}),
    observed("file by numpy.fromfile", HERE + "import numpy as np\n\ndef f(x):\n    return np.fromfile(HERE / 'v.bin', 'u1')\n",
             write("v.bin", "two"), **{"v.bin": "one"}),
    observed("file by numpy.load", HERE + "import io, numpy as np\n\ndef f(x):\n    try:\n        return np.load(HERE / 'v.npy')\n"
             "    except ValueError:\n        return 0\n", write("v.npy", "two"), **{"v.npy": "one"}),
    observed("file by os.open", HERE + "import os\n\ndef f(x):\n    fd = os.open(HERE / 'v.txt', os.O_RDONLY)\n    os.close(fd)\n",
             write("v.txt", "two"), **{"v.txt": "one"}),
    observed("file opened in a thread", HERE + "import threading\n\ndef f(x):\n    t = threading.Thread(target=lambda: (HERE / 'v.txt').read_text())\n"
             "    t.start()\n    t.join()\n", write("v.txt", "two"), **{"v.txt": "one"}),
    observed("file that went", HERE + "def f(x):\n    p = HERE / 'v.txt'\n    return p.read_text() if p.exists() else ''\n",
             remove("v.txt"), **{"v.txt": "one"}),
    observed("file that was not there", HERE + "def f(x):\n    try:\n        return (HERE / 'v.txt').read_text()\n    except FileNotFoundError:\n        return ''\n",
             write("v.txt", "one")),
    observed("folder that went", HERE + "def f(x):\n    return (HERE / 'flags').is_dir()\n",
             lambda p: shutil.rmtree(p / "flags"), **{"flags/one": ""}),
    observed("folder that is a file now", HERE + "import os\n\ndef f(x):\n    return os.path.isdir(HERE / 'flags')\n",
             lambda p: shutil.rmtree(p / "flags"), write("flags", ""), **{"flags/one": ""}),
    observed("folder that is asked for, and is fuller now", HERE + "import os\n\ndef f(x):\n    return os.path.exists(HERE / 'flags')\n",
             write("flags/new", ""), stays=True, **{"flags/one": ""}),
    observed("module by a computed name", "import importlib\n\ndef f(x):\n    return importlib.import_module(str('plug') + 'in').g(x)\n",
             write("plugin.py", "def g(x):\n    return 2\n"), **{"plugin.py": "def g(x):\n    return 1\n"}),
    observed("file beside the one that is opened", HERE + "def f(x):\n    return (HERE / 'v.txt').read_text()\n",
             write("w.txt", "two"), stays=True, **{"v.txt": "one", "w.txt": "one"}),
    observed("opened file touched", HERE + "def f(x):\n    return (HERE / 'v.txt').read_text()\n",
             lambda p: (p / "v.txt").touch(), stays=True, **{"v.txt": "one"}),
    observed("file of a library that is not imported", HERE + "def f(x):\n    return (HERE / 'site/fakelib/d.txt').read_text()\n",
             swap(META.format("fakelib"), "Version: 1", "Version: 2"), job=SITE + OPENS, **LIB, **{"site/fakelib/d.txt": "one"}),
    observed("file that the function writes for itself", HERE + "def f(x):\n    p = HERE / 'scratch.txt'\n    p.write_text('1')\n    return p.read_text()\n",
             write("scratch.txt", "two"), stays=True),
]  # fmt: skip
