"""Items that are objects: by class and state, with the code that they hold; or refused by name."""

from __future__ import annotations

import socket
import sys
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
def g(x): return x + $
def other(x): return x
class Item:
    def __init__(self, **state): vars(self).update(state)
    def method(self): return 1
    def __getstate__(self): return {**vars(self)}
class Made(Item):
    def __reduce__(self): return make, (), None, None, None, restore
def make(): return Made()
def restore(item, state): pass
"""


@pytest.mark.parametrize(
    "item",
    [
        "Item(callable=g)",
        "Item(setter=g)",
        "Item(state=[g])",
        "Item(decorator={'a': g})",
        "Item(__wrapped__=g)",
        "Item(func=functools.partial(g))",
        "Item(cls=type('C', (), {'__module__': __name__, 'g': g}))",
        "(g, 1)",
    ],
)
def test_a_function_that_an_item_holds_counts_by_its_definition(project: Project, item: str) -> None:
    """Whatever the attribute is called: `callable` and `setter` are parts of what makes objects anew, too."""

    def keys(expression: str) -> tuple[str, str]:
        project.write(
            prep="def f(x): return x",
            specs=ITEMS.replace("$", expression) + f"def item(): return {item}",
        )
        made = project.recipe(code="function")
        hasher = ItemHasher()
        digests, _ = hasher.digest_many([project.load("specs").item()])
        return with_classes(made, hasher.classes).digest, digests.tobytes().hex()

    before = keys("1")
    assert keys("1") == before
    after = keys("2")
    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize("edited", ["def make(): return Made()", "def restore(item, state): pass"])
def test_a_function_that_rebuilds_an_item_counts_by_definition(project: Project, edited: str) -> None:
    def key(text: str) -> str:
        project.write(prep="def f(x): return x", specs=text)
        made = project.recipe(code="function")
        hasher = ItemHasher()
        hasher.digest_many([project.load("specs").Made()])
        return with_classes(made, hasher.classes).digest

    text = ITEMS.replace("$", "1")
    before = key(text)
    assert key(text) == before
    assert (
        key(text.replace(edited, edited + ", 1" if "return" in edited else edited + "; return 1")) != before
    )


def test_two_functions_of_one_name_are_refused(project: Project) -> None:
    project.write(prep="def f(x): return x", specs="a, b = (lambda: 1), (lambda: 2)")
    made, specs, hasher = project.recipe(), project.load("specs"), ItemHasher()
    hasher.digest_many([specs.a, specs.b])
    with pytest.raises(UnkeyableError, match=r"two functions are named specs\.<lambda>"):
        with_classes(made, hasher.classes)
