"""What type checkers make of a user's script: mypy, and pyright, which editors use."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import prepcache
from support.pages import REPO

CLIENT = Path(prepcache.__file__).parents[1]
EXAMPLES = REPO / "examples"
OF_USERS = [str(EXAMPLES / name) for name in ("audio.py", "images.py", "text_lines.py")]
"""Whole scripts, which e2e/test_examples.py runs."""

SCRIPT = """
from collections.abc import Iterator
from pathlib import Path

import prepcache

files = [Path("a"), Path("b")]

def decode(path: Path, size: int = 3) -> bytes:
    return path.read_bytes()[:size]

def count(data: bytes) -> int:
    return len(data)

def lines(path: Path) -> Iterator[str]:
    yield from path.read_text().splitlines()

@prepcache.cached(version="1")
def vocabulary(paths: list[Path], size: int = 3) -> dict[str, int]:
    return {}

class Mine(prepcache.CachedDataset[bytes]):
    pass

ds = prepcache.CachedDataset(files, decode, {"size": 3}, code="function", trust="content")
reveal_type(ds)  # CachedDataset[bytes]
reveal_type(ds[0])  # bytes
reveal_type(prepcache.CachedDataset(files, decode, transform=count)[0])  # int
reveal_type(prepcache.CachedDataset(files, lines, expand=True)[0])  # str
reveal_type(list(prepcache.CachedIterableDataset(iter(files), decode)))  # list[bytes]
reveal_type(Mine(files, decode)[0])  # bytes
reveal_type(prepcache.cached(decode, Path("a")))  # bytes
reveal_type(vocabulary(files, size=4))  # dict[str, int]
reveal_type(ds.report().hit)  # int
reveal_type(prepcache.CachedDataset.wrap([b"a"], key=lambda i: i)[0])  # bytes
recipe = prepcache.recipe(decode, config={"size": 3})
prepcache.CachedDataset(files, recipe, name=None)
for batch in prepcache.Loader(ds, 32, shuffle=True, collate_fn=prepcache.pad_collate):
    pass
prepcache.Loader(ds, 32, collate_fn=prepcache.pad_collate(0, also="mask"))

prepcache.CachedDataset(files, decode, code="scrpt")  # error
prepcache.CachedDataset(files, decode, trust="contents")  # error
prepcache.CachedDataset(files, decode, read="byte")  # error
prepcache.CachedDataset(files, decode, num_worker=3)  # error
prepcache.Loader(ds, 32, num_workers=2)  # error
vocabulary(files, sice=4)  # error
prepcache.recipe(decode, read="byte")  # error
"""
LINES = SCRIPT.splitlines()
WANTED = [line.split("# ")[-1] for line in LINES if line.startswith("reveal_type")]
WRONG = [number for number, line in enumerate(LINES, 1) if line.endswith("# error")]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_mypy_knows_samples_options_and_decorated_functions(script: Path) -> None:
    # Without libraries, whose stubs take seconds to read.
    options = ["--strict", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *options, "--config-file=", "--cache-dir=/dev/null", str(script)]
    command += OF_USERS
    environ = {"MYPYPATH": str(CLIENT)}
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout
    revealed = [re.sub(r"\w+\.(?=[A-Za-z])", "", one) for one in re.findall(r'Revealed type is "(.*)"', said)]
    assert revealed == WANTED, said
    assert sorted({int(line) for line in re.findall(r"script.py:(\d+): error", said)}) == WRONG, said
    assert "examples/" not in said, said


def test_pyright_knows_samples_options_and_decorated_functions(script):
    settings: dict[str, Any] = {"typeCheckingMode": "standard", "include": ["script.py", *OF_USERS]}
    settings["extraPaths"] = [str(CLIENT), str(EXAMPLES)]
    script.with_name("pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    run = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    told = json.loads(run.stdout)["generalDiagnostics"]
    revealed = [one["message"].split('" is "')[-1][:-1] for one in told if one["severity"] == "information"]
    assert revealed == WANTED, told
    wrong = [one["range"]["start"]["line"] + 1 for one in told if one["severity"] == "error"]
    assert sorted(set(wrong)) == WRONG, told
    assert {one["file"] for one in told} == {str(script)}, told
