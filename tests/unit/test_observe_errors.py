"""An error where something is noted marks the watch as incomplete, and never reaches the function."""

import sys
from typing import Any

import pytest

from prepcache.fill.call import Job
from prepcache.keys.observation import watches
from prepcache.keys.observation.observer import Observer
from support.observing import IN_C, Observed
from support.projects import Project, project_fixture  # noqa: F401

NOTES = {
    "a file that is read": "(HERE / 'v.txt').read_text()",
    "a file that is written": "(HERE / 'w.txt').write_text('1')",
    "a file that is added to": "open(HERE / 'w.txt', 'a').close()",
    "a listing": "os.listdir(HERE)",
    "a listing by a descriptor": "fd = os.open(HERE, os.O_RDONLY); os.listdir(fd); os.close(fd)",
    "a question": "os.path.exists(HERE / 'v.txt')",
    "a question of a path": "(HERE / 'v.txt').is_file()",
    "a search": "list(HERE.glob('v.*'))",
    "an import by text": "importlib.import_module('colors' + 'ys')",
    "an import that is new": "import helper",
    "a class in a pickle": "pickle.loads(b'cstring\\nTemplate\\n.')",
    "a database": "sqlite3.connect(HERE / 'v.db').close()",
    "a process": "subprocess.run(['true', str(HERE / 'v.txt')])",
    "a folder that is made": "os.mkdir(HERE / 'd')",
    "a new name": "os.rename(HERE / 'v.txt', HERE / 'w.txt')",
}
if sys.version_info >= (3, 12):
    NOTES["a name that goes to C"] = "in_c('open', os.fsencode(HERE / 'v.txt'), 0)"


@pytest.mark.parametrize("what", NOTES)
@pytest.mark.parametrize("error", [RecursionError, OSError])
def test_an_error_where_something_is_noted_fails_closed(project, monkeypatch, what, error):
    project.put("v.txt", "one")
    project.write(helper="")
    imports = "import importlib, pickle, sqlite3, subprocess\n"
    call = Observed(project, f"{IN_C}{imports}def f(x):\n    {NOTES[what]}\n    return 'made'\n")

    def note(*_: Any) -> None:
        raise error

    monkeypatch.setattr(watches, "note", note)
    assert call() == "made"
    assert call.failure == error.__name__
    monkeypatch.undo()
    assert call.observer.taken() == []


@pytest.mark.parametrize("step", ["_take", "_settle", "_is_input"])
def test_an_error_in_taking_in_what_was_noted_fails_closed(project, monkeypatch, step):
    def fail(*_: Any) -> None:
        raise MemoryError

    project.put("v.txt", "one")
    call = Observed(project, "def f(x): return (HERE / 'v.txt').read_text()")
    monkeypatch.setattr(Observer, step, fail)
    assert call() == "one" and call.failure == "MemoryError"
    monkeypatch.undo()
    assert call() == "one" and call.failure == ""
    assert list(call.digests) == ["project:v.txt"]


def test_an_attached_database_keeps_all_items_of_a_call_out(project):
    """Also items after the one that attached the database, by whose connection they read it."""
    source = "import sqlite3\ndef f(x): sqlite3.connect(':memory:').close(); return 'attach ? as a', x"
    call = Observed(project, source)
    assert call.recipe.preprocess is not None
    job = Job(call.recipe.preprocess, {}, observer=call.observer)
    made = [part for parts in job.made(enumerate("abc")) for part in parts]
    assert [part.unobserved for part in made] == ["it attaches databases in SQL"] * 3
