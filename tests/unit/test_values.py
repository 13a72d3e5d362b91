"""Run-time values that the canonical encoding does not know: by class and state, or refused by name."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import logging
import operator
import random
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache.errors import UnkeyableError
from prepcache.keys.code.object_parts import Unstable, parts_of
from prepcache.keys.recipes import recipe


def digest_of(value: Any) -> str:
    """The digest of a recipe whose config holds the value."""

    def f(x: Any, value: Any) -> Any:
        return x

    return recipe(f, config={"value": value}).digest


class Plain:
    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


class Chosen:
    """Gives away a part of its state."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, int]:
        return {"kept": self.kept}


class Cached:
    def __init__(self, **kept: Any) -> None:
        self.n = 1
        vars(self).update(kept)

    @functools.cached_property
    def heavy(self) -> int:
        return self.n * 100


class Keyed:
    def __init__(self, key: Any) -> None:
        self.key = key
        self.lock = threading.Lock()

    def __prepcache_key__(self) -> Any:
        return self.key


class Methods:
    """Keeps one of its own methods: an object that reaches itself."""

    def __init__(self, name: str) -> None:
        self.call = getattr(self, name)

    def one(self) -> int:
        return 1

    def two(self) -> int:
        return 2


class Made:
    """Says what it is copied by."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class Net(torch.nn.Module):
    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.fill_(0.5)
            self.layer.bias.fill_(bias)


def _marked(value: Any) -> Any:
    value.mark = 1
    return value


class Plainer(Plain):
    pass


def library(text: str) -> Any:
    """A value made by code that stands in a library."""
    return eval(compile(text, json.__file__, "eval"), vars(json))


def wrapping(function: Any) -> Any:
    made = library("lambda x: x")
    made.__wrapped__ = function
    return made


def dispatching(function: Any) -> Any:
    made = functools.singledispatchmethod(str)
    made.register(int, function)
    return made


class Labelled(property):
    def __init__(self, label: int) -> None:
        super().__init__(len)
        self.label = label


DIFFERENT = {
    "attributes of a partial": (functools.partial(max), _marked(functools.partial(max))),
    "function of a library": (json.dumps, json.loads),
    "lambda of a library": (library("lambda x: 1"), library("lambda x: 2")),
    "cell of a library's function": (
        library("(lambda n: lambda x: n)(1)"),
        library("(lambda n: lambda x: n)(2)"),
    ),
    "what a library's function wraps": (wrapping(len), wrapping(max)),
    "what a method is bound to": (Plain(n=1).__init__, Plain(n=2).__init__),
    "name of an attribute": (Plain(n=1), Plain(m=1)),
    "type of an attribute": (Plain(n=1), Plain(n=True)),
    "class": (Plain(), Keyed(1)),
    "own key": (Keyed([1, 2]), Keyed([1, 3])),
    "which method of itself": (Methods("one"), Methods("two")),
    "local generator": (random.Random(1), random.Random(2)),
    "numpy generator": (np.random.default_rng(1), np.random.default_rng(2)),
    "where an iterator stands": (itertools.count(1), itertools.count(2)),
    "logger": (logging.getLogger("a"), logging.getLogger("b")),
    "module": (itertools, functools),
    "library function": (np.sin, np.cos),
    "builtin function": (len, max),
    "bound builtin": ([1].count, [2].count),
    "method that a library holds": (random.randint, random.uniform),
    "builtin method that a library holds": (random.random, random.getrandbits),
    "method of a class": (str.lower, str.upper),
    "partial of a library function": (functools.partial(np.sum, axis=0), functools.partial(np.sum, axis=1)),
    "generic alias": (list[int], list[str]),
    "union": (int | str, int | bytes),
    "struct": (struct.Struct("<i"), struct.Struct("<q")),
    "what an object is made by": (Made(len, ([],)), Made(max, ([],))),
    "what an object is made of": (Made(len, ([],)), Made(len, ([1],))),
    "state that is put into a made object": (Made(list, (), {"a": 1}), Made(list, (), {"a": 2})),
    "elements that are put into a made object": (Made(list, (), None, [1]), Made(list, (), None, [2])),
    "pairs that are put into a made object": (
        Made(dict, (), None, None, [("a", 1)]),
        Made(dict, (), None, None, [("a", 2)]),
    ),
    "staticmethod or classmethod": (staticmethod(len), classmethod(len)),
    "setter": (property(None, len), property(None, max)),
    "deleter": (property(None, None, len), property(None, None, max)),
    "cached property": (functools.cached_property(len), functools.cached_property(max)),
    "function of a partialmethod": (functools.partialmethod(len), functools.partialmethod(max)),
    "arguments of a partialmethod": (functools.partialmethod(len, 1), functools.partialmethod(len, 2)),
    "keywords of a partialmethod": (functools.partialmethod(max, key=1), functools.partialmethod(max, key=2)),
    "implementation of a singledispatchmethod": (dispatching(len), dispatching(max)),
    "code": (compile("1", "a", "eval"), compile("2", "a", "eval")),
    "state of a property's subclass": (Labelled(1), Labelled(2)),
}

SAME = {
    "attributes in another order": (Plain(a=1, b=2), Plain(b=2, a=1)),
    "state that is not given away": (Chosen(1), Chosen(1)),
    "own key": (Keyed({"a": 1, "b": 2}), Keyed({"b": 2, "a": 1})),
    "a method of itself": (Methods("one"), Methods("one")),
    "equal weights": (Net(1.0), Net(1.0)),
    "itemgetter": (operator.itemgetter(1, 2), operator.itemgetter(1, 2)),
    "numpy generator": (np.random.default_rng(3), np.random.default_rng(3)),
    "bound builtin": ([1].count, [1].count),
}


def test_objects_that_differ_have_different_keys() -> None:
    assert [name for name, (a, b) in DIFFERENT.items() if digest_of(a) == digest_of(b)] == []


def test_objects_that_are_alike_have_one_key() -> None:
    assert [name for name, (a, b) in SAME.items() if digest_of(a) != digest_of(b)] == []


def test_what_a_cached_property_keeps_counts_as_any_attribute() -> None:
    asked = Cached()
    assert asked.heavy == 100
    assert len({digest_of(value) for value in (Cached(), asked, Cached(heavy=1))}) == 3


@pytest.mark.parametrize(
    "value",
    [(i for i in [1]), Plain(k=(i for i in [1])), Plain(n=Plain(k=(i for i in [1])))],
)
def test_hidden_state_is_refused_with_its_place_and_remedy(value: Any) -> None:
    with pytest.raises(UnkeyableError) as caught:
        digest_of(value)
    message = str(caught.value)
    assert message.startswith("config.value")
    assert all(way in message for way in ("__prepcache_key__", "register_key"))
    assert "untracked=" not in message, "the function is given its config: it cannot be left out"


def test_a_standard_stream_counts_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out, open(tmp_path / "log", "w") as log:
        with pytest.raises(UnkeyableError):
            digest_of(out)  # not a standard stream, so far
        monkeypatch.setattr(sys, "stderr", out)
        first = digest_of(out)
        monkeypatch.setattr(sys, "stderr", log)
        assert digest_of(log) == first
        monkeypatch.setattr(sys, "stdout", out)
        assert digest_of(out) != first


def test_a_property_that_raises_is_never_called() -> None:
    class Trap:
        @property
        def boom(self) -> int:
            raise RuntimeError("read")

    assert digest_of(Trap()) == digest_of(Trap())


def test_a_getstate_that_raises_is_refused_by_name() -> None:
    class Broken:
        def __getstate__(self) -> None:
            raise RuntimeError("no state today")

    with pytest.raises(UnkeyableError, match=r"Broken.*no state today"):
        digest_of(Broken())


def test_hidden_state_in_c_is_never_left_out() -> None:
    with pytest.raises(Unstable):
        parts_of(i for i in [1])


class Named:
    """Says that it is a global of its module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        return self.name


