"""Run-time values that the canonical encoding does not know: by class and state, or refused by name."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import multiprocessing
import random
import sys
import threading
import weakref
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any, NamedTuple

import attr
import numpy as np
import pytest
import rich.console
import tokenizers
import torch

from prepcache import item_digest
from prepcache.errors import UnkeyableError
from prepcache.keys.markers import plain, tree
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401


def digest_of(value: Any) -> str:
    """The digest of a recipe whose config holds the value."""

    def f(x: Any, value: Any) -> Any:
        return x

    return recipe(f, config={"value": value}).digest


class Plain:
    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


def with_own(value: Any, own: Any) -> Any:
    object.__setattr__(value, "own", own)
    return value


KEPT: list[Any] = []
"""Alive: what is made next lies at another address, and weak references find it."""


def kept(value: Any) -> Any:
    KEPT.append(value)
    return value


class Other(Plain):
    pass


class Slots:
    """As attrs makes them."""

    __slots__ = ("x", "y")

    def __init__(self, x: Any) -> None:
        self.x = self.y = x

    def __getstate__(self) -> dict[str, Any]:
        return {"x": self.x, "y": self.y}

    def method(self) -> Any:
        return self.x


class Frame:
    """As pandas' and PIL's: it says how to make it anew."""

    def __init__(self, blocks: list[Any]) -> None:
        self.blocks = blocks

    def __reduce__(self) -> Any:
        return _frame_of, (Frame, tuple(self.blocks)), {"attrs": {}}


def _frame_of(cls: type, blocks: tuple[Any, ...]) -> Any:
    return cls(list(blocks))


class Tree:
    """Children know their parent."""

    def __init__(self, *children: Tree, n: int = 0) -> None:
        self.children, self.n, self.parent = list(children), n, None
        for child in children:
            child.parent = self  # type: ignore[assignment]


class Place(NamedTuple):
    name: str
    n: int

    def __fspath__(self):
        return self.name


class Table(dict[str, int]):
    pass


class Ordered(OrderedDict[str, int]):
    pass


class Defaults(defaultdict[str, object]):
    pass


@dataclasses.dataclass
class Sizes(list[int]):
    name: str = "a"


@dataclasses.dataclass
class Window(deque[int]):
    name: str = "a"


class Level(enum.Enum):
    LOW = 1


class Trapped:
    __slots__ = "booms"

    @property
    def boom(self) -> int:
        raise RuntimeError("read")


class Trap(Trapped): ...


class Layer(torch.nn.Module):
    __slots__ = ("own",)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    p: int = 1


@attr.frozen(cache_hash=True)
class Hashed:
    p: str = "a"


def subclass(base: Any, *arguments: Any) -> Any:
    return type("Own", (base,), {"__module__": __name__})(*arguments)


def extended(value: Any, element: int) -> Any:
    value.append(element)
    return value


def graded(by: float) -> torch.Tensor:
    value = torch.ones(2, requires_grad=True)
    (value * by).sum().backward()  # type: ignore[no-untyped-call]
    return value


def hashed(own: int) -> Any:
    value = with_own(subclass(Hashed), own)
    if kept(value) and len(KEPT) % 2:
        hash(value)
    return value


def rekeyed(n: int) -> Any:
    table = {(key := type("Key", (Plain,), {"__hash__": lambda self: self.n})(n=1)): n}
    key.n = 2
    return table


def event(is_set: bool) -> Any:
    made = multiprocessing.Event()
    made.set() if is_set else made.clear()
    return made


def weak_set(count: int) -> Any:
    elements = kept([Plain(n=n) for n in range(count)])
    return weakref.WeakSet(reversed(elements) if len(KEPT) % 2 else elements)


class Seeded(random.Random):
    """Has an attribute of the name of a method of torch's."""

    def __init__(self, seed: int) -> None:
        super().__init__(1)
        self.initial_seed = seed


