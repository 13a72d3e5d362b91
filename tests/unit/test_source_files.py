"""Source files that are read without being imported: their state, their code, and what runs of them."""

from __future__ import annotations

import marshal
import os
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import ModuleType

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.code import import_graph
from prepcache.keys.code.import_graph import Import, imports_in, read_source
from prepcache.keys.outdated import runs_as_written
from support.projects import Project, project_fixture  # noqa: F401


def put(path: Path, text: str, *, age_s: float = 100) -> str:
    path.write_text(text)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return str(path)


@pytest.fixture(name="reads")
def _reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each file that is read."""
    found: list[str] = []
    read = import_graph._read_stamped
    monkeypatch.setattr(import_graph, "_read_stamped", lambda path: found.append(path) or read(path))
    return found


def test_a_file_is_read_again_only_if_it_may_have_changed(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "a.py", "K = 1")
    monkeypatch.setattr(import_graph, "racy_window_ns", lambda device: -1 << 60)  # its change time is of now
    first = read_source(path, "a")
    assert read_source(path, "a") is first and len(reads) == 1
    put(tmp_path / "a.py", "K = 2")
    assert read_source(path, "a").digest != first.digest
    monkeypatch.setattr(import_graph, "racy_window_ns", lambda device: 1 << 60)
    read_source(path, "a")
    assert len(reads) == 3, "a young stamp does not tell a later write"


def test_the_bytecode_cache_is_used_as_an_import_would_use_it(tmp_path: Path) -> None:
    path = put(tmp_path / "a.py", "K = 1")
    cached = Path(cache_from_source(path))
    cached.parent.mkdir()
    made = SourceFileLoader("a", path)
    code = compile("K = 3", path, "exec")
    info = (tmp_path / "a.py").stat()
    header = MAGIC_NUMBER + b"".join(
        number.to_bytes(4, "little") for number in (0, int(info.st_mtime), info.st_size)
    )
    cached.write_bytes(header + marshal.dumps(code))
    assert read_source(path, "a").code.co_consts[0] == made.get_code("a").co_consts[0] == 3
    cached.write_bytes(b"damaged")
    put(tmp_path / "a.py", "K = 1", age_s=200)
    assert read_source(path, "a").code.co_consts[0] == 1


@pytest.mark.parametrize("text", ["def f(:", "\0"])
def test_a_file_that_cannot_be_compiled_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = put(tmp_path / "a.py", text)
    with pytest.raises(UnkeyableError, match=r"a\.py cannot be parsed.*code=None"):
        read_source(path, "a.py")
    with pytest.raises(UnkeyableError, match="cannot be read"):
        read_source(str(tmp_path / "absent.py"), "absent")


IMPORTS = {
    "import a": [Import(0, "a")],
    "import a.b as c": [Import(0, "a.b")],
    "from a import b, c": [Import(0, "a", ("b", "c"))],
    "from .. import b": [Import(2, "", ("b",))],
    "from a import *": [Import(0, "a", ("*",))],
    "def f():\n  import a\n  def g():\n    import b": [Import(0, "a"), Import(0, "b")],
    "import importlib\nimportlib.import_module('a.b')": [Import(0, "importlib"), Import(0, "a.b")],
    "__import__('a')": [Import(0, "a")],
    "def f(n):\n  __import__('a.' + n)": [],
    "import typing\nif typing.TYPE_CHECKING:\n  import a": [Import(0, "typing"), Import(0, "a")],
    "def f(a): return import_module(a, '.b')": [Import(1, "b")],
}


@pytest.mark.parametrize("text", IMPORTS)
def test_imports_are_read_from_byte_code(text: str) -> None:
    assert list(imports_in(compile(text, "x.py", "exec", dont_inherit=True))) == IMPORTS[text]


def test_what_a_text_binds_is_told_from_what_is_computed(tmp_path: Path) -> None:
    text = "A = 1\nB = [1, {'k': (2,)}]\nC = len(B)\nD = 1\nD = 2\nE: int = 3\n"
    source = read_source(put(tmp_path / "a.py", text), "a")
    assert source.literals == {"A": 1, "B": [1, {"k": (2,)}], "E": 3}
    assert source.says("A", 1) and not source.says("A", True) and not source.says("C", 2)


EDITS = {
    "nothing": ("", True),
    "a comment": ("# more", True),
    "a constant": ("K = 2", False),
    "a function": ("def f(): return 2", False),
    "a method": ("class A:\n  def m(self): return 2", False),
    "a syntax error": ("def f(", False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_whether_a_module_runs_as_its_file_says(project: Project, edit: str) -> None:
    text = "K = 1\ndef f(): return 1\nclass A:\n  def m(self): return 1\n"
    path = project.put("late.py", text)
    assert runs_as_written(str(path)), "nothing was loaded from it"
    module = project.load("late")
    assert isinstance(module, ModuleType) and sys.modules["late"] is module
    more, is_same = EDITS[edit]
    project.put(
        "late.py", text.replace("K = 1\n", f"{more}\n") if edit == "a constant" else f"{text}{more}\n"
    )
    assert runs_as_written(str(path)) is is_same


FILLS = {
    "a decorator": ("R = {}\ndef add(f): R[f.__name__] = f\n@add\ndef g(): pass\n", "", True),
    "a call": ("R = []\nR.append(1)\n", "", True),
    "the job": ("R = {}\ndef g(): return R\n", "R['a'] = 1", False),
}


@pytest.mark.parametrize("way", FILLS)
@pytest.mark.parametrize("is_older", [True, False])
def test_what_a_file_fills_itself_is_as_written_if_it_is_older(
    project: Project, monkeypatch: pytest.MonkeyPatch, way: str, is_older: bool
) -> None:
    """Of one that is younger than the process it is not told which text was loaded."""
    text, change, is_own = FILLS[way]
    path = project.put("late.py", text)
    exec(change, vars(project.load("late")))
    age = 10**10 if is_older else -(10**10)
    monkeypatch.setattr("prepcache.keys.outdated.started_ns", lambda: path.stat().st_ctime_ns + age)
    assert runs_as_written(str(path)) is (is_own and is_older)
