"""What a function left behind without stable bytes is no end of a job, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from prepcache.data.steady import Steady
from prepcache.errors import UnkeyableError
from prepcache.keys.code import left
from prepcache.keys.recipes import Recipe, recipe
from support.projects import Project, project_fixture  # noqa: F401

OPENS = """
LINES, SIZE = None, 1
class Reader:
    lines, size = None, 1
    def read(self, x):
        self.lines = self.lines or (n for n in ())
        return x * self.size
reader, other = Reader(), Reader()
def f(x):
    global LINES
    LINES = LINES or (n for n in ())
    return x * SIZE
def g(x):
    reader.lines = reader.lines or (n for n in ())
    return x * reader.size
"""


@pytest.fixture(autouse=True)
def in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "_left", set())


@pytest.fixture
def module(project: Project) -> Any:
    project.write(prep=OPENS)
    return project.load()


def made_and_called(function: Any) -> Recipe:
    """The recipe of a function, of which a data set was then filled."""
    made = recipe(function, code="function")
    steady = Steady(made)
    function(1)
    steady.settle()
    return made


CASES = {
    "a global": "f",
    "an attribute of a global": "g",
    "an attribute of the method's object": "reader.read",
}


def named(module: Any, name: str) -> Any:
    return eval(name, vars(module))


@pytest.mark.parametrize("name", CASES.values(), ids=CASES)
def test_what_a_function_left_has_a_key_that_no_other_data_set_has(project: Project, name: str) -> None:
    project.write(prep=OPENS)
    module = project.load()
    before = made_and_called(named(module, name))
    after = [recipe(named(module, name), code="function") for _ in range(2)]
    assert len({before.digest, after[0].digest, after[1].digest}) == 3
    assert [note.partition(" is ")[0].rpartition(".")[2].lower() for note in after[0].notes] == ["lines"]
    assert after[0].parts["code"]["definitions"] == before.parts["code"]["definitions"]
    fresh = project.load()
    assert recipe(named(fresh, name), code="function").digest == before.digest, "a process that begins anew"


@pytest.mark.parametrize("name", CASES.values(), ids=CASES)
def test_it_is_left_out_where_the_note_says(module: Any, name: str) -> None:
    made_and_called(named(module, name))
    (note,) = recipe(named(module, name), code="function").notes
    word = note.partition("untracked=('")[2].partition("'")[0]
    left_out = [recipe(named(module, name), code="function", untracked=(word,)) for _ in range(2)]
    assert left_out[0].digest == left_out[1].digest and not left_out[0].notes


@pytest.mark.parametrize("name", CASES.values(), ids=CASES)
def test_what_is_beside_it_counts_and_a_change_is_named(module: Any, name: str) -> None:
    made_and_called(named(module, name))
    steady = Steady(recipe(named(module, name), code="function"))
    assert steady.changed(is_due=True) == []
    module.SIZE = module.reader.size = 2
    assert steady.changed(is_due=True) != []


def test_another_object_in_its_place_is_a_change(module: Any) -> None:
    made_and_called(module.f)
    steady = Steady(recipe(module.f, code="function"))
    kept, module.LINES = module.LINES, (n for n in ())
    assert steady.changed(is_due=True) == ["prep.LINES"]
    module.LINES = kept


def test_what_the_function_comes_to_leave_later_is_left_too(module: Any) -> None:
    made = recipe(module.f, code="function")
    steady = Steady(made)
    steady.settle()
    module.f(1)
    assert steady.changed(is_due=True, is_filling=True) == []
    assert recipe(module.f, code="function").notes


def test_what_the_job_made_is_refused(module: Any) -> None:
    made = recipe(module.f, code="function")
    steady = Steady(made)
    module.LINES = (n for n in ())
    assert steady.changed(is_due=True) == ["prep.LINES"]
    steady.settle()
    with pytest.raises(UnkeyableError, match=r"prep\.LINES"):
        recipe(module.f, code="function")


def test_what_another_object_of_the_class_holds_is_refused(module: Any) -> None:
    made_and_called(module.reader.read)
    module.other.lines = (n for n in ())
    with pytest.raises(UnkeyableError, match=r"preprocess\.__self__\.lines"):
        recipe(module.other.read, code="function")
