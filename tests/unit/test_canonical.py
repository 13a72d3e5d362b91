"""The canonical encoding: what differs, what does not, and what is refused."""

from __future__ import annotations

import argparse
import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import re
import subprocess
import sys
import threading
import time
import types
import uuid
import zoneinfo
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest

from prepcache import register_key
from prepcache.errors import UnkeyableError
from prepcache.keys import canonical
from prepcache.keys.canonical import Encoder, canonical_order, encode
from prepcache.keys.marks import plain, tree

Bag = types.SimpleNamespace


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    a: int
    b: int


@dataclasses.dataclass
class Size:
    width: int
    height: int = 2
    options: dict[str, int] = dataclasses.field(default_factory=dict)


class Text(str):
    pass


class Config(Mapping[str, Any]):
    """Stands for OmegaConf's DictConfig."""

    def __init__(self, **items: Any) -> None:
        self._content = items

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


Config.__module__ = "omegaconf.dictconfig"


class Broken:
    @property
    def value(self) -> int:
        raise OSError("the disk is gone")


@dataclasses.dataclass
class Lazy:
    value: int

    def __getattribute__(self, name: str) -> Any:
        if name == "value":
            raise OSError("the disk is gone")
        return super().__getattribute__(name)


ALIKE = [
    1, 1.0, True, "1", b"1", (1,), [1], {1}, frozenset({1}), {1: None}, complex(1), Level.LOW, Text("1"),
    bytearray(b"1"), range(1), collections.OrderedDict({1: None}), collections.deque([1]), plain("1"),
    PurePosixPath, None, (), [], {}, set(), frozenset(), "", b"", 0, 0.0, -0.0, False, ..., [[]], ([],),
    collections.Counter({1: 1}), {1: 1}, collections.defaultdict(int, {1: 1}), types.SimpleNamespace(a=1),
    {"a": 1}, Pair(1, 2), (1, 2), Size(1, 2), Colour.RED, Colour.GREEN,
]  # fmt: skip


def test_values_that_python_may_call_equal_differ_by_type() -> None:
    hooks = Encoder(on_code=lambda value, _: value.__name__.encode() if isinstance(value, type) else None)
    encoded = [hooks.encode(value) for value in ALIKE]
    assert len(set(encoded)) == len(ALIKE)


def functional(**members: int) -> type[enum.Enum]:
    return enum.Enum("Functional", members)  # type: ignore[return-value]


class Hue(enum.Enum):
    RED = 1


class OtherPair(NamedTuple):
    a: int
    b: int


@dataclasses.dataclass
class OtherSize:
    width: int
    height: int = 2
    options: dict[str, int] = dataclasses.field(default_factory=dict)


class OtherText(str):
    pass


class Marked(str):
    def __new__(cls, text: str, mark: int) -> Marked:
        made = super().__new__(cls, text)
        made.mark = mark
        return made

    mark: int


class Table(dict[str, int]):
    pass


class Row(list[int]):
    pass


class OtherConfig(Config):
    pass


class Sequence:
    """Stands for OmegaConf's ListConfig."""

    def __init__(self, *elements: int) -> None:
        self._content = elements

    def __iter__(self) -> Iterator[int]:
        return iter(self._content)


OtherConfig.__module__ = Sequence.__module__ = "omegaconf.dictconfig"
HOUR = datetime.timedelta(hours=1)
NINE = int.from_bytes(b"\1" + bytes(8))
"""Nine bytes long."""

