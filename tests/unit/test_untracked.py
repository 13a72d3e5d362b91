"""What `untracked=` leaves out: attributes of an object whose method is the function, never the function."""

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

OBJECT = """
import functools
class C:
    size = 1
    def f(self, x): return x * self.size
    def __call__(self, x): return x * self.size
    def made(self): return lambda x: self.f(x)
def g(x, lines): return x
c = C()
lines = (line for line in ())
of_partial = functools.partial(g, lines=lines)
"""


def test_whether_what_is_untracked_is_there_does_not_count(project):
    """It may be set after the first opening, such as the data set itself."""
    project.write(prep=OBJECT)
    c = project.load().c
    before = recipe(c.f, untracked=("made",))
    c.made = 1
    assert recipe(c.f, untracked=("made",)).digest == before.digest
    assert recipe(c.f).digest != before.digest


def test_the_function_itself_cannot_be_left_out(project):
    project.write(prep=OBJECT)
    c = project.load().c
    before = recipe(c.f, untracked=("preprocess",))
    assert before.parts["code"]["files"] and before.notes
    c.size = 2
    assert recipe(c.f, untracked=("preprocess",)).digest != before.digest


@pytest.mark.parametrize(("name", "word"), [("c", "held"), ("of_partial", "keywords")])
def test_the_way_out_that_is_named_leads_out(project, name, word):
    project.write(prep=OBJECT)
    module = project.load()
    module.c.held = {"lines": module.lines}
    function = eval(name, vars(module))
    with pytest.raises(UnkeyableError, match=f"exclude it with untracked=.'{word}',"):
        recipe(function)
    untracked = recipe(function, untracked=(word,))
    assert untracked.parts["code"]["files"] and not untracked.notes


def test_a_part_of_a_registered_key_can_be_left_out(project):
    project.write(
        prep="""
        class Handle:
            def __init__(self, name, uses): self.name, self.uses = name, uses
            def __prepcache_key__(self): return {"name": self.name, "uses": self.uses}
        handle = Handle("a", 1)
        def f(x): return handle.name, x
        """
    )
    module = project.load()
    before, whole = recipe(module.f, untracked=("handle.uses",)), recipe(module.f)
    module.handle.uses = 2
    assert recipe(module.f, untracked=("handle.uses",)).digest == before.digest
    assert recipe(module.f).digest != whole.digest
    module.handle.name = "b"
    assert recipe(module.f, untracked=("handle.uses",)).digest != before.digest
