"""The values whose canonical bytes, and the items whose digests, are pinned."""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import re
import struct
import types
import uuid
import zoneinfo
from typing import Any, NamedTuple

import numpy as np
import pydantic
import torch

from prepcache import item_digest
from prepcache.keys import markers


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Size:
    width: int
    height: int = 2


class Model(pydantic.BaseModel):
    rate: float = 0.5


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    _own: int = pydantic.PrivateAttr(default=3)


class Keyed:
    def __prepcache_key__(self) -> object:
        return ["key", 1]


class Text(str):
    mark: int


class Words(list[str]):
    pass


class Table(dict[str, int]):
    __slots__ = ("mark",)


class Tagged(np.ndarray):
    pass


class Named(torch.Tensor):
    pass


for _cls in (Colour, Point, Size, Model, Open, Keyed, Text, Words, Table, Tagged, Named):
    _cls.__module__ = "golden"


def _with(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


NAN_WITH_PAYLOAD = struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0]

VALUES: dict[str, Any] = {
    "none": None, "true": True, "false": False, "int": 1, "int negative": -1, "int 64 bits": 2**63 - 1,
    "int 65 bits": 2**63, "int large negative": -(10**30), "float": 1.0, "float minus zero": -0.0,
    "float nan": float("nan"), "float inf": float("inf"), "complex": complex(1.5, -2), "str": "1",
    "str composed": "é", "str decomposed": "e\u0301", "str surrogate": "\ud800", "bytes": b"1",
    "bytearray": bytearray(b"1"), "list": [1, "a"], "list long": list(range(100)), "tuple": (1, "a"),
    "empty tuple": (), "dict": {"b": 1, "a": [2], 3: None}, "dict of objects": {Colour.RED: 1},
    "ordered dict": collections.OrderedDict(b=1, a=2), "default dict": collections.defaultdict(int, a=1),
    "set": {1, "a"}, "frozenset": frozenset((1, "a")), "range": range(1, 9, 2), "slice": slice(1, None),
    "ellipsis": ..., "enum": Colour.RED, "date": datetime.date(2024, 2, 29),
    "datetime": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC),
    "time": datetime.time(1, 2, 3, 4, fold=1), "timedelta": datetime.timedelta(days=-1, microseconds=5),
    "decimal": decimal.Decimal("1.10"), "fraction": fractions.Fraction(1, 3), "uuid": uuid.UUID(int=5),
    "regex": re.compile("a+", re.IGNORECASE), "plain": markers.plain("a"),
    "plain path": markers.plain(pathlib.PurePosixPath("a/b")), "namedtuple": Point(1, 2.0),
    "dataclass": Size(1), "pydantic": Model(), "builtin class": int, "builtin function": len,
    "numpy scalar": np.float32(1.5), "numpy str": np.str_("a"), "numpy dtype": np.dtype("<i4"),
    "numpy record dtype": np.dtype([("a", "<i2"), ("b", "<f4", (2,))]),
    "numpy array": np.arange(4, dtype="<i4").reshape(2, 2), "numpy array 0-d": np.array(1, dtype="<i8"),
    "numpy array empty": np.zeros((0, 3), dtype="<f8"), "numpy str array": np.array(["a", "bc"]),
    "torch tensor": torch.arange(4, dtype=torch.int32).reshape(2, 2),
    "torch bfloat16": torch.tensor([1.5], dtype=torch.bfloat16), "torch dtype": torch.float16,
    "torch device": torch.device("cpu"), "torch size": torch.Size((1, 2)),
    "float nan with a payload": [NAN_WITH_PAYLOAD, 1], "set of tuples": {(2, 1), (1, 2), frozenset({3, 4})},
    "deque": collections.deque([1, 2], maxlen=3), "counter": collections.Counter("aab"),
    "mapping proxy": types.MappingProxyType({"b": 1, "a": 2}),
    "memoryview": memoryview(array.array("h", [1, 2])), "array of the library": array.array("d", [1.5]),
    "time zone": datetime.timezone(datetime.timedelta(hours=1), "here"),
    "zone by name": zoneinfo.ZoneInfo("UTC"), "namespace": types.SimpleNamespace(b=1, a={"d": 1, "c": 2}),
    "own key": Keyed(), "subclass of str": _with(Text("a"), mark=1), "subclass of list": Words(["a"]),
    "subclass of dict": _with(Table(b=1, a=2), mark=1), "dataclass with more": _with(Size(1, 3), more=2),
    "pydantic with more": _with(Open(more=1), _own=4),
    "numpy object array": np.array([1, "a", None], dtype=object),
    "numpy records": np.array([(1, 2.0)], [("a", "<i2"), ("b", ">f4")]),
    "numpy masked array": np.ma.masked_array([1, 2], [True, False], dtype="<i4", fill_value=9),
    "numpy subclass": np.arange(2, dtype="<i4").view(Tagged),
    "torch subclass": torch.arange(2).as_subclass(Named),
    "torch with a gradient": torch.zeros(1, requires_grad=True),
    "torch conjugated": torch.tensor([1 + 2j]).conj(),
}  # fmt: skip


def item_digests(folder: pathlib.Path) -> dict[str, str]:
    """Digests of items over files that it makes in `folder`, which must be the working directory."""
    (folder / "tree" / "sub").mkdir(parents=True)
    (folder / "tree" / "sub" / "b.txt").write_bytes(b"b")
    (folder / "a.txt").write_bytes(b"a")
    path = pathlib.Path("a.txt")
    return {
        "int": item_digest(1),
        "text": item_digest("no file"),
        "path": item_digest(path),
        "path in a tuple": item_digest((path, 1)),
        "str": item_digest("a.txt"),
        "str in a dict": item_digest({"image": "a.txt"}),
        "under a root": item_digest(folder / "a.txt", root=folder),
        "bytes": item_digest(path, read="bytes"),
        "text contents": item_digest(path, read="text"),
        "directory": item_digest(pathlib.Path("tree")),
        "tree": item_digest(markers.tree("tree")),
        "nothing": item_digest(pathlib.Path("absent")),
    }
