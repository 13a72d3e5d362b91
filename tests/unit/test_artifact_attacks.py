"""Hostile and damaged artifacts: each attack by its name.

A file comes from another user, or from a disk that lies. Whatever its bytes are, opening it gives an
ArtifactError: no view outside the map, no crash, no import, no unbounded memory or time. Not checked, for it
would mean to read all data: that booleans are 0 or 1.
"""

import base64
import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
import torch

from prepcache import artifact
from prepcache.artifact import header as artifact_format
from prepcache.artifact.header import MAX_INPUTS, MAX_OBSERVED_BYTES
from prepcache.digests import entry_key
from prepcache.errors import ArtifactError
from support.artifacts import patch_tensor, replace_header, rewrite, samples_of, write

SAMPLES: list[Any] = [
    {"x": torch.zeros(2, 3), "n": 1, "t": "text"},
    {"x": torch.ones(4, 3), "n": 2, "t": "more"},
    (np.zeros(3, ">i4"), np.arange(2)),
    (np.zeros(3, ">i4"), np.arange(5)),
]


@pytest.fixture(name="path")
def path_fixture(tmp_path: Path) -> Path:
    """An artifact with two groups, dense and ragged columns, and the names x, x.offsets, x.shapes, n, t."""
    write(tmp_path / "a", SAMPLES)
    return tmp_path / "a"