DIFFERENT = {
    "elements of a long list": (list(range(99)), [*range(97), 98, 97]),
    "texts and where they end": (["a", "sb"], ["as", "b"]),
    "long ints and where they end": (
        [NINE, int.from_bytes(b"\1" + bytes(8) + b"I\1" + bytes(8))],
        [int.from_bytes(b"\1" + bytes(8) + b"I\1" + bytes(8)), NINE],
    ),
    "dicts and where they end": ({"a": {}, "b": 1}, {"a": {"b": 1}}),
    "sets and where they end": ({frozenset(), frozenset({1})}, {frozenset({frozenset({1})})}),
    "attributes and where they end": (
        types.SimpleNamespace(x=types.SimpleNamespace(a=1, b=2)),
        types.SimpleNamespace(x=types.SimpleNamespace(a=1), b=2),
    ),
    "sign of a long int": (2**70, -(2**70)),
    "imaginary part": (complex(1, 2), complex(1, 3)),
    "keys of a dict": ({"a": 1}, {"b": 1}),
    "values of a dict": ({"a": 1}, {"a": 2}),
    "order of a dict with odd keys": ({frozenset(): 1, "a": 2}, {"a": 2, frozenset(): 1}),
    "range and slice": (range(0, 1, 1), slice(0, 1, 1)),
    "step of a range": (range(0, 4, 1), range(0, 4, 2)),
    "step of a slice": (slice(0, 4, 1), slice(0, 4, 2)),
    "type of a buffer": (bytearray(b"1"), memoryview(b"1")),
    "format of a buffer": (array.array("b", [1]), array.array("B", [1])),
    "shape of a buffer": (
        memoryview(b"1234").cast("B", (2, 2)), memoryview(b"1234").cast("B", (1, 4)),
    ),
    "bytes of a buffer": (bytearray(b"1"), bytearray(b"2")),
    "pattern": (re.compile("a"), re.compile("b")),
    "flags of a pattern": (re.compile("a"), re.compile("a", re.I)),
    "pattern of text and of bytes": (re.compile("a", re.A), re.compile(b"a", re.A)),
    "name of a timezone": (datetime.timezone(HOUR), datetime.timezone(HOUR, "X")),
    "offset of a timezone": (datetime.timezone(HOUR, "X"), datetime.timezone(2 * HOUR, "X")),
    "fold of a time": (datetime.time(1), datetime.time(1, fold=1)),
    "timezone of a time": (datetime.time(1), datetime.time(1, tzinfo=datetime.UTC)),
    "microsecond": (datetime.time(1), datetime.time(1, 0, 0, 1)),
    "time of a datetime": (datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1, 1)),
    "date and datetime": (datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1)),
    "microseconds of a duration": (datetime.timedelta(0), datetime.timedelta(microseconds=1)),
    "length of a deque": (collections.deque([1]), collections.deque([1], 1)),
    "factory of a defaultdict": (collections.defaultdict(int), collections.defaultdict(list)),
    "class of an enum": (Colour.RED, Hue.RED),
    "name of an enum member": (functional(A=1)["A"], functional(B=1)["B"]),
    "value of an enum member": (functional(A=1)["A"], functional(A=2)["A"]),
    "class of a dataclass": (Size(1), OtherSize(1)),
    "name of a field": (dataclasses.make_dataclass("S", "a")(1), dataclasses.make_dataclass("S", "b")(1)),
    "value of a field": (Size(1, 2), Size(1, 3)),
    "class of a namedtuple": (Pair(1, 2), OtherPair(1, 2)),
    "names of a namedtuple": (collections.namedtuple("T", "a")(1), collections.namedtuple("T", "b")(1)),
    "elements of a namedtuple": (Pair(1, 2), Pair(1, 3)),
    "class of a subclass": (Text("1"), OtherText("1")),
    "value of a subclass": (Text("1"), Text("2")),
    "state of a subclass": (Marked("1", 1), Marked("1", 2)),
    "items of a dict's subclass": (Table(a=1), Table(a=2)),
    "elements of a list's subclass": (Row([1]), Row([2])),
    "items of a mapping": (Config(a=1), Config(a=2)),
    "class of a mapping": (Config(a=1), OtherConfig(a=1)),
    "elements of a sequence": (Sequence(1), Sequence(2)),
    "class of a namespace": (types.SimpleNamespace(a=1), argparse.Namespace(a=1)),
    "digits of a decimal": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "denominator": (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "UUID": (uuid.UUID(int=1), uuid.UUID(int=2)),
    "time zone": (zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo("Europe/Berlin")),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_part_of_a_value_counts(name: str) -> None:
    one, other = DIFFERENT[name]
    assert encode(one) != encode(other)


def test_classes_of_one_name_in_two_modules_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    one = encode(Size(1))
    monkeypatch.setattr(Size, "__module__", "another")
    assert encode(Size(1)) != one


def test_a_set_of_what_has_no_order_is_written_in_one_order() -> None:
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


def test_what_a_hook_says_of_paths_does_not_run_together() -> None:
    hooks = Encoder(on_path=lambda value, _: bytes(value))
    one, other = [PurePosixPath("a"), PurePosixPath("pb")], [PurePosixPath("ap"), PurePosixPath("b")]
    assert hooks.encode(one) != hooks.encode(other)


def test_a_registered_type_counts_so_in_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "_registered", {})
    monkeypatch.setattr(canonical, "_writers", {})
    register_key(int, lambda value: "number")
    assert encode([1] * 99) == encode([2] * 99)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        ([["a"], "b"], [["a", "b"]]),
        ([b"ab", b""], [b"a", b"b"]),
        ({"a": "b", "c": "d"}, {"a": "bc", "": "d"}),
        ([1, [2]], [[1], 2]),
        (("a", ("b",)), (("a",), "b")),
        ("s\0\0", "s\0"),
        (
            [[Bag(a=1), "b"], 1, Bag(a=1, b=2)],
            [[Bag(a=1, b=1), Bag(a=1)], "b", 2],
        ),
    ],
)
def test_concatenation_does_not_make_values_alike(one: Any, other: Any) -> None:
    assert encode(one) != encode(other)