NAMED = Named("NAMED")


def test_an_object_reduced_to_a_global_counts_by_state(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(NAMED)
    monkeypatch.setattr(NAMED, "more", 1, raising=False)
    assert digest_of(NAMED) != before


def test_an_object_reduced_to_a_missing_global_is_refused() -> None:
    with pytest.raises(UnkeyableError, match="which no module has"):
        digest_of(Named("NAMED"))


def test_a_c_library_counts_by_file_and_declarations() -> None:
    def library(name: str, result: Any = ctypes.c_int) -> ctypes.CDLL:
        made = ctypes.CDLL(name)
        made.cos.restype = result
        return made

    plain = digest_of(library("libm.so.6"))
    assert digest_of(library("libm.so.6")) == plain
    assert digest_of(library("libm.so.6", ctypes.c_double)) != plain
    assert digest_of(ctypes.CDLL("libc.so.6")) != digest_of(ctypes.CDLL("libm.so.6"))


def test_a_compiled_network_counts_by_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiled:
        def __init__(self, original: Any) -> None:
            self._modules = {"_orig_mod": original}
            self.cache = object()

    monkeypatch.setattr(Compiled, "__module__", "torch._dynamo.eval_frame")
    assert digest_of(Compiled(Net(0.0))) == digest_of(Compiled(Net(0.0)))
    assert digest_of(Compiled(Net(0.0))) != digest_of(Compiled(Net(1.0)))


def test_a_tokenizer_counts_by_its_serialised_state() -> None:
    tokenizers = pytest.importorskip("tokenizers")

    def made(words: list[str]) -> Any:
        vocabulary = {word: i for i, word in enumerate(words)}
        return tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))

    assert digest_of(made(["a", "b"])) == digest_of(made(["a", "b"]))
    assert digest_of(made(["a", "b"])) != digest_of(made(["a", "c"]))
    split = made(["a", "b"])
    split.encode_special_tokens = True
    assert digest_of(split) != digest_of(made(["a", "b"]))


def test_what_a_cache_holds_counts_by_value() -> None:
    @functools.lru_cache(maxsize=4)
    def bounded(x: Any, y: int = 0) -> Any:
        return [x, y]

    @functools.cache
    def unbounded(x: Any) -> Any:
        return {"of": x}

    for cached in (bounded, unbounded):
        made = [recipe(cached, code="function").digest]
        for argument in (1, "two", (3, 4)):
            cached(argument)
            made.append(recipe(cached, code="function").digest)
        cached("two")
        made.append(recipe(cached, code="function").digest)
        assert len(set(made)) == 4 and made[-1] == made[-2], "a further hit changes nothing"
        cached.cache_clear()
        assert recipe(cached, code="function").digest == made[0]
    bounded(1, y=2)
    assert recipe(bounded, code="function").digest != made[0]
