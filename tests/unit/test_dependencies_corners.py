"""Corners in which a walk over the code could confuse two things, or miss one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}
CLIENT = str(Path(__file__).resolve().parents[2] / "client")


def loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["SIZE = {}\ndef g(x): return x * SIZE", "def g(x): return x * {}"])
@pytest.mark.parametrize("swapped", [0, 1])
def test_two_modules_of_one_name_share_nothing(project: Project, text: str, swapped: int) -> None:
    digests = []
    for one, other in ((1, 2), (1, 3), (2, 1)):
        a = loaded(project.put("a/config.py", text.format(one)), "config")
        b = loaded(project.put("b/config.py", text.format(other)), "config")
        functions = [b.g, a.g] if swapped else [a.g, b.g]

        def f(x: int, functions: list[object]) -> int:
            return x

        digests.append(recipe(f, config={"functions": functions}, code="function").digest)
    assert len(set(digests)) == 3


def test_a_model_that_is_set_to_evaluate_is_no_look_up_by_text(project: Project) -> None:
    """`model.eval()`: the start of the run and an iterator would count."""
    project.write(
        prep="import time\nSTART = time.perf_counter_ns()\nLINES = (line for line in ())\n"
        "class Model:\n    def eval(self): return self\nmodel = Model()\ndef f(x): return model.eval(), x"
    )
    assert project.digest(code="function") == project.digest(code="function")


def test_warnings_as_errors_do_not_break_parsing(project: Project, recwarn: pytest.WarningsRecorder) -> None:
    """A job may have made errors of them after it has loaded its modules."""
    project.write(prep="import re\ndef f(x):\n    import helper\n    return re.sub('\\d', '', x) is 'a'")
    project.write(helper="P = '\\w'\ndef g(x): return P is 'a'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = project.load()
    for action in ("error", "always"):
        warnings.simplefilter(action)  # type: ignore[arg-type]
        project.forget()
        assert {recipe(module.f, code=code).parts["code"]["mode"] for code in ("function", "script")}
    assert not recwarn.list


@pytest.mark.parametrize("mode", [FUNCTION, {}])
def test_code_compiled_under_another_name_counts_as_it_runs(project: Project, mode: dict[str, str]) -> None:
    """It was looked for in the module's own file, which was then said to be edited."""
    made = "text = {!r}\nexec(compile(text, 'rules.py', 'exec'))"
    project.write(prep=made.format("def f(x): return 1"))
    assert changes(project, lambda: project.write(prep=made.format("def f(x): return 2")), **mode)


def test_a_script_with_a_relative_name_is_found_after_chdir(project: Project) -> None:
    project.write(
        job="N = 3\ndef f(x): return N\nimport os\nos.chdir('/')\nfrom prepcache.keys.recipes import recipe\n"
        "import json\nprint(json.dumps(recipe(f).parts['code']['files']))"
    )
    environ = {**os.environ, "PYTHONPATH": CLIENT}
    done = subprocess.run(
        [sys.executable, "job.py"],
        env=environ,
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(json.loads(done.stdout)) == ["job.py"]


@pytest.mark.parametrize(
    ("read", "counts"),
    [
        ("argparse.ArgumentParser().parse_known_args()", True),
        ("parser().parse_args().size", True),
        ("x.parse()", False),
    ],
)
def test_the_command_line_counts_where_code_parses_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, read: str, counts: bool
) -> None:
    """Not that of a job whose entry script does: the values that this sets count."""
    project.write(prep=f"import argparse\nparser = argparse.ArgumentParser\ndef f(x): return {read}")
    digests = set()
    for name, size in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        monkeypatch.setattr("sys.argv", [name, "--size", size])
        digests.add(project.digest(**FUNCTION))
    assert len(digests) == 1 + counts