def test_the_order_of_a_plain_dict_does_not_count() -> None:
    assert encode({"a": 1, "b": [{2: 3, 4: 5}]}) == encode({"b": [{4: 5, 2: 3}], "a": 1})


def test_the_order_of_an_ordered_dict_counts() -> None:
    one, other = collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)
    assert encode(one) != encode(other)


def test_the_order_of_a_dict_that_cannot_be_put_right_counts() -> None:
    """A function could see the order of a dict inside an object, so it may not be left out of the key."""
    assert encode(Size(1, 2, {"a": 1, "b": 2})) != encode(Size(1, 2, {"b": 2, "a": 1}))


def test_the_function_receives_plain_dicts_in_the_order_that_is_keyed() -> None:
    one = canonical_order({"b": [{"y": 1, "x": (2, {"q": 1, "p": 2})}], "a": 1})
    other = canonical_order({"a": 1, "b": [{"x": (2, {"p": 2, "q": 1}), "y": 1}]})
    assert repr(one) == repr(other)


def test_a_config_that_is_in_order_is_not_copied() -> None:
    config = {"a": [1, {"b": 2}], "c": (3,)}
    assert canonical_order(config)["a"] is config["a"]


def test_sets_do_not_depend_on_the_hash_seed() -> None:
    script = "from prepcache.keys.canonical import encode; print(encode({'a', 'b', 'c', 1, None}).hex())"
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_encoding_plain_values_imports_no_library() -> None:
    script = (
        "import sys; from prepcache.keys.canonical import encode; encode({'a': [1, 2.0, 'x', None, {3}]});"
        "from prepcache.keys.items import load; load(('a', 1));"
        "print([m for m in ('numpy', 'torch', 'pydantic', 'inspect', 'dataclasses') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "[]"


def test_nan_is_one_and_zeros_are_two() -> None:
    import struct

    odd_nan = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    assert encode(float("nan")) == encode(odd_nan)
    assert encode([odd_nan] * 99) == encode([float("nan")] * 99)
    assert encode(0.0) != encode(-0.0)


def test_a_long_list_counts_as_its_elements_do() -> None:
    short = encode(list(range(63)))[10:]
    assert encode(list(range(100)))[10:].startswith(short)
    mixed = [2**70, *range(99)]
    assert encode(mixed)[10:] == b"".join(encode(x)[1:] for x in mixed)


def test_text_is_not_normalised() -> None:
    assert encode("é") != encode("e\u0301")


def test_an_object_counts_by_class_and_every_field() -> None:
    assert encode(Size(1)) != encode(Size(2))
    extra = Size(1)
    extra.more = 1  # type: ignore[attr-defined]
    assert encode(Size(1)) != encode(extra)
    assert encode(Pair(1, 2)) != encode((1, 2))


def test_a_cached_property_that_was_asked_for_does_not_count() -> None:
    @dataclasses.dataclass
    class Scale:
        base: int

        @functools.cached_property
        def double(self) -> int:
            return 2 * self.base

    asked = Scale(1)
    assert asked.double == 2
    assert encode(asked) == encode(Scale(1)) != encode(Scale(2))


def test_slots_count_as_fields_do() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Slotted:
        a: int

    assert encode(Slotted(1)) != encode(Slotted(2))


def test_a_mapping_of_a_config_library_counts_by_its_items() -> None:
    assert encode(Config(a=1, b={"c": 2})) == encode(Config(a=1, b={"c": 2}))
    assert encode(Config(a=1)) != encode(Config(a=2))
    assert encode(Config(a=1)) != encode({"a": 1})


def test_a_registered_function_makes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "_registered", {})
    monkeypatch.setattr(canonical, "_writers", {})

    class Handle:
        def __init__(self, name: str) -> None:
            self.name = name

    class Sub(Handle):
        pass

    register_key(Handle, lambda handle: handle.name)
    assert encode(Handle("a")) != encode(Handle("b"))
    assert encode(Handle("a")) == encode(Handle("a"))
    assert encode(Sub("a")) != encode(Handle("a"))


