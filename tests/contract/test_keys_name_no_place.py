"""Keys name no place: one project, its data and its config have the same keys wherever they lie."""

import json
import os
import subprocess
import sys
from pathlib import Path

PREP = """
import enum
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import helper

HERE = Path(__file__).parent
WORDS = HERE / "words.txt"
LEVELS = {"low", "middle", "high", "höchst"}
PATTERN = re.compile("[a-zä]+")

class Mode(enum.Enum):
    FAST = "fast"

@dataclass
class Settings:
    size: int = 3
    names: frozenset = frozenset({"b", "a", "c"})
    extra: dict = field(default_factory=lambda: {"z": 1, "a": {"x", "y"}})

class Prep:
    def __init__(self, settings):
        self.settings, self.weights, self.seen = settings, np.arange(4.0), {1.5: None}

    def __call__(self, item, **config):
        return helper.scaled(item, self.settings.size), WORDS.read_text(), LEVELS, PATTERN, Mode.FAST

def prep(item, **config):
    return helper.scaled(item, 2), WORDS.read_text(), sorted(LEVELS), PATTERN.findall("a"), Mode.FAST
"""
HELPER = """
from functools import partial
import math

def _scaled(item, factor, *, base):
    return math.log(factor, base), item

scaled = partial(_scaled, base=10)
"""
ASK = """
import json, sys
from pathlib import Path

project, data = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(project))
import prepcache
from pack import prep

config = {
    "path": Path("words.txt"), "sizes": {3, 1, 2}, "options": {"b": [1.0, None], "a": ("x", b"y")},
    "settings": prep.Settings(), "mode": prep.Mode.FAST, "names": {"ä", "b", "c"},
}
found = {}
for mode in ("script", "function"):
    found[f"function, {mode}"] = prepcache.recipe(prep.prep, config=config, code=mode).digest
    found[f"object, {mode}"] = prepcache.recipe(prep.Prep(prep.Settings()), config=config, code=mode).digest
files = sorted(data.rglob("*.bin"))
for name, item in {
    "path": files[0], "text": str(files[1]), "folder": data / "folder",
    "tree": prepcache.tree(data / "folder"),
    "record": {"image": files[2], "label": "train", "tags": {"x", "y", "z"}},
}.items():
    found[f"item, {name}"] = prepcache.item_digest(item, root=data)
found["files"] = [prepcache.item_digest(file, root=data) for file in files]
print(json.dumps(found))
"""


def lay_out(place: Path, order: int) -> tuple[Path, Path, Path]:
    """The checkout, the data and the working directory, their files made in one order or the other."""
    checkout, data, cwd = place / "check out" / f"proj{order}", place / f"data{order}", place / "cwd"
    files = {
        checkout / "pyproject.toml": "[project]",
        checkout / "pack" / "__init__.py": "",
        checkout / "pack" / "prep.py": PREP,
        checkout / "pack" / "helper.py": HELPER,
        checkout / "pack" / "words.txt": "one two",
        cwd / "words.txt": "three four",
        place / "ask.py": ASK,
        **{data / f"{name}.bin": name for name in ("a", "b", "ä", "c d")},
        **{data / "folder" / "inner" / f"{n}.bin": str(n) for n in range(4)},
    }
    for path, text in sorted(files.items(), reverse=bool(order % 2)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return checkout, data, cwd


ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"},
    {"PYTHONHASHSEED": "2", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "USER": "other"},
    {"PYTHONHASHSEED": "3", "LANG": "de_DE.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "40"},
    {"PYTHONHASHSEED": "random", "LC_ALL": "POSIX", "PYTHONUTF8": "1", "TMPDIR": "tmp"},
)


def test_five_environments_have_the_same_keys(tmp_path):
    found = []
    for number, environment in enumerate(ENVIRONMENTS):
        place = tmp_path / ("deep/er" * number or "flat") / f"place {number}"
        checkout, data, cwd = lay_out(place, number)
        home = place / "home"
        (home / "tmp").mkdir(parents=True)
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        environ = {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), **environment}
        if "TMPDIR" in environ:
            environ["TMPDIR"] = str(home / "tmp")
        command = [sys.executable, str(place / "ask.py"), str(checkout), str(data)]
        ended = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout))
    for other in found[1:]:
        assert other == found[0]
    assert len(set(found[0]["files"])) == 8
