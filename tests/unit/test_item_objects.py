"""Items that are objects: by class and state, with the code that they hold; or refused by name."""

from __future__ import annotations

import math
import re
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.items import ItemHasher, item_digest
from prepcache.keys.recipes import with_classes
from support.projects import Project, project_fixture  # noqa: F401


class Plain:
    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


def test_a_file_that_an_object_names_counts_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = item_digest(Plain(path=path))
    hasher = ItemHasher()
    names, stamps = hasher.probe(Plain(path=path))
    path.write_text("three")
    assert item_digest(Plain(path=path)) != before
    assert names == [str(path)]
    assert hasher.probe(Plain(path=path))[1] != stamps


def test_what_has_no_stable_bytes_is_refused_with_the_ways_out() -> None:
    with socket.socket() as held, pytest.raises(UnkeyableError) as caught:
        item_digest([Plain(deep=held)])
    message = caught.value.message
    assert message.startswith("items[0][0].deep: socket.socket has no stable bytes")
    for way in ("__prepcache_key__", "register_key", "pass plain values as the item"):
        assert way in message
    with pytest.raises(UnkeyableError, match=r"items\[0\]: sys \(module\).*pass plain values as the item"):
        item_digest(sys)


ITEMS = """
import functools
def g(x): return x + 1
class Item:
    def __init__(self, **state): vars(self).update(state)
    def method(self): return 1
    def __getstate__(self): return {**vars(self)}
class Made(Item):
    def __reduce__(self): return make, ()
def make(): return Made()
"""


@pytest.mark.parametrize(
    "item",
    [
        "Item(callable=g)",
        "Item(state=[g])",
        "Item(func=functools.partial(g))",
        "(g, 1)",
        "Made()",
        "lambda: 1",
    ],
)
def test_a_function_of_the_project_in_an_item_is_refused(project: Project, item: str) -> None:
    """Also one that makes an item anew."""
    project.write(specs=ITEMS + f"def item(): return {item}")
    with pytest.raises(UnkeyableError, match=r"says nothing of what the function specs\..*plain values"):
        item_digest(project.load("specs").item())


def test_a_class_that_an_item_holds_counts_by_its_definition(project: Project) -> None:
    def keys(expression: str) -> tuple[str, str]:
        cls = "type('C', (), {'__module__': __name__, 'g': g})"
        project.write(
            prep="def f(x): return x",
            specs=ITEMS.replace("+ 1", expression) + f"def item(): return Item(cls={cls})",
        )
        made = project.recipe(code="function")
        hasher = ItemHasher()
        digests, _ = hasher.digest_many([project.load("specs").item()])
        return with_classes(made, hasher.classes).digest, digests.tobytes().hex()

    before = keys("+ 1")
    assert keys("+ 1") == before
    after = keys("+ 2")
    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize("item", [re.compile("a"), textwrap.dedent, {"of": math.sqrt}])
def test_a_library_s_function_counts_by_name(item: Any) -> None:
    assert item_digest(item) == item_digest(item) != item_digest(textwrap.indent)


def test_two_classes_of_one_name_are_refused(project: Project) -> None:
    project.write(
        prep="def f(x): return x",
        specs="def make():\n    class A: pass\n    return A()\na, b = make(), make()",
    )
    made, specs, hasher = project.recipe(), project.load("specs"), ItemHasher()
    hasher.digest_many([specs.a, specs.b])
    with pytest.raises(UnkeyableError, match=r"two classes are named specs\.make\.<locals>\.A"):
        with_classes(made, hasher.classes)
