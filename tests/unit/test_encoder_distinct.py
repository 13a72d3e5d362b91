"""The canonical encoding: values that differ in anything have different bytes, wherever parts of them end."""

from __future__ import annotations

import argparse
import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import re
import sys
import types
import uuid
import zoneinfo
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

from prepcache.keys.encoding.encoder import Encoder, encode
from prepcache.keys.markers import plain
from support.classes import OMEGACONF, Config, Container, OtherPair, OtherSize, Pair, Size

Bag = types.SimpleNamespace


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


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


class Sequence(Container):
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


def test_every_part_of_a_value_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "omegaconf", OMEGACONF)
    assert [name for name, (one, other) in DIFFERENT.items() if encode(one) == encode(other)] == []


def hiding(base: Any, *names: str) -> Any:
    """A subclass whose conversions all give the same."""
    same = {"__iter__": lambda self: iter(()), "__bool__": lambda self: False}
    return type("Hiding", (base,), {name: same.get(name, lambda *_: base()) for name in names})


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (hiding(str, "__str__"), "a", "b"),
        (hiding(bytes, "__bytes__", "__getitem__"), b"a", b"b"),
        (hiding(int, "__int__", "__index__", "__bool__"), 1, 2),
        (hiding(float, "__float__"), 1.0, 2.0),
        (hiding(complex, "__complex__"), 1j, 2j),
        (hiding(set, "__iter__"), {1}, {2}),
        (hiding(frozenset, "__iter__"), {1}, {2}),
        (hiding(list, "__iter__"), [1], [2]),
        (hiding(tuple, "__iter__"), [1], [2]),
        (hiding(dict, "__iter__"), {1: 1}, {1: 2}),
        (lambda pair: hiding(Pair, "__iter__")(*pair), (1, 2), (1, 3)),
    ],
    ids=lambda part: part.__mro__[1].__name__ if isinstance(part, type) else "",
)
def test_a_value_that_converts_itself_counts_by_what_it_holds(kind: Any, one: Any, other: Any) -> None:
    assert encode(kind(one)) == encode(kind(one)) != encode(kind(other))


def test_classes_of_one_name_in_two_modules_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    one = encode(Size(1))
    monkeypatch.setattr(Size, "__module__", "another")
    assert encode(Size(1)) != one


def test_what_a_hook_says_of_paths_does_not_run_together() -> None:
    hooks = Encoder(on_path=lambda value, _: bytes(value))
    one, other = [PurePosixPath("a"), PurePosixPath("pb")], [PurePosixPath("ap"), PurePosixPath("b")]
    assert hooks.encode(one) != hooks.encode(other)
