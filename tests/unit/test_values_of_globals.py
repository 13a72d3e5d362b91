"""Run-time values that a project's globals hold: slots, files that they name, models, graphs, hooks."""
# ruff: noqa: E501

from __future__ import annotations

import copy
from pathlib import Path

from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401


def test_private_slots_count(project: Project) -> None:
    text = "class C:\n    __slots__ = ('__n',)\n    def __init__(self): self.__n = {}\nV = C()\ndef f(x): return V"
    project.write(prep=text.format(1))
    assert changes(project, lambda: project.write(prep=text.format(2)), code="function")


def test_a_path_in_the_checkout_counts_by_place_and_bytes(tmp_path: Path) -> None:
    digests = []
    for place, content in (("a", "one"), ("b", "one"), ("c", "two")):
        project = Project(tmp_path / place)
        project.write(
            prep="import pathlib\nP = pathlib.Path(__file__).parent / 'v.txt'\ndef f(x): return P.read_text()"
        )
        project.put("v.txt", content)
        with project.on_path():
            digests.append(project.digest())
    assert digests[0] == digests[1] != digests[2]


def test_a_str_that_names_a_file_counts_its_bytes(project: Project) -> None:
    project.put("v.txt", "one")
    project.write(
        prep="import os\nP = os.path.join(os.path.dirname(__file__), 'v.txt')\ndef f(x): return open(P)"
    )
    assert changes(project, lambda: project.put("v.txt", "two"))


def test_a_tree_whose_children_know_their_parent_counts_by_value(project: Project) -> None:
    text = (
        "class Node:\n    def __init__(self, parent): self.parent, self.children = parent, []\n"
        "ROOT = Node(None)\nCHILD = Node(ROOT)\nROOT.children.append(CHILD)\nCHILD.n = {}\ndef f(x): return ROOT"
    )
    project.write(prep=text.format(1))
    assert not changes(project, lambda: None, code="function")
    assert changes(project, lambda: project.write(prep=text.format(2)), code="function")


def test_which_of_its_holders_an_object_refers_to_counts(project: Project) -> None:
    text = "class Node: pass\nA, B, C = Node(), Node(), Node()\nA.down, B.down, C.up = B, C, {}\ndef f(x): return A"
    project.write(prep=text.format("A"))
    assert changes(project, lambda: project.write(prep=text.format("B")), code="function")


def test_hooks_of_a_network_count_by_code_and_order(project: Project) -> None:
    text = (
        "import torch\nNET = torch.nn.ReLU()\ndef one(m, i, o): return o\ndef two(m, i, o): return o + 1\n"
        "NET.register_forward_hook({})\nNET.register_forward_hook({})\ndef f(x): return NET(x)"
    )
    project.write(prep=text.format("one", "two"))
    assert not changes(project, lambda: None, code="function")
    assert changes(project, lambda: project.write(prep=text.format("two", "one")), code="function")


def test_which_hook_of_a_network_is_given_keywords_counts(project: Project) -> None:
    text = (
        "import torch\nNET = torch.nn.ReLU()\ndef one(m, i, *o): return o[-1]\ndef two(m, i, *o): return o[-1]\n"
        "NET.register_forward_hook(one, with_kwargs={})\nNET.register_forward_hook(two, with_kwargs={})\ndef f(x): return NET(x)"
    )
    project.write(prep=text.format(True, False))
    assert changes(project, lambda: project.write(prep=text.format(False, True)), code="function")


def test_what_copying_keeps_in_a_class_does_not_count(project: Project) -> None:
    """`__slotnames__`: `copyreg` puts it there when an instance is asked for its state, by a look at it too."""
    project.write(
        prep="class C:\n    def __init__(self): self.n = 1\nC.one = C()\ndef f(x): return C.one.n, C().n"
    )
    module = project.load()
    before = recipe(module.f)
    copy.deepcopy(module.C.one)
    assert "__slotnames__" in vars(module.C)
    assert recipe(module.f).digest == before.digest


def test_a_name_that_nothing_defines_is_shown_as_that(project: Project) -> None:
    project.write(prep="def f(x): return MISSING if x else 0")
    assert project.recipe().parts["code"]["values"]["prep.MISSING"]["text"] == "(undefined)"
