"""Run-time values that the canonical encoding does not know: by class and state, or refused by name."""

from __future__ import annotations

import dataclasses
import enum
import io
import logging
import multiprocessing
import random
import weakref
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attr
import numpy as np
import pytest
import torch

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


def graded(by: float) -> torch.Tensor:
    value = torch.ones(2, requires_grad=True)
    (value * by).sum().backward()  # type: ignore[no-untyped-call]
    return value


BESIDE = {
    "a gradient": graded,
    "what a dtype carries": lambda n: np.dtype("i4", metadata={"classes": n}),
    "what an array's dtype carries": lambda n: np.zeros(2, np.dtype("i4", metadata={"classes": n})),
    "what a logger's messages get": lambda n: logging.LoggerAdapter(logging.getLogger("a"), {"n": n}),
}


@pytest.mark.parametrize("made", BESIDE.values(), ids=BESIDE)
def test_what_a_library_keeps_beside_a_value_counts(made: Any) -> None:
    assert digest_of(made(1)) == digest_of(made(1))
    assert digest_of(made(1)) != digest_of(made(2))


SETS = """
def made(k):
    def g(x): return k
    return g
class A:
    def __init__(self): self.n = 1
    def m(self, x): return self.n
class B:
    def __init__(self): self.p = self.q = A()
    def m(self, x): return self.p.n
    def n(self, x): return self.q.n
def flip(x): return shared
def crop(x): return shared
shared = A()
b = B()
S = {%s}
def f(x): return S
"""


@pytest.mark.parametrize("held", ["flip, crop, A, made(1)", "b.m, b.n", "b.m, (1, b.m)", "(b.m,), (1, b.n)"])
def test_functions_in_a_set_count_in_no_order(project: Project, held: str) -> None:
    project.write(prep=SETS % held)
    loaded = [project.load() for _ in range(6)]  # all kept, so that their addresses differ
    assert len({recipe(module.f).digest for module in loaded}) == 1


LOADED_AGAIN = "flip, type(flip)(flip.__code__, dict(globals()))"
NAMED_ALIKE = ["made(1), made(2)", "A().m, A().m", "(1, made(1)), (2, made(2))", LOADED_AGAIN]


@pytest.mark.parametrize("held", NAMED_ALIKE)
def test_a_set_of_things_of_one_name_is_refused(project: Project, held: str) -> None:
    project.write(prep=SETS % held)
    with pytest.raises(UnkeyableError, match=r"prep\.S\.element.*: a set gives no order to two things named"):
        recipe(project.load().f)


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


