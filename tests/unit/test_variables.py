"""Environment variables, and the command line: named by what code holds, or in modules that functions import."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from support.projects import Project, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}
ENV = "def env(n): return os.environ.get(n)\n"


def keys(project: Project, monkeypatch: pytest.MonkeyPatch, name: str, **options: object) -> set[str]:
    """The recipe with each of two values of an environment variable."""
    found = set()
    for value in ("1", "2"):
        monkeypatch.setenv(name, value)
        found.add(project.digest(**options))
    return found


def test_a_variable_of_the_session_counts_in_a_field_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = "'the TERM', '{\"TERM\": 1}', '{LANG!s:>9}'.format(**os.environ)"
    project.write(prep=f"import os\ndef f(x): return {returns}")
    assert len(keys(project, monkeypatch, "LANG", **FUNCTION)) == 2
    assert len(keys(project, monkeypatch, "TERM", **FUNCTION)) == 1


@pytest.mark.parametrize("prefix", ["myapp_", "X_", "_Mine_"])
@pytest.mark.parametrize(
    "text", ["def f(x): return os.environ[$ + x]", "P = $\ndef f(x): return os.environ[P + x]"]
)
def test_a_text_with_a_final_underscore_is_a_prefix(
    project: Project, monkeypatch: pytest.MonkeyPatch, prefix: str, text: str
) -> None:
    project.write(prep=f"import os\n{text.replace('$', repr(prefix))}")
    assert len(keys(project, monkeypatch, f"{prefix}size", **FUNCTION)) == 2
    assert len(keys(project, monkeypatch, f"other_{prefix}size", **FUNCTION)) == 1


def test_a_prefix_of_the_sessions_variables_is_none(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(prep="import os\ndef f(x): return os.environ['SSH_' + x]")
    assert len(keys(project, monkeypatch, "SSH_TTY", **FUNCTION)) == 1


@pytest.mark.parametrize("name", ["TERM", "_"])
def test_session_variables_do_not_count(project: Project, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words = f"WORDS = ['the', {name!r}]\ndef f(x): return env('MY_SIZE').split('_'), WORDS"
    project.write(prep=f"import os\n{ENV}{words}")
    assert len(keys(project, monkeypatch, name, **FUNCTION)) == 1


ARGUMENTS = {
    "the function": {"prep": "def f(x):\n    import sys\n    return sys.argv[1]"},
    "a module that it imports": {
        "prep": "def f(x):\n    import helper\n    return helper.SIZE",
        "helper": "import sys\nSIZE = sys.argv[1]",
    },
    "a parser of one that it imports": {
        "prep": "def f(x):\n    from helper import ARGS\n    return ARGS.size",
        "helper": "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--size')\nARGS = parser.parse_args()",
    },
    "a function of one that it imports": {
        "prep": "def f(x):\n    from helper import size\n    return size()",
        "helper": (
            "import argparse\ndef parser(): return argparse.ArgumentParser()\n"
            "class Sized:\n    def args(self): return parser().parse_args()\ndef size(): return Sized().args().size"
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("who", ARGUMENTS)
def test_the_command_line_counts_for_late_imports(
    project: Project, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    project.write(**ARGUMENTS[who])
    found = set()
    for size in ("1", "2"):
        monkeypatch.setattr("sys.argv", ["a.py", size])
        found.add(project.digest())
    assert len(found) == 2


FOLDERS = {
    "the home folder": "import os\ndef f(x): return open(os.path.expanduser(x)).read()",
    "the same by a method": "from pathlib import Path\ndef f(x): return Path(x).expanduser().read_text()",
    "the same by its name": "from pathlib import Path\ndef f(x): return (Path.home() / x).read_text()",
}  # fmt: skip


@pytest.mark.parametrize("is_late", [False, True], ids=["", "in a module that it imports"])
@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("what", FOLDERS)
def test_folders_of_a_user_count_where_code_asks_for_them(
    project: Project, monkeypatch: pytest.MonkeyPatch, what: str, code: str, is_late: bool
) -> None:
    """What is read there by the same name is another file in another's."""
    if is_late:
        project.write(prep="def f(x):\n    import helper\n    return helper.f(x)", helper=FOLDERS[what])
    else:
        project.write(prep=FOLDERS[what])
    found = set()
    for folder in ("/one", "/two"):
        monkeypatch.setenv("HOME", folder)
        found.add(project.digest(code=code))
    assert len(found) == 2


def test_a_users_folders_count_only_where_code_asks(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        prep="import tempfile\ndef f(x):\n    with tempfile.TemporaryFile() as file: return file.write(x)"
    )
    found = set()
    for folder in ("/one", "/two"):
        monkeypatch.setenv("HOME", folder)
        monkeypatch.setattr("tempfile.tempdir", folder)
        found.add(project.digest())
    assert len(found) == 1