def refused(path: Path, words: str | None = None) -> None:
    """Neither the reader nor the daemon's check takes the file."""
    with pytest.raises(ArtifactError, match=words):
        artifact.open(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(ArtifactError, match=words):
            artifact.check(fd)
    finally:
        os.close(fd)


def test_the_victim_is_sound(path):
    rewrite(path, lambda header, document: None)
    assert len(samples_of(artifact.open(path))) == 4


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, 4095, 4096, 4097, 5000, -64, -1])
def test_truncated(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    refused(path)


def test_announced_size_is_compared(path):
    with pytest.raises(ArtifactError, match="incomplete"):
        artifact.open(path, size_bytes=path.stat().st_size + 1)


def test_a_longer_item_table_is_not_read(path):
    """The daemon holds the table of a staged file in memory, and bounds it."""
    with open(path, "rb") as file:
        with pytest.raises(ArtifactError, match="4 items: the limit is 3"):
            artifact.check(file.fileno(), max_items=3)
        assert artifact.check(file.fileno(), max_items=4).items == 4


def _headed(text: bytes) -> bytes:
    return (4088).to_bytes(8, "little") + text.ljust(4088)


FOREIGN = [
    b"", b"\0" * 9000, b"\xff" * 9000, b"PK\3\4" * 3000, b"{}" * 5000,
    (2**63).to_bytes(8, "little") + b" " * 5000, _headed(b""), _headed(b"{}"), _headed(b"[]"),
    _headed(b'{"__metadata__":[]}'), _headed(b'{"__metadata__":{"format":"prepcache artifact"}}'),
]  # fmt: skip


@pytest.mark.parametrize("raw", FOREIGN, ids=range(len(FOREIGN)))
def test_another_file(tmp_path, raw):
    (tmp_path / "a").write_bytes(raw)
    refused(tmp_path / "a")


def test_a_foreign_safetensors_file(tmp_path):
    safetensors.numpy.save_file({"x": np.zeros(3)}, tmp_path / "a")
    refused(tmp_path / "a")
    replace_header(tmp_path / "a", b'{"x":{"dtype":"F64","shape":[3],"data_offsets":[0,24]}}')
    refused(tmp_path / "a", "not an artifact of prepcache")


BOMBS = [
    '{"a":1,"a":2}', "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000, '{"a":NaN}',
    '{"a":1' + "0" * 100_000 + "}", '{"a":1e999999}', "\ud800", "{", "[]", "1", "",
]  # fmt: skip


@pytest.mark.parametrize("text", BOMBS, ids=range(len(BOMBS)))
def test_json_bombs(path, text):
    original = path.read_bytes()
    replace_header(path, text.encode("utf-8", "surrogatepass"))
    refused(path)
    path.write_bytes(original)
    rewrite(path, lambda header, _: header["__metadata__"].pop("document"))
    refused(path)
    path.write_bytes(original)

    def plant(header: dict[str, Any]) -> bytes:
        header["__metadata__"]["document"] = text
        return json.dumps(header).encode()

    length = int.from_bytes(original[:8], "little")
    replace_header(path, plant(json.loads(original[8 : 8 + length])))
    refused(path)


@pytest.mark.parametrize("name", ["n", "__metadata__", "items"])
def test_a_name_that_stands_twice(path, name):
    """Parsers disagree about which of two members counts: a header or document that has both is refused."""
    raw = path.read_bytes()
    text = raw[8 : 8 + int.from_bytes(raw[:8], "little")].rstrip()
    if name == "items":
        header = json.loads(text)
        document = header["__metadata__"]["document"]
        header["__metadata__"]["document"] = document[:-1] + f',"items":{json.loads(document)["items"]}}}'
        text = json.dumps(header, separators=(",", ":")).encode()
    else:
        member = json.dumps(json.loads(text)[name], separators=(",", ":"))
        text = text[:-1] + f',"{name}":{member}}}'.encode()
    replace_header(path, text)
    refused(path, "not the one that its document gives")


def test_a_header_over_its_bound(path):
    replace_header(path, b'{"__metadata__":{}}'.ljust(artifact_format.MAX_HEADER_BYTES + 8))
    refused(path, "header of")


HeaderChange = Callable[[dict[str, Any]], Any]


HEADER_ATTACKS: dict[str, HeaderChange] = {
    "format": lambda header: header["__metadata__"].update(format="pt"),
    "more strings": lambda header: header["__metadata__"].update(more="x"),
    "elsewhere": lambda header: header["n"].update(data_offsets=[16, 32]),
    "another shape": lambda header: header["n"].update(shape=[3]),
    "no object": lambda header: header.update(n=[1, 2, 3]),
    "tensor missing": lambda header: header.pop("n"),
}


@pytest.mark.parametrize("attack", HEADER_ATTACKS)
def test_tensors_that_lie(path, attack):
    rewrite(path, lambda header, _: HEADER_ATTACKS[attack](header))
    refused(path)


def test_another_version_is_refused_by_name(path):
    rewrite(path, lambda header, _: header["__metadata__"].update(version="1"))
    refused(path, "artifact format '1'; this prepcache reads 5")


@pytest.mark.parametrize("change", [-8, 8])
def test_a_file_of_another_length_than_its_header_says(path, change):
    raw = path.read_bytes()
    path.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    refused(path, "the tensors end at byte")


def test_a_link_is_not_followed(path):
    path.with_name("link").symlink_to(path)
    with pytest.raises(OSError):
        artifact.open(path.with_name("link"))


def test_a_file_that_shrinks_is_an_error(path, monkeypatch):
    """A writer that cuts its file while the daemon checks it gives an error, not a SIGBUS."""
    fd = os.open(path, os.O_RDWR)
    read = os.pread

    def cut_then_read(fd: int, count: int, begin: int) -> bytes:
        if begin > 8:
            os.ftruncate(fd, 4096)
        return read(fd, count, begin)

    monkeypatch.setattr(os, "pread", cut_then_read)
    try:
        with pytest.raises(ArtifactError, match="cut while it was read"):
            artifact.check(fd)
    finally:
        os.close(fd)


# --- documents and tables ---

Document = dict[str, Any]


def _column(document: Document, **changes: Any) -> None:
    document["groups"][0]["columns"][1].update(changes)


def _leaf(document: Document, *leaf: Any, **changes: Any) -> None:
    _column(document, leaf=leaf, **changes)


def _nested(depth: int) -> dict[str, Any]:
    return {"a": _nested(depth - 1)} if depth else {}


DOCUMENT_ATTACKS: dict[str, Callable[[Document], Any]] = {
    "NaN": lambda d: d["producer"].update(x=float("nan")),
    "recipe in capitals": lambda d: d.update(recipe=d["recipe"].upper()),
    "no groups": lambda d: d.pop("groups"),
    "group missing": lambda d: d["groups"].pop(),
    "recipe another": lambda d: d.update(recipe="00" * 32),
    "key another": lambda d: d.update(key="00" * 32),
    "producer deep": lambda d: d.update(producer=_nested(60)),
    "tree a list": lambda d: d["groups"][0].update(tree=["list", [0, 1]]),
    "tree of nobody": lambda d: d["groups"][0].update(tree=["exec", [0, 1, 2]]),
    "kind unknown": lambda d: _leaf(d, "pickle", "", 0),
    "kind none": lambda d: _leaf(d, "none", "", 0),
    "int with a dtype": lambda d: _leaf(d, "int", "<i8", 0),
    "tensor of object": lambda d: _leaf(d, "tensor", "object", 0),
    "tensor of code": lambda d: _leaf(d, "tensor", "__class__", 0),
    "array of objects": lambda d: _leaf(d, "ndarray", "|O", 0),
    "array of objects within": lambda d: _leaf(d, "ndarray", '[["a", "|O"]]', 0),
    "array of nothing": lambda d: _leaf(d, "ndarray", "|V0", 0),
    "array of fields that lie": lambda d: _leaf(d, "ndarray", '[["a", "<i4", [99999999999]]]', 0),
    "dtype spelt otherwise": lambda d: _leaf(d, "ndarray", "int64", 0),
    "dtype deep": lambda d: _leaf(d, "ndarray", "[" * 5000, 0),
    "dtype of many fields": lambda d: _leaf(d, "ndarray", "i4,i4", 0),
    "shape negative": lambda d: _leaf(d, "tensor", "int64", 1, shape=[-1]),
    "axes many": lambda d: _leaf(d, "tensor", "int64", 1000, shape=[1] * 1000),
    "ragged numbers": lambda d: _column(d, shape=None),
    "dense text": lambda d: d["groups"][0]["columns"][2].update(shape=[]),
    "name taken": lambda d: _column(d, name="x"),
    "name of offsets": lambda d: _column(d, name="x.offsets"),
    "name empty": lambda d: _column(d, name=""),
}


def _packed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text)).decode()


