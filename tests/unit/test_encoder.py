"""The canonical encoding: what does not count, what an object counts by, and what is refused."""

import ast
import collections
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from prepcache import register_key
from prepcache.errors import UnkeyableError
from prepcache.keys.encoding import encoder as encoder_module
from prepcache.keys.encoding.encoder import Encoder, canonical_order
from prepcache.keys.markers import plain, tree
from support.programs import python


def encode(value: object) -> bytes:
    return Encoder().encode(value)


class Broken:
    def __prepcache_key__(self) -> Any:
        raise KeyError("b")


def test_a_set_of_what_has_no_order_is_written_in_one_order():
    """Elements that fall into one slot of a set come out in the order in which they came in."""
    one = frozenset({0})
    other = next(s for n in range(1, 999) if hash(s := frozenset({n})) & 7 == hash(one) & 7)
    first, second = set[frozenset[int]](), set[frozenset[int]]()
    for element in (one, other):
        first.add(element)
    for element in (other, one):
        second.add(element)
    assert list(first) != list(second)
    assert encode(first) == encode(second)


@pytest.mark.parametrize("function", [lambda value: value, lambda value: NotImplemented])
@pytest.mark.parametrize("kind", [type("Number", (int,), {}), int])
def test_a_value_that_its_function_gives_back_counts(monkeypatch, function, kind):
    monkeypatch.setattr(encoder_module, "_registered", {})
    monkeypatch.setattr(encoder_module, "_writers", {})
    plain = [encode(kind(1)), encode(kind(2))]
    register_key(kind, function)
    assert [encode(kind(1)), encode(kind(2))] == plain
    assert plain[0] != plain[1]


def test_encoding_plain_values_imports_no_library():
    script = (
        "import sys; before = set(sys.modules); from prepcache.keys.encoding.encoder import Encoder;"
        "Encoder().encode({'a': [1, 2.0, 'x', None, {3}]});"
        "print({m.partition('.')[0] for m in sys.modules.keys() - before} - sys.stdlib_module_names)"
    )
    assert ast.literal_eval(python("-c", script).stdout) == {"blake3", "prepcache"}


def padded(fill: int) -> Any:
    array = np.full(16, fill, np.uint8).view(np.dtype([("a", "i1"), ("b", "i4")], align=True))
    array["a"], array["b"] = 1, 2
    return array


def test_bytes_of_an_array_that_hold_no_value_do_not_count():
    assert encode(padded(0)) == encode(padded(255))
    long = np.array([1, 2], np.longdouble) / 3
    before = encode(long)
    assert encode(np.nextafter(long, np.longdouble(1))) != before
    if np.finfo(np.longdouble).nmant == 63:
        long.view(np.uint8).reshape(-1, 16)[:, 10:] += 1
    assert encode(long) == before


def test_a_tensor_without_bytes_of_its_own_is_refused():
    for value in (torch.eye(2).to_sparse(), torch.nn.UninitializedParameter()):
        with pytest.raises(UnkeyableError, match="has no stable bytes"):
            encode(value)


@pytest.mark.parametrize(
    ("value", "place", "why"),
    [
        ({"augment": {"sampler": sys._getframe()}}, "config.augment.sampler", "no stable bytes"),
        ({"a": [1, sys._getframe()]}, "config.a[1]", "register_key"),
        ({"odd key": (x for x in ())}, "config['odd key']", "generator"),
        ({"f": len, "g": print, "h": lambda: 1}, "config.h", "no stable bytes"),
        ({"p": Path("a")}, "config.p", "cannot be looked up"),
        ({"p": tree("a")}, "config.p", "cannot be looked up"),
        ({"s": {sys}}, "config.s.element", "module"),
        ({"t": torch.zeros(1, device="meta")}, "config.t", "meta"),
        ({"k": Broken()}, "config.k", "(KeyError: 'b')"),
    ],
)
def test_what_cannot_be_keyed_is_refused_with_its_place(value, place, why):
    with pytest.raises(UnkeyableError) as caught:
        encode(value)
    assert caught.value.message.startswith(place)
    assert why in caught.value.message


def test_a_value_that_is_nested_too_deeply_is_refused():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnkeyableError, match="nested too deeply"):
        encode(deep)
    while deep:  # else the interpreter frees it recursively
        deep = deep[0]


class Pair(NamedTuple):
    a: Any
    b: Any


def test_marks_are_taken_off_wherever_a_container_can_be_rebuilt():
    value = {
        "a": [plain("x"), (tree("d"), 1)],
        "b": Pair(plain(plain(1)), {plain("s")}),
        "c": collections.OrderedDict(z=plain({"n": tree(Path("p"))})),
    }
    assert canonical_order(value) == {
        "a": ["x", ("d", 1)],
        "b": Pair(1, {"s"}),
        "c": collections.OrderedDict(z={"n": Path("p")}),
    }


def test_tree_takes_a_path():
    with pytest.raises(TypeError, match="directory"):
        tree(3)