STATES: dict[str, Callable[[int], Any]] = {
    "an attribute": lambda n: Plain(a=n, b="x"), "the class": lambda n: (Plain, Other)[n](a=1),
    "a slot": lambda n: Slots(n), "a reduction": lambda n: Frame([1, n]),
    "an object in an object": lambda n: Plain(a=Plain(b=n)), "a ring": lambda n: Tree(Tree(), Tree(n=n)),
    "the depth of a ring": lambda n: Tree(Tree(Tree())) if n else Tree(Tree(), Tree()),
    "a generator": lambda n: Plain(a=random.Random(n)),
    "a function in C": lambda n: Plain(a=(len, print)[n]), "a method": lambda n: Slots(n).method,
    "a method of a function": lambda n: MethodType(_frame_of, Slots(n)),
    "a partial": lambda n: functools.partial(_frame_of, n),
    "the function of a partial": lambda n: functools.partial((_frame_of, digest_of)[n], 1),
    "a method in C": lambda n: [n].count,
    "the order of a mapping proxy": lambda n: MappingProxyType({"a": 1, "b": 2} if n else {"b": 2, "a": 1}),
    "the order of an OrderedDict": lambda n: Ordered(a=1, b=1) if n else Ordered(b=1, a=1),
    "the factory of a defaultdict": lambda n: Defaults((int, float)[n]),
    "an element of a list": lambda n: extended(Sizes(), n),
    "an element of a deque": lambda n: extended(Window(), n), "an entry of a dict": lambda n: Table(a=n),
    "a field of a record that is a path": lambda n: Place("a", n), "a gradient": graded,
    "the metadata of a dtype": lambda n: np.dtype("i4", metadata={"classes": n}),
    "the metadata of an array's dtype": lambda n: np.zeros(2, np.dtype("i4", metadata={"classes": n})),
    "what a logger's messages get": lambda n: logging.LoggerAdapter(logging.getLogger("a"), {"n": n}),
    "what a weak reference refers to": lambda n: weakref.ref(kept(Plain(n=n))),
    "whether a weak reference is gone": lambda n: weakref.ref(kept(Plain()) if n else Plain()),
    "the elements of a weak set": lambda n: weak_set(8 + n),
    "whether an event is set": lambda n: event(bool(n)), "an attribute of a hashed object": hashed,
    "the seed that a generator keeps": Seeded, "an entry whose key has another hash now": rekeyed,
}  # fmt: skip
OWN: dict[str, Callable[[], Any]] = {
    "a fraction": lambda: subclass(Fraction, 1),
    "a span of time": lambda: subclass(timedelta, 1),
    "a generator": lambda: subclass(random.Random, 1),
    "a frozen dataclass with slots": lambda: subclass(Frozen),
    "an ordered dict": lambda: Ordered(a=1),
    "a list with fields": Sizes,
    "a deque with fields": Window,
    "a dict": Table,
    "a member of an enum": lambda: Level.LOW,
    "an array in a file": lambda: np.array([1, 2]).view(type("Mapped", (np.memmap,), {})),
    "a time zone": lambda: type("Zone", (zoneinfo.ZoneInfo,), {})("UTC"),
    "a generator of torch": lambda: subclass(torch.Generator).manual_seed(1),
    "what has a property that raises": Trap,
    "a module with slots": Layer,
    "a tokenizer": lambda: tokenizers.Tokenizer(tokenizers.models.BPE()),
}
STATES |= {f"an attribute of {of}": lambda n, make=make: with_own(make(), n) for of, make in OWN.items()}


HOLD_FUNCTIONS = {
    "a reduction", "a method", "a method of a function", "a partial", "the function of a partial",
}  # fmt: skip
"""The code of a function in an item would not count."""


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("key", [digest_of, item_digest], ids=["config", "item"])
def test_a_value_counts_by_all_of_its_state(name, key):
    if key is item_digest and name in HOLD_FUNCTIONS:
        with pytest.raises(UnkeyableError, match="its code would not count in an item"):
            key(STATES[name](0))
        return
    one, same, other = (key(STATES[name](n)) for n in (0, 0, 1))
    assert one == same != other


