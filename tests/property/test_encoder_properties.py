"""Equal encodings exactly when values are equal, by an oracle that knows nothing of bytes."""

import collections
import copy
import math
from typing import Any

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from prepcache.keys.encoding.encoder import Encoder, canonical_order


def encode(value: object) -> bytes:
    return Encoder().encode(value)


numbers = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf])
    | st.complex_numbers()
)
texts = st.sampled_from(["", "a", "b", "ab", "1", "é", "\0", "\ud800"]) | st.text(max_size=3)
keys = st.none() | st.booleans() | st.integers(-2, 2) | texts | st.binary(max_size=2)
arrays = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from([(), (0,), (1,), (2,), (1, 2), (2, 1)]),
    st.sampled_from(["<i4", "<i8", "<f4", "?", "<M8[s]"]),
    st.integers(0, 3),
)
leaves = numbers | texts | st.binary(max_size=3) | arrays | arrays.filter(
    lambda a: a.dtype.kind != "M"
).map(lambda a: torch.from_numpy(a.copy()))  # fmt: skip


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict)
        | st.sets(keys, max_size=3)
        | st.frozensets(keys, max_size=3)
    )


values = st.recursive(leaves, containers, max_leaves=8)


def same(a: Any, b: Any) -> bool:
    """Typed equality, written out."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, collections.OrderedDict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, dict):
        return len(a) == len(b) and all(any(same(k, m) and same(v, b[m]) for m in b) for k, v in a.items())
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return bool(a == b)


def shuffled(value: Any) -> Any:
    """A copy with every free order turned round."""
    if isinstance(value, collections.OrderedDict):
        return collections.OrderedDict((k, shuffled(v)) for k, v in value.items())
    if isinstance(value, dict):
        return {k: shuffled(v) for k, v in reversed(value.items())}
    if isinstance(value, (list, tuple)):
        return type(value)(shuffled(x) for x in value)
    if isinstance(value, (set, frozenset)):
        return type(value)(sorted(value, key=repr, reverse=True))
    return copy.copy(value)


@given(values, values)
def test_encodings_are_equal_exactly_when_values_are(a, b):
    assert (encode(a) == encode(b)) == same(a, b)


@given(values)
def test_a_copy_in_another_order_has_the_same_bytes(value):
    assert encode(shuffled(value)) == encode(value)


@given(values)
def test_the_function_sees_the_same_whatever_the_order_was(value):
    def seen(x: Any) -> Any:
        if isinstance(x, dict):
            return [(k, seen(v)) for k, v in x.items()]
        if isinstance(x, (list, tuple)):
            return [seen(y) for y in x]
        return x if isinstance(x, (set, frozenset)) else repr(x)

    assert seen(canonical_order(value)) == seen(canonical_order(shuffled(value)))
    assert encode(canonical_order(value)) == encode(value)


@given(values, values)
def test_no_encoding_starts_another(a, b):
    assume(not same(a, b))
    assert not encode(a).startswith(encode(b))


def leaf_places(value: Any) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [(k, *place) for k, v in value.items() for place in leaf_places(v)]
    if isinstance(value, (list, tuple)):
        return [(i, *place) for i, v in enumerate(value) for place in leaf_places(v)]
    return [()]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    first, *rest = place
    if isinstance(value, dict):
        return type(value)((k, replaced(v, tuple(rest), new) if k == first else v) for k, v in value.items())
    return type(value)(replaced(v, tuple(rest), new) if i == first else v for i, v in enumerate(value))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


@given(values, leaves, st.data())
def test_another_value_at_any_leaf_changes_the_bytes(value, new, data):
    places = leaf_places(value)
    assume(places)
    place = data.draw(st.sampled_from(places))
    assume(not same(at(value, place), new))
    assert encode(replaced(value, place, new)) != encode(value)
