"""Objects that reach themselves count; lists and dicts inside themselves are refused."""

import contextlib
import inspect
import sys
from typing import Any

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.code import dependencies
from prepcache.keys.encoding import encoder
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, drift, project_fixture  # noqa: F401


def digest_of(value: Any) -> str:
    def f(x: int) -> Any:
        return value, x

    return recipe(f, code="function").digest


def doubled(hold: Any) -> Any:
    value: Any = [1]
    for _ in range(20):
        value = hold((value, value))
    return value


def all_known(count: int) -> Any:
    """Each is written in full in each other one of a set: 8 of them would be 13 MB."""
    nodes = [Plain(number) for number in range(count)]
    for node in nodes:
        node.of = [node.of, *nodes]
    return set(nodes)


@pytest.mark.parametrize("make", [lambda: doubled(list), lambda: {doubled(Plain)}, lambda: all_known(8)])
def test_what_doubles_with_each_step_is_refused(make, monkeypatch):
    monkeypatch.setattr(encoder, "MOST_ENTERED", 1 << 12)
    with pytest.raises(UnkeyableError, match="the same ones too often"):
        digest_of(make())


def test_a_list_inside_itself_is_refused_by_name():
    endless: list[Any] = [1]
    endless.append([endless])
    with pytest.raises(UnkeyableError, match=r"f\[value\]\[1\]\[0\]: this list contains itself"):
        digest_of(endless)
    with pytest.raises(UnkeyableError, match=r"config\.own\[1\]\[0\]\[1\]\[0\]: this list contains itself"):
        recipe(digest_of, config={"own": endless})


def test_an_object_in_a_cycle_counts_by_what_it_reaches():
    """Its bytes speak of the list that it was first met in."""

    def pair(is_own: bool) -> tuple[Any, Any]:
        first: list[Any] = []
        first.append(Plain(first))
        second: list[Any] = [0]
        second.append(Plain(second) if is_own else first[0])
        return first, second

    assert digest_of(pair(False)) != digest_of(pair(True))


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "MOST_ROWS", 4)


def test_objects_beyond_the_rows_count_once_each(few_rows, monkeypatch):
    monkeypatch.setattr(encoder, "MOST_ENTERED", 200)
    shared = doubled(Plain)
    assert digest_of([Plain(0)] * 8 + [shared]) == digest_of([Plain(0)] * 8 + [shared])


@pytest.mark.parametrize("untracked", [(), ("of",)])
def test_each_of_many_objects_counts_wherever_it_is_held(few_rows, untracked):
    def digest(held: int) -> str:
        holding = [many[held]]
        return recipe(lambda x: (many, holding, x), code="function", untracked=untracked).digest

    many: Any = [Plain(n) for n in range(9)]
    before = digest(8)
    assert digest(8) == before != digest(7)
    many[8].of = many[7]
    assert (digest(8) == before) is bool(untracked), "left out of objects that have no rows, too"


def test_what_has_no_bytes_beyond_the_rows_is_refused(few_rows):
    many = [Plain(n) for n in range(9)]
    many[8].of = (n for n in ())
    with pytest.raises(UnkeyableError, match=r"f\[value\]\[8\]\.of: .*untracked="):
        digest_of(many)
    assert recipe(lambda x: (many, x), code="function", untracked=("of",)).digest


@pytest.mark.parametrize("in_config", [False, True])
def test_a_knotted_graph_counts_beyond_the_rows(few_rows, in_config):
    """Each node knows the root, and the one before it."""

    def digest(last: int) -> str:
        root: Any = Plain(0)
        root.after = [Plain(n if n < 2999 else last) for n in range(3000)]
        for before, node in zip([root, *root.after], root.after, strict=False):
            node.before, node.root = before, root
        if in_config:
            return recipe(lambda x, root: x, config={"root": root}, code="function").digest
        return digest_of([root])

    assert digest(1) == digest(1) != digest(2)


def test_a_long_chain_beyond_the_rows_is_refused(few_rows):
    with pytest.raises(UnkeyableError, match="nested too deeply"):
        digest_of([chain(3000)])


def test_a_long_chain_of_rows_counts():
    assert digest_of([chain(300)]) == digest_of([chain(300)]) != digest_of([chain(300, last=1)])
    assert digest_of([contextlib.contextmanager(chain)] * 1024 + [chain(300)]), "its rows count once"


class Plain:
    after: Any

    def __init__(self, of: Any) -> None:
        self.of = of


def chain(length: int, last: int = 0) -> Plain:
    node = Plain(last)
    for n in range(length):
        before, node = node, Plain(n)
        node.after = [before]
    return node


class Endless:
    """Every look at it makes two more."""

    def __reduce__(self) -> Any:
        return Endless, (), {"inner": Endless(), "other": Endless()}


def test_an_object_without_an_end_is_refused():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)  # each level costs more than the last
    try:
        with pytest.raises(UnkeyableError, match="nested too deeply"):
            digest_of(Endless())
    finally:
        sys.setrecursionlimit(limit)
