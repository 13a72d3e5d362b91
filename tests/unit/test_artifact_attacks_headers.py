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


@pytest.mark.parametrize("name", ["n", "__metadata__", "rows"])
def test_a_name_that_stands_twice(path: Path, name: str) -> None:
    """Parsers disagree about which of two members counts: a header or document that has both is refused."""
    raw = path.read_bytes()
    text = raw[8 : 8 + int.from_bytes(raw[:8], "little")].rstrip()
    if name == "rows":
        header = json.loads(text)
        document = header["__metadata__"]["document"]
        header["__metadata__"]["document"] = document[:-1] + f',"rows":{json.loads(document)["rows"]}}}'
        text = json.dumps(header, separators=(",", ":")).encode()
    else:
        member = json.dumps(json.loads(text)[name], separators=(",", ":"))
        text = text[:-1] + f',"{name}":{member}}}'.encode()
    replace_header(path, text)
    refused(path, "not the one that its document gives")


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


def _swap(header: dict[str, Any], one: str, other: str) -> None:
    header[one], header[other] = header[other], header[one]


HEADER_ATTACKS: dict[str, HeaderChange] = {
    "format": lambda header: header["__metadata__"].update(format="pt"),
    "more strings": lambda header: header["__metadata__"].update(more="x"),
    "elsewhere": _set("n", "data_offsets", [16, 32]),
    "floats": _set("n", "data_offsets", [0.0, 16.0]),
    "another shape": _set("n", "shape", [3]),
    "another dtype": _set("n", "dtype", "F64"),
    "no object": lambda header: header.update(n=[1, 2, 3]),
    "no filler": lambda header: header.pop(next(name for name in header if name.startswith("_fill."))),
    "tensor missing": lambda header: header.pop("n"),
    "tensor more": lambda header: header.update(more={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}),
    "columns swapped": lambda header: _swap(header, "n", "x"),
    "values missing": lambda header: header.pop("x"),
    "more values": _set("x", "shape", [19]),
    "values huge": _set("x", "shape", [2**62]),
    "values true": _set("x", "shape", [True]),
    "values no list": _set("x", "shape", 18),
    "values of no axis": _set("x", "shape", []),
}


@pytest.mark.parametrize("attack", HEADER_ATTACKS)
def test_tensors_that_lie(path: Path, attack: str) -> None:
    rewrite(path, lambda header, _: HEADER_ATTACKS[attack](header))
    refused(path)


def test_another_version_is_refused_by_name(path: Path) -> None:
    rewrite(path, lambda header, _: header["__metadata__"].update(version="1"))
    refused(path, "artifact format '1'; this prepcache reads 3")


@pytest.mark.parametrize("change", [-8, 8])
def test_a_file_of_another_length_than_its_header_says(path: Path, change: int) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    refused(path, "the tensors end at byte")


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