class Named:
    """Says that it is a global of its module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        return self.name


NAMED = Named("NAMED")


class KeyedBy:
    def __init__(self, at: Any) -> None:
        self.at = at

    def __prepcache_key__(self) -> dict[str, Any]:
        return {"at": self.at}


class Broken:
    def __getstate__(self) -> None:
        raise RuntimeError("no state today")


DIRECTORY = r"config\.value\.at.* is a directory; pass prepcache\.tree"
REFUSED: list[tuple[Callable[[Path], Any], str]] = [
    (lambda _: (i for i in [1]), r"^config\.value: .*__prepcache_key__.*register_key"),
    (lambda _: Plain(k=(i for i in [1])), r"^config\.value\.k: .*__prepcache_key__.*register_key"),
    (lambda _: Plain(n=Plain(k=(i for i in [1]))), r"^config\.value\.n\.k: .*register_key"),
    (lambda _: threading.Lock(), r"^config\.value: _thread\.lock has no stable value; .*register_key"),
    (lambda _: Broken(), "Broken.*no state today"),
    (lambda _: Named("NAMED"), "which no module has"),
    (lambda path: Plain(at=path), DIRECTORY),
    (lambda path: KeyedBy(path), DIRECTORY),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_hidden_state_is_refused_with_its_place_and_remedy(tmp_path, make, words):
    with pytest.raises(UnkeyableError, match=words) as caught:
        digest_of(make(tmp_path))
    assert "untracked=" not in caught.value.message, "the function is given its config"


@pytest.mark.parametrize("is_config", [True, False])
def test_a_key_method_may_name_a_tree(tmp_path, is_config):
    def digest() -> str:
        value = KeyedBy(tree(tmp_path))
        return digest_of(value) if is_config else recipe(lambda x: value, config={}).digest

    (tmp_path / "a").write_text("1")
    before = digest()
    assert digest() == before
    (tmp_path / "a").write_text("2")
    assert digest() != before


def test_a_plain_object_names_no_file(tmp_path):
    path = tmp_path / "q.bin"
    path.write_text("1")
    marked, before = plain(Plain(at=str(path))), digest_of(plain(Plain(at=str(path))))
    path.write_text("2")
    assert digest_of(marked) == before
    assert digest_of(Plain(at=str(path))) != before
    assert digest_of(plain(Plain(at="r.bin"))) != before


def test_a_member_of_an_enum_counts_by_what_it_holds(tmp_path):
    path = tmp_path / "a.bin"
    path.write_text("1")
    member = enum.Enum("Files", {"A": path}).A  # type: ignore[attr-defined]
    seen = [digest_of(member)]
    path.write_text("2")
    seen.append(digest_of(member))
    member._scale_ = 1
    seen.append(digest_of(member))
    assert len(set(seen)) == 3


SEEDED = (
    "np.random.default_rng(5)",
    "torch.Generator().manual_seed(5)",
    "random._inst",
    "np.random.mtrand._rand",
    "torch.default_generator",
)


@pytest.mark.parametrize("made", SEEDED)
@pytest.mark.parametrize("is_config", [True, False])
def test_global_and_seeded_generators_have_a_key(made, is_config):
    space = {"random": random, "np": np, "torch": torch}
    exec(f"value = {made}\ndef f(x, **config): return value", space)
    config = {"rng": [space["value"]]} if is_config else {}
    function: Any = max if is_config else space["f"]
    before = recipe(function, config=config).digest
    if "(5)" not in made:  # its draws are watched
        random.random(), np.random.random_sample(), torch.rand(1)
    assert recipe(function, config=config).digest == before


@pytest.mark.parametrize("key", [digest_of, item_digest], ids=["config", "item"])
def test_a_projects_class_of_a_librarys_name_counts(project, monkeypatch, key):
    project.write(loguru="class Logger:\n    def __init__(self, level): self.level = level")
    monkeypatch.setitem(sys.modules, "loguru", project.load("loguru"))
    one, same, other = (key(sys.modules["loguru"].Logger(level)) for level in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("key", [digest_of, item_digest], ids=["config", "item"])
def test_a_console_is_refused_as_it_may_record(key):
    with pytest.raises(UnkeyableError, match="Console"):
        key(rich.console.Console(record=True))


MADE = "def made(k):\n    def g(x): return k\n    return g\n"
MADE += "class A:\n    n = 1\n    def m(self, x): return self.n\na = A()\n"


@pytest.mark.parametrize("held", ["made(1), made(2)", "(1, made(1)), (2, made(2))"])
def test_a_set_of_things_of_one_name_is_refused(project, held):
    project.write(prep=f"{MADE}S = {{{held}}}\ndef f(x): return S")
    with pytest.raises(UnkeyableError, match=r"prep\.S\.element.*: a set gives no order to .* __qualname__"):
        recipe(project.load().f)


@pytest.mark.parametrize("held", ["made, A, made(1), len", "a.m, (1, a.m), A().m"])
def test_functions_in_a_set_have_no_order_in_the_key(project, held):
    project.write(prep=f"{MADE}S = {{{held}}}\ndef f(x): return S")
    loaded = [project.load() for _ in range(6)]  # all kept, so that their addresses differ
    assert len({recipe(module.f).digest for module in loaded}) == 1


def test_what_was_dispatched_so_far_does_not_count():
    size = functools.singledispatch(_frame_of)
    before = digest_of(size)
    size(list, ())
    assert digest_of(size) == before
    size.register(int, Other)
    assert digest_of(size) != before