ONE = msgspec.msgpack.encode([("file", b"x", "")])
OBSERVED_ATTACKS = {
    "no base64": "file",
    "no ascii": "\u00e9" * 4,
    "no zlib": base64.b64encode(ONE).decode(),
    "without digest": _packed(msgspec.msgpack.encode([("file", b"x")])),
    "cut": base64.b64encode(zlib.compress(ONE)[:-1]).decode(),
    "twice": base64.b64encode(2 * zlib.compress(ONE)).decode(),
    "no text": _packed(msgspec.msgpack.encode([("file", b"\xff", "")])),
    "deep": _packed(b"\x91" * 100_000),
    "huge": _packed(msgspec.msgpack.encode([("file", bytes(MAX_OBSERVED_BYTES), "")])),
    "too many": _packed(msgspec.msgpack.encode([("", b"", "")] * (MAX_INPUTS + 1))),
}


@pytest.mark.parametrize("attack", OBSERVED_ATTACKS)
def test_observed_inputs_that_lie(path, attack):
    rewrite(path, lambda _, document: document.update(observed=OBSERVED_ATTACKS[attack]))
    with pytest.raises(ArtifactError, match="the observed inputs cannot be read"):
        _ = artifact.open(path).header.inputs
    with pytest.raises(ArtifactError, match="the observed inputs cannot be read"), open(path, "rb") as file:
        artifact.check(file.fileno())


@pytest.mark.parametrize("attack", DOCUMENT_ATTACKS)
def test_documents_that_lie(path, attack):
    rewrite(path, lambda _, document: DOCUMENT_ATTACKS[attack](document))
    refused(path)