def test_a_method_of_the_class_makes_the_key() -> None:
    class Handle:
        def __init__(self, name: str) -> None:
            self.name = name
            self.lock = threading.Lock()

        def __prepcache_key__(self) -> Any:
            return {"name": self.name}

    assert encode(Handle("a")) == encode(Handle("a"))
    assert encode(Handle("a")) != encode(Handle("b"))


def test_hooks_decide_what_code_and_objects_are() -> None:
    encoder = Encoder(
        on_code=lambda value, _: value.__qualname__.encode(),
        on_object=lambda value, encoder: encoder.part(vars(value), "state"),
    )
    assert encoder.encode(Broken) != encoder.encode(Size)
    one, other = Broken(), Broken()
    one.x = 1  # type: ignore[attr-defined]
    assert encoder.encode(one) != encoder.encode(other)


@pytest.mark.parametrize(
    ("value", "place", "why"),
    [
        ({"augment": {"sampler": object()}}, "config.augment.sampler", "no stable bytes"),
        ({"a": [1, threading.Lock()]}, "config.a[1]", "register_key"),
        ({"odd key": (x for x in ())}, "config['odd key']", "generator"),
        ({"f": len, "g": print, "h": time.time}, "config.h", "no stable bytes"),
        ({"lazy": Lazy(1)}, "config.lazy.value", "the disk is gone"),
        ({"d": Size(1, 2, {"x": plain(1)})}, "config.d.options.x", "mark"),  # type: ignore[dict-item]
        ({"p": Path("a")}, "config.p", "cannot be looked up"),
        ({"p": tree("a")}, "config.p", "cannot be looked up"),
        ({"s": {Broken}}, "config.s.element", "Broken"),
    ],
)
def test_what_cannot_be_keyed_is_refused_with_its_place(value: Any, place: str, why: str) -> None:
    with pytest.raises(UnkeyableError) as caught:
        encode(value)
    assert caught.value.message.startswith(place)
    assert why in caught.value.message


def test_a_config_that_contains_itself_is_refused() -> None:
    config: dict[str, Any] = {"a": [1]}
    config["a"].append(config)
    with pytest.raises(UnkeyableError, match=r"config\.a\[1\]: this dict contains itself"):
        encode(config)


def test_a_value_may_be_met_twice() -> None:
    shared = [1]
    assert encode([shared, shared]) == encode([[1], [1]])


def test_an_encoder_can_be_used_after_it_refused() -> None:
    encoder = Encoder()
    shared: dict[str, Any] = {"x": object()}
    with pytest.raises(UnkeyableError):
        encoder.encode(shared)
    shared["x"] = 1
    assert encoder.encode(shared) == encode({"x": 1})


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnkeyableError, match="nested too deeply"):
        encode(deep)
    while deep:  # else the interpreter frees it recursively
        deep = deep[0]


def test_a_large_config_takes_time_in_proportion() -> None:
    config = {"text": "x" * 20_000_000, "table": list(range(1_000_000)), "words": ["word"] * 200_000}
    start = time.process_time()
    raw = encode(config)
    assert len(raw) > 30_000_000
    assert time.process_time() - start < 5