class Named:
    """Says that it is a global of its module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        return self.name


NAMED = Named("NAMED")


def test_an_object_reduced_to_a_missing_global_is_refused() -> None:
    with pytest.raises(UnkeyableError, match="which no module has"):
        digest_of(Named("NAMED"))


@pytest.mark.parametrize("marked", [lambda path: Plain(at=path), lambda path: KeyedBy(path)])
def test_a_directory_in_an_object_of_a_config_is_refused(tmp_path: Path, marked: Any) -> None:
    with pytest.raises(UnkeyableError, match=r"config\.value\.at.* is a directory; pass prepcache\.tree"):
        digest_of(marked(tmp_path))


class KeyedBy:
    def __init__(self, at: Any) -> None:
        self.at = at

    def __prepcache_key__(self) -> dict[str, Any]:
        return {"at": self.at}


@pytest.mark.parametrize("is_config", [True, False])
def test_a_key_method_may_name_a_tree(tmp_path: Path, is_config: bool) -> None:
    def digest() -> str:
        value = KeyedBy(tree(tmp_path))
        return digest_of(value) if is_config else recipe(lambda x: value, config={}).digest

    (tmp_path / "a").write_text("1")
    before = digest()
    assert digest() == before
    (tmp_path / "a").write_text("2")
    assert digest() != before


def test_a_plain_object_names_no_file(tmp_path: Path) -> None:
    path = tmp_path / "q.bin"
    path.write_text("1")
    marked, before = plain(Plain(at=str(path))), digest_of(plain(Plain(at=str(path))))
    path.write_text("2")
    assert digest_of(marked) == before
    assert digest_of(Plain(at=str(path))) != before
    assert digest_of(plain(Plain(at="r.bin"))) != before


def test_attributes_beside_a_reduction_count_whatever_they_are() -> None:
    class Ratio(Fraction):
        scale: int

    class Span(timedelta):
        lo: int

    class Dice(random.Random):
        sides: int

    for kind in (Ratio, Span, Dice):
        one, other = kind(1), kind(1)
        vars(one).update(scale=1, lo=1, sides=1)
        vars(other).update(scale=0, lo=1, sides=1)
        assert digest_of(one) != digest_of(other), kind


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    p: int = 1


@attr.frozen(cache_hash=True)
class SlottedByAttrs:
    p: str = "a"


@pytest.mark.parametrize("base", [Slotted, SlottedByAttrs])
def test_a_subclass_of_a_class_with_slots_counts_its_own(base: Any) -> None:
    kind = type("Own", (base,), {})

    def made(k: int) -> Any:
        value = kind()
        object.__setattr__(value, "k", k)
        return value

    assert digest_of(made(1)) != digest_of(made(2))
    used = made(1)
    hash(used)
    assert digest_of(used) == digest_of(made(1))


def test_the_order_of_a_mapping_proxy_counts() -> None:
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert digest_of(one) == digest_of(other)
    assert digest_of(MappingProxyType(one)) != digest_of(MappingProxyType(other))


def test_a_member_of_an_enum_counts_by_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_text("1")
    member = enum.Enum("Files", {"A": path}).A  # type: ignore[attr-defined]
    seen = [digest_of(member)]
    path.write_text("2")
    seen.append(digest_of(member))
    member._scale_ = 1
    seen.append(digest_of(member))
    assert len(set(seen)) == 3


def test_parameters_with_long_numbers_count_by_name() -> None:
    def f(x: Any, k111111: int = 1) -> Any:
        return x

    def g(x: Any, k222222: int = 1) -> Any:
        return x

    g.__code__ = g.__code__.replace(co_name="f", co_qualname=f.__code__.co_qualname)
    assert recipe(f, code="function").digest != recipe(g, code="function").digest


def test_a_weak_reference_counts_by_what_it_refers_to() -> None:
    one, same, other = Plain(n=1), Plain(n=1), Plain(n=2)
    assert digest_of(weakref.ref(one)) == digest_of(weakref.ref(same))
    assert digest_of(weakref.ref(one)) != digest_of(weakref.ref(other))
    gone = weakref.ref(other)
    before = digest_of(gone)
    del other
    assert digest_of(gone) != before


GENERATORS = {
    "random.Random()": True,
    "np.random.default_rng()": True,
    "np.random.PCG64()": True,
    "torch.Generator(); value.seed()": True,
    "np.random.default_rng(5)": False,
    "torch.Generator().manual_seed(5)": False,
    "random._inst": False,
    "np.random.mtrand._rand": False,
    "torch.default_generator": False,
}


@pytest.mark.parametrize("made", GENERATORS)
@pytest.mark.parametrize("is_config", [True, False])
def test_a_generator_without_a_seed_is_named(made: str, is_config: bool) -> None:
    space = {"random": random, "np": np, "torch": torch}
    exec(f"value = {made}\ndef f(x, **config): return value", space)
    config = {"rng": [space["value"]]} if is_config else {}
    function: Any = max if is_config else space["f"]
    place = "config.rng[0]" if is_config else "__main__.value"
    found = recipe(function, config=config)
    assert [f"{place} is a random generator" in note for note in found.notes] == [True] * GENERATORS[made]
    if "_" in made or ".default_g" in made:  # its draws are watched
        random.random(), np.random.random_sample(), torch.rand(1)
    if not GENERATORS[made]:
        assert recipe(function, config=config).digest == found.digest


class Watched(weakref.WeakSet[Any]):
    pass


@pytest.mark.parametrize("kind", [weakref.WeakSet, Watched])
def test_a_weak_set_counts_as_a_set(kind: Any) -> None:
    held = [Plain(n=n) for n in range(9)]
    one, other = kind(held), kind(reversed(held))
    assert digest_of(one) == digest_of(other)
    if kind is Watched:
        one.scale = 2
        assert digest_of(one) != digest_of(other)
        del one.scale
    other.discard(held[0])
    assert digest_of(one) != digest_of(other)


def test_an_event_of_processes_counts_by_whether_it_is_set() -> None:
    event = multiprocessing.Event()
    before = digest_of(event)
    event.set()
    assert digest_of(event) != before


class Buffer(io.BytesIO):
    pass


@pytest.mark.parametrize("value", [io.BytesIO(b"a"), io.StringIO("a"), Buffer(b"a"), ValueError("a")])
def test_lazily_cached_attributes_do_not_change_the_key(value: Any) -> None:
    before = digest_of(value)
    assert vars(value) == {}
    assert digest_of(value) == before
    value.more = 1
    assert digest_of(value) != before


@pytest.mark.parametrize("code", ["script", "function"])
def test_a_structure_of_ctypes_counts_by_its_fields(project: Project, code: Any) -> None:
    """Headers of binary files are read so. What ctypes makes of each field follows from them."""
    text = "import ctypes\nclass H(ctypes.{}):\n    _fields_ = [('a', ctypes.{}), ('b', ctypes.{})]\n"
    digests = []
    for made_of in (
        ("LittleEndianStructure", "c_int8", "c_int8 * 4"),
        ("LittleEndianStructure", "c_int8", "c_int8 * 4"),
        ("LittleEndianStructure", "c_uint8", "c_int8 * 4"),
        ("LittleEndianStructure", "c_int8", "c_int8 * 5"),
        ("BigEndianStructure", "c_int8", "c_int8 * 4"),
    ):
        project.write(prep=text.format(*made_of) + "def f(x): return H.from_buffer_copy(x).a\n")
        digests.append(recipe(project.load().f, code=code).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