def test_two_columns_of_one_name(path):
    def double(header: dict[str, Any], document: Document) -> None:
        columns = document["groups"][0]["columns"]
        columns[1] = columns[0]
        data = header.pop("n")["data_offsets"]
        header["_fill.n"] = {"dtype": "U8", "shape": [data[1] - data[0]], "data_offsets": data}

    rewrite(path, double)
    refused(path, "two columns are named")


def test_items_of_equal_beginnings_do_not_keep_the_interpreter():
    numbers = np.arange(1 << 20, dtype="<u8")
    digests = np.zeros((len(numbers), 32), np.uint8)
    digests[:, 24:] = numbers[:, None].view(np.uint8)
    found: list[bool] = []
    look = threading.Thread(target=lambda: found.append(artifact_format.has_twice(digests)))
    steps = 0
    look.start()
    while look.is_alive():
        look.join(0.001)
        steps += 1
    assert found == [False]
    assert steps > 10  # one or two, if the comparison keeps the interpreter
    digests[1] = digests[-1]
    assert artifact_format.has_twice(digests)


def test_an_item_that_stands_twice(path):
    """A table that names an item twice is refused, also where the key is made of just that table."""
    digests = np.zeros((4, 32), "u1")

    def name_so(_: dict[str, Any], document: Document) -> None:
        document["key"] = entry_key(document["recipe"], digests.tobytes())

    patch_tensor(path, "_items.digest", digests)
    rewrite(path, name_so)
    refused(path, "duplicate item")


TABLE_ATTACKS = {
    "item twice": ("_items.digest", np.zeros(64, "u1")),
    "row count negative": ("_items.row_count", np.array([-1, 3, 1, 1])),
    "row count past the rows": ("_items.row_count", np.array([5])),
    "row counts overflow": ("_items.row_count", np.array([2**62, 2**62, 2**62, 2**62 + 4])),
    "row counts fall short": ("_items.row_count", np.array([0])),
    "cost negative": ("_items.cost_s", np.array([-1.0])),
    "cost no number": ("_items.cost_s", np.array([np.nan])),
    "cost of ages": ("_items.cost_s", np.array([2e9])),
    "row in no group": ("_rows.group", np.array([2], "u2")),
    "row in the other group": ("_rows.group", np.array([1], "u2")),
    "text offsets past the end": ("t.offsets", np.array([0, 4, 2**40])),
    "text offsets before the end": ("t.offsets", np.array([0, 4, 7])),
    "text offsets not from 0": ("t.offsets", np.array([1])),
    "text offsets fall": ("t.offsets", np.array([0, 99])),
    "shapes negative": ("x.shapes", np.array([-2, -3])),
    "shapes overflow": ("x.shapes", np.array([2**62, 4])),
    "shapes overflow to the right size": ("x.shapes", np.array([2**63 + 3, 2], "u8")),
    "shapes unlike offsets": ("x.shapes", np.array([3, 3])),
    "shapes too large behind zero": ("x.shapes", np.array([0, 2**60])),
}


@pytest.mark.parametrize("attack", TABLE_ATTACKS)
def test_tables_that_lie(path, attack):
    patch_tensor(path, *TABLE_ATTACKS[attack])
    refused(path)


def test_more_rows_than_the_only_group_has(tmp_path):
    write(tmp_path / "a", SAMPLES[:2])
    patch_tensor(tmp_path / "a", "_items.row_count", np.array([1, 2]))
    refused(tmp_path / "a")


def test_text_that_is_no_text(path):
    """Bytes that are no UTF-8 are found when they are read, by column and row; other rows are not hurt."""
    patch_tensor(path, "t", np.array([0xFF], "u1"))
    found = artifact.open(path)
    with pytest.raises(ArtifactError, match="column 't', row 0"):
        found.sample(0)
    assert found.sample(1)["t"] == "more"
