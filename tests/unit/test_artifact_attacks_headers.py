"""Hostile and damaged files, their bytes and headers: each attack by its name.

A file comes from another user, or from a disk that lies. Whatever its bytes are, opening it gives an
ArtifactError: no view outside the map, no crash, no import, no unbounded memory or time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from prepcache import artifact
from prepcache.artifact import header as artifact_format
from prepcache.errors import ArtifactError
from support.artifacts import replace_header, rewrite, samples_of
from support.attacks import path_fixture, refused  # noqa: F401


def test_the_victim_is_sound(path: Path) -> None:
    rewrite(path, lambda header, document: None)
    assert len(samples_of(artifact.open(path))) == 4


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, 4095, 4096, 4097, 5000, -64, -1])
def test_truncated(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    refused(path)


def test_announced_size_is_compared(path: Path) -> None:
    with pytest.raises(ArtifactError, match="incomplete"):
        artifact.open(path, size_bytes=path.stat().st_size + 1)


def test_a_longer_item_table_is_not_read(path: Path) -> None:
    """The daemon holds the table of a staged file in memory, and bounds it."""
    with open(path, "rb") as file:
        with pytest.raises(ArtifactError, match="4 items: the limit is 3"):
            artifact.check(file.fileno(), max_items=3)
        assert artifact.check(file.fileno(), max_items=4).items == 4


def _headed(text: bytes) -> bytes:
    return (4088).to_bytes(8, "little") + text.ljust(4088)


FOREIGN = [
    b"",
    b"\0" * 9000,
    b"\xff" * 9000,
    b"PK\3\4" * 3000,
    b"{}" * 5000,
    (2**63).to_bytes(8, "little") + b" " * 5000,
    _headed(b""),
    _headed(b"{}"),
    _headed(b"[]"),
    _headed(b'{"__metadata__":[]}'),
    _headed(b'{"__metadata__":{"format":"prepcache artifact"}}'),
]


@pytest.mark.parametrize("raw", FOREIGN, ids=range(len(FOREIGN)))
def test_another_file(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a").write_bytes(raw)
    refused(tmp_path / "a")


def test_a_foreign_safetensors_file(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"x": np.zeros(3)}, tmp_path / "a")
    refused(tmp_path / "a")
    replace_header(tmp_path / "a", b'{"x":{"dtype":"F64","shape":[3],"data_offsets":[0,24]}}')
    refused(tmp_path / "a", "not an artifact of prepcache")


BOMBS = [
    '{"a":1,"a":2}', "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000, '{"a":NaN}',
    '{"a":1' + "0" * 100_000 + "}", '{"a":1e999999}', "\ud800", "{", "[]", "1", "",
]  # fmt: skip


@pytest.mark.parametrize("text", BOMBS, ids=range(len(BOMBS)))
def test_json_bombs(path: Path, text: str) -> None:
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


@pytest.mark.parametrize("name", ["n", "_fill.again", "__metadata__"])
def test_a_name_that_stands_twice(path: Path, name: str) -> None:
    """Parsers disagree about which of two members counts: a header that has both is refused."""
    raw = path.read_bytes()
    text = raw[8 : 8 + int.from_bytes(raw[:8], "little")].rstrip()
    member = json.dumps(json.loads(text).get(name, {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}))
    count = 2 if name == "_fill.again" else 1
    replace_header(path, text[:-1] + f', "{name}": {member}'.encode() * count + b"}")
    refused(path, "duplicate name")


def test_a_member_of_the_document_that_stands_twice(path: Path) -> None:
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    document = header["__metadata__"]["document"]
    header["__metadata__"]["document"] = document[:-1] + f',"rows":{json.loads(document)["rows"]}}}'
    replace_header(path, json.dumps(header).encode())
    refused(path, "duplicate name")


def test_data_off_the_page(path: Path) -> None:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes(
        (length + 64).to_bytes(8, "little") + raw[8 : 8 + length] + b" " * 64 + raw[8 + length :]
    )
    refused(path, "page boundary")


def test_a_header_over_its_bound(path: Path) -> None:
    replace_header(path, b'{"__metadata__":{}}'.ljust(artifact_format.MAX_HEADER_BYTES + 8))
    refused(path, "header of")


HeaderChange = Callable[[dict[str, Any]], Any]


def _set(name: str, field: str, value: Any) -> HeaderChange:
    return lambda header: header[name].update({field: value})


def _shift(header: dict[str, Any], name: str, begin: int, end: int) -> None:
    offsets = header[name]["data_offsets"]
    header[name]["data_offsets"] = [offsets[0] + begin, offsets[1] + end]


def _swap(header: dict[str, Any], one: str, other: str) -> None:
    header[one], header[other] = header[other], header[one]


def _swallow(header: dict[str, Any]) -> None:
    """A tensor takes 8 bytes of the filler behind it."""
    filler = next(
        header[name] for name in header if name.startswith("_fill.") and header[name]["shape"][0] > 8
    )
    begin = filler["data_offsets"][0]
    before = next(one for name, one in header.items() if one.get("data_offsets", [0, 0])[1] == begin)
    before["data_offsets"][1] += 8
    filler["data_offsets"][0] += 8
    filler["shape"][0] -= 8


HEADER_ATTACKS: dict[str, HeaderChange] = {
    "format": lambda header: header["__metadata__"].update(format="pt"),
    "version": lambda header: header["__metadata__"].update(version="1"),
    "overlap": lambda header: _shift(header, "n", -8, -8),
    "shrunk": lambda header: _shift(header, "n", 8, 0),
    "bytes beyond the shape": _swallow,
    "backwards": _set("n", "data_offsets", [16, 0]),
    "negative": _set("n", "data_offsets", [-16, 0]),
    "huge": _set("n", "data_offsets", [2**64, 2**64 + 16]),
    "no numbers": _set("n", "data_offsets", ["0", "16"]),
    "floats": _set("n", "data_offsets", [0.0, 16.0]),
    "booleans": _set("n", "shape", [True, 2]),
    "one offset": _set("n", "data_offsets", [0]),
    "no offsets": lambda header: header["n"].pop("data_offsets"),
    "more fields": _set("n", "more", 1),
    "no object": lambda header: header.update(n=[1, 2, 3]),
    "gap": lambda header: header.pop(next(name for name in header if name.startswith("_fill."))),
    "filler that hides data": lambda header: header.update({"_fill.x": header.pop("n")}),
    "shape too large": _set("n", "shape", [3]),
    "shape negative": _set("n", "shape", [-2, -1]),
    "shape overflows": _set("n", "shape", [2**32, 2**32]),
    "shape overflows behind zero": _set("n", "shape", [0, 2**47, 2**47]),
    "shape of many axes": _set("n", "shape", [1] * 60 + [2]),
    "unknown dtype": _set("n", "dtype", "O"),
    "dtype is a list": _set("n", "dtype", ["I64"]),
    "wrong dtype": _set("n", "dtype", "F64"),
    "wrong width": lambda header: header["n"].update(dtype="I32", shape=[4]),
    "wrong shape": _set("n", "shape", [1, 2]),
    "table of another dtype": _set("x.offsets", "dtype", "F64"),
    "digest table of another width": _set("_items.digest", "shape", [8, 16]),
    "tensor missing": lambda header: header.update({"other": header.pop("n")}),
    "column swapped": lambda header: _swap(header, "n", "x"),
    "offsets swapped": lambda header: _swap(header, "x.offsets", "x.shapes"),
    "values not flat": _set("x", "shape", [6, 3]),
    "values not flat but as many": _set("x", "shape", [18, 1]),
}


@pytest.mark.parametrize("attack", HEADER_ATTACKS)
def test_tensors_that_lie(path: Path, attack: str) -> None:
    rewrite(path, lambda header, _: HEADER_ATTACKS[attack](header))
    refused(path)


def test_an_unaligned_column(path: Path) -> None:
    def shift(header: dict[str, Any], _: Any) -> None:
        filler = next(name for name in header if name.startswith("_fill."))
        begin, end = header[filler]["data_offsets"]
        after = next(entry for entry in header.values() if entry.get("data_offsets", [0])[0] == end)
        assert after["shape"][0] > 0
        header["_fill.again"] = {"dtype": "U8", "shape": [8], "data_offsets": [end - 8, end]}
        header[filler].update(shape=[end - begin - 8], data_offsets=[begin, end - 8])
        header["n"], header["_fill.z"] = (
            {"dtype": "I64", "shape": [0], "data_offsets": [end - 8, end - 8]},
            header["n"],
        )

    rewrite(path, shift)
    refused(path, "boundary")


def test_a_link_is_not_followed(path: Path) -> None:
    path.with_name("link").symlink_to(path)
    with pytest.raises(OSError):
        artifact.open(path.with_name("link"))


def test_a_file_that_shrinks_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
