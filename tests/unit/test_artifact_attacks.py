"""Hostile and damaged files: each attack, and the check that stops it.

A file comes from another user, or from a disk that lies. Whatever its bytes are, opening it gives an
ArtifactError: no view outside the map, no crash, no import, no unbounded memory or time.

    attack                                            the check
    cut short, or grown                               tensors tile the data up to the file's end
    any other file                                    header length, page border, JSON, format name
    a foreign safetensors file                        page border or format name
    another format version                            version
    a header longer than the file, or over 8 MiB      header length before anything is read
    names twice, NaN, deep nesting, huge numbers      the JSON reader
    overlap, gap, offsets backwards or negative       spans sorted, each begins where the last ended
    unaligned column                                  64-byte border
    shape that disagrees with the bytes, overflow     Python integers, exact; element bound
    unknown dtype; wrong dtype or shape of a table    expected tensors
    tensor missing, or one that belongs to none       expected tensors, both ways
    object dtype, dtype with code in it               numpy_dtype: canonical spelling, no references
    wrong tree, leaves not in order                   tree.count_leaves
    column of another leaf's name                     distinct names
    item table: negative, overflowing, short, twice   row counts add up; digests distinct
    costs that no message can carry                   a bound for each item
    producer nested deep                              a bound that every parser and writer of JSON takes
    observed inputs: no text, cut, a bomb             observed.unpack: bounds, and three fields each
    another recipe's or items' key                    key recomputed
    row group out of range, counts that differ        check_rows
    offsets not rising, past the end, not from 0      check_rows
    shapes negative, overflowing, unlike the offsets  check_rows
    text that is not UTF-8                            sample(): names column and row
    a link to another file                            O_NOFOLLOW
    a file that shrinks while it is checked           pread

Not checked, for it would mean to read all data: that booleans are 0 or 1.
"""

from __future__ import annotations

import base64
import json
import os
import random
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from prepcache import artifact
from prepcache.artifact import format as artifact_format
from prepcache.artifact.observed import MAX_INPUTS, MAX_TEXT_BYTES
from prepcache.digests import entry_key
from prepcache.errors import ArtifactError
from support.artifacts import patch_tensor, replace_header, rewrite, samples_of, write

SAMPLES: list[Any] = [
    {"x": torch.zeros(2, 3), "n": 1, "t": "text"},
    {"x": torch.ones(4, 3), "n": 2, "t": "more"},
    (np.zeros(3, ">i4"), np.arange(2)),
    (np.zeros(3, ">i4"), np.arange(5)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
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


def test_the_victim_is_sound(path: Path) -> None:
    """The artifact that the attacks start from opens, also after its header was rewritten unchanged."""
    rewrite(path, lambda header, document: None)
    assert len(samples_of(artifact.open(path))) == 4


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, 4095, 4096, 4097, 5000, -64, -1])
def test_truncated(path: Path, keep: int) -> None:
    """A file cut anywhere is refused."""
    path.write_bytes(path.read_bytes()[:keep])
    refused(path)


def test_grown(path: Path) -> None:
    """Bytes behind the end are refused, for the digest covers what no reader sees."""
    path.write_bytes(path.read_bytes() + b"\0")
    refused(path, "the file at")


def test_announced_size_is_compared(path: Path) -> None:
    """A file of another size than the index says is refused by its size."""
    with pytest.raises(ArtifactError, match="announced"):
        artifact.open(path, size_bytes=path.stat().st_size + 1)


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
    """Files that are no safetensors files at all are refused."""
    (tmp_path / "a").write_bytes(raw)
    refused(tmp_path / "a")


def test_a_foreign_safetensors_file(tmp_path: Path) -> None:
    """A sound safetensors file that is no artifact is refused, and the message says so."""
    safetensors.numpy.save_file({"x": np.zeros(3)}, tmp_path / "a")
    refused(tmp_path / "a")
    replace_header(tmp_path / "a", b'{"x":{"dtype":"F64","shape":[3],"data_offsets":[0,24]}}')
    refused(tmp_path / "a", "not an artifact of prepcache")


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 50_000,
        '{"a":NaN}',
        '{"a":1' + "0" * 100_000 + "}",
        '{"a":1e999999}',
        "\ud800",
        "{",
        "[]",
        "1",
        "",
    ],
    ids=range(11),
)
def test_json_bombs(path: Path, text: str) -> None:
    """Deep, doubled, endless or malformed JSON is refused, in the header and in the document."""
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
    refused(path, "stands twice")


def test_a_member_of_the_document_that_stands_twice(path: Path) -> None:
    """The document too has every member once."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    document = header["__metadata__"]["document"]
    header["__metadata__"]["document"] = document[:-1] + f',"rows":{json.loads(document)["rows"]}}}'
    replace_header(path, json.dumps(header).encode())
    refused(path, "stands twice")


def test_data_off_the_page(path: Path) -> None:
    """Data that start on 64 bytes but not on a page are refused."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes(
        (length + 64).to_bytes(8, "little") + raw[8 : 8 + length] + b" " * 64 + raw[8 + length :]
    )
    refused(path, "page border")


def test_a_header_over_its_bound(path: Path) -> None:
    """A header over the bound is refused before it is read."""
    replace_header(path, b'{"__metadata__":{}}'.ljust(artifact_format.MAX_HEADER_BYTES + 8))
    refused(path, "a header of")


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
    """A header whose tensors are not exactly those of the document, side by side, is refused."""
    rewrite(path, lambda header, _: HEADER_ATTACKS[attack](header))
    refused(path)


def test_an_unaligned_column(path: Path) -> None:
    """A column off its border is refused, though its bytes are where it says."""

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
    refused(path, "border")


Document = dict[str, Any]


def _column(document: Document, **changes: Any) -> None:
    document["groups"][0]["columns"][1].update(changes)


def _nested(depth: int) -> dict[str, Any]:
    return {"a": _nested(depth - 1)} if depth else {}


DOCUMENT_ATTACKS: dict[str, Callable[[Document], Any]] = {
    "NaN": lambda d: d["producer"].update(x=float("nan")),
    "recipe in capitals": lambda d: d.update(recipe=d["recipe"].upper()),
    "no groups": lambda d: d.pop("groups"),
    "groups are no list": lambda d: d.update(groups={}),
    "group missing": lambda d: d["groups"].pop(),
    "group twice": lambda d: d["groups"].append(d["groups"][0]),
    "rows negative": lambda d: d["groups"][0].update(rows=-2),
    "rows huge": lambda d: d["groups"][0].update(rows=10**30),
    "rows moved": lambda d: (d["groups"][0].update(rows=3), d["groups"][1].update(rows=1)),
    "rows a float": lambda d: d.update(rows=4.0),
    "rows true": lambda d: d.update(items=True),
    "items fewer": lambda d: d.update(items=3),
    "items huge": lambda d: d.update(items=2**62),
    "recipe a path": lambda d: d.update(recipe="../" * 20 + "etc"),
    "recipe another": lambda d: d.update(recipe="00" * 32),
    "key another": lambda d: d.update(key="00" * 32),
    "producer a list": lambda d: d.update(producer=[]),
    "observed missing": lambda d: d.pop("observed"),
    "observed a list": lambda d: d.update(observed=[]),
    "producer deep": lambda d: d.update(producer=_nested(60)),
    "tree a list": lambda d: d["groups"][0].update(tree=["list", [0, 1]]),
    "tree out of order": lambda d: d["groups"][0].update(tree=["list", [0, 2, 1]]),
    "tree of nobody": lambda d: d["groups"][0].update(tree=["exec", [0, 1, 2]]),
    "column missing": lambda d: d["groups"][0]["columns"].pop(),
    "kind unknown": lambda d: _column(d, kind="pickle"),
    "kind of text": lambda d: _column(d, kind="str"),
    "kind none": lambda d: _column(d, kind="none"),
    "int with a dtype": lambda d: _column(d, dtype="<i8"),
    "tensor of object": lambda d: _column(d, kind="tensor", dtype="object"),
    "tensor of code": lambda d: _column(d, kind="tensor", dtype="__class__"),
    "array of objects": lambda d: _column(d, kind="ndarray", dtype="|O"),
    "array of objects within": lambda d: _column(d, kind="ndarray", dtype='[["a", "|O"]]'),
    "array of nothing": lambda d: _column(d, kind="ndarray", dtype="|V0"),
    "array of fields that lie": lambda d: _column(d, kind="ndarray", dtype='[["a", "<i4", [99999999999]]]'),
    "dtype spelt otherwise": lambda d: _column(d, kind="ndarray", dtype="int64"),
    "dtype deep": lambda d: _column(d, kind="ndarray", dtype="[" * 5000),
    "dtype of many fields": lambda d: _column(d, kind="ndarray", dtype="i4,i4"),
    "shape given": lambda d: _column(d, shape=[2]),
    "shape negative": lambda d: _column(d, kind="tensor", dtype="int64", ndim=1, shape=[-1]),
    "shape of text": lambda d: _column(d, shape="2"),
    "axes negative": lambda d: _column(d, ndim=-1),
    "axes many": lambda d: _column(d, kind="tensor", dtype="int64", ndim=1000, shape=[1] * 1000),
    "ragged numbers": lambda d: _column(d, shape=None),
    "dense text": lambda d: d["groups"][0]["columns"][2].update(shape=[]),
    "name taken": lambda d: _column(d, name="x"),
    "name of a table": lambda d: _column(d, name="_items.cost_s"),
    "name of offsets": lambda d: _column(d, name="x.offsets"),
    "name empty": lambda d: _column(d, name=""),
    "name a number": lambda d: _column(d, name=1),
    "column a list": lambda d: d["groups"][0].update(columns=[1, 2, 3]),
}


def _packed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text)).decode()


OBSERVED_ATTACKS = {
    "no base64": "file",
    "no ascii": "\u00e9" * 4,
    "no zlib": base64.b64encode(b"file\0x\0").decode(),
    "without digest": _packed(b"file\0x"),
    "cut": base64.b64encode(zlib.compress(b"file\0x\0")[:-1]).decode(),
    "twice": base64.b64encode(2 * zlib.compress(b"file\0x\0")).decode(),
    "no text": _packed(b"file\0\xff\0"),
    "huge": _packed(b"x" * MAX_TEXT_BYTES + b"\0\0"),
    "too many": _packed(bytes(3 * MAX_INPUTS + 2)),
}


@pytest.mark.parametrize("attack", OBSERVED_ATTACKS)
def test_observed_inputs_that_lie(path: Path, attack: str) -> None:
    """They are taken apart by who asks for them, and by the daemon before it takes the file."""
    rewrite(path, lambda _, document: document.update(observed=OBSERVED_ATTACKS[attack]))
    with pytest.raises(ArtifactError, match="the observed inputs cannot be read"):
        _ = artifact.open(path).observed
    with pytest.raises(ArtifactError, match="the observed inputs cannot be read"), open(path, "rb") as file:
        artifact.check(file.fileno())


@pytest.mark.parametrize("attack", DOCUMENT_ATTACKS)
def test_documents_that_lie(path: Path, attack: str) -> None:
    """A document that does not describe exactly these tensors is refused."""
    rewrite(path, lambda _, document: DOCUMENT_ATTACKS[attack](document))
    refused(path)


def test_a_number_past_all_floats(path: Path) -> None:
    """1e999999 is read as infinity, which JSON cannot say again."""
    rewrite(path, lambda _, document: document["producer"].update(x="HUGE"))
    path.write_bytes(path.read_bytes().replace(rb"\"HUGE\"", b"1e999999"))
    refused(path, "1e999999 is no JSON")


def test_two_columns_of_one_name(path: Path) -> None:
    """A document that gives one tensor out as two columns is refused, though all else is right."""

    def double(header: dict[str, Any], document: Document) -> None:
        columns = document["groups"][0]["columns"]
        columns[1] = columns[0]
        data = header.pop("n")["data_offsets"]
        header["_fill.n"] = {"dtype": "U8", "shape": [data[1] - data[0]], "data_offsets": data}

    rewrite(path, double)
    refused(path, "two columns called")


def test_items_of_equal_beginnings_do_not_keep_the_interpreter() -> None:
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


def test_an_item_that_stands_twice(path: Path) -> None:
    """A table that names an item twice is refused, also where the key is made of just that table."""
    digests = np.zeros((4, 32), "u1")

    def name_so(_: dict[str, Any], document: Document) -> None:
        document["key"] = entry_key(document["recipe"], digests.tobytes())

    patch_tensor(path, "_items.digest", digests)
    rewrite(path, name_so)
    refused(path, "an item stands twice")


TABLE_ATTACKS = {
    "item twice": ("_items.digest", np.zeros(64, "u1")),
    "row count negative": ("_items.row_count", np.array([-1, 3, 1, 1])),
    "row count past the rows": ("_items.row_count", np.array([5])),
    "row counts overflow": ("_items.row_count", np.array([2**62, 2**62, 2**62, 2**62 + 4])),
    "row counts fall short": ("_items.row_count", np.array([0])),
    "cost negative": ("_items.cost_s", np.array([-1.0])),
    "cost no number": ("_items.cost_s", np.array([np.nan])),
    "cost of ages": ("_items.cost_s", np.array([2e9])),
    "costs overflow": ("_items.cost_s", np.array([1e308, 1e308])),
    "row in no group": ("_rows.group", np.array([2], "u2")),
    "row far from any group": ("_rows.group", np.array([65535], "u2")),
    "row in the other group": ("_rows.group", np.array([1], "u2")),
    "offsets not from 0": ("x.offsets", np.array([1])),
    "offsets fall": ("x.offsets", np.array([0, 99, 18])),
    "offsets past the end": ("x.offsets", np.array([0, 6, 19])),
    "offsets before the end": ("x.offsets", np.array([0, 6, 17])),
    "offsets negative": ("x.offsets", np.array([0, -6, 18])),
    "text offsets past the end": ("t.offsets", np.array([0, 4, 2**40])),
    "text offsets not from 0": ("t.offsets", np.array([1])),
    "text offsets fall": ("t.offsets", np.array([0, 99])),
    "shapes negative": ("x.shapes", np.array([-2, -3])),
    "shapes overflow": ("x.shapes", np.array([2**62, 4])),
    "shapes overflow to the right size": ("x.shapes", np.array([2**63 + 3, 2], "u8")),
    "shapes unlike offsets": ("x.shapes", np.array([3, 3])),
    "shapes too large behind zero": ("x.shapes", np.array([0, 2**60])),
}


@pytest.mark.parametrize("attack", TABLE_ATTACKS)
def test_tables_that_lie(path: Path, attack: str) -> None:
    """Row counts, groups, offsets and shapes that lead outside are refused before any row is read."""
    patch_tensor(path, *TABLE_ATTACKS[attack])
    refused(path)


def test_more_rows_than_the_only_group_has(tmp_path: Path) -> None:
    """Items that ask for a row behind the columns are refused, though their counts add up to the rows."""
    write(tmp_path / "a", SAMPLES[:2])
    rewrite(tmp_path / "a", lambda _, document: document.update(rows=3))
    patch_tensor(tmp_path / "a", "_items.row_count", np.array([1, 2]))
    refused(tmp_path / "a")


def test_text_that_is_no_text(path: Path) -> None:
    """Bytes that are no UTF-8 are found when they are read, by column and row; other rows are not hurt."""
    patch_tensor(path, "t", np.array([0xFF], "u1"))
    found = artifact.open(path)
    with pytest.raises(ArtifactError, match="column 't', row 0"):
        found.sample(0)
    assert found.sample(1)["t"] == "more"


def test_a_link_is_not_followed(path: Path) -> None:
    """A name in the store that is a symbolic link is not opened."""
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


def test_random_damage_is_refused_or_harmless(path: Path) -> None:
    """Whatever bytes flip, opening gives an ArtifactError, or an artifact whose every row can be read."""
    sound = path.read_bytes()
    chance = random.Random(0)
    length = int.from_bytes(sound[:8], "little")
    used = len(sound[8 : 8 + length].rstrip()) + 8
    outcomes = set()
    for _ in range(600):
        raw = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            where = chance.choice([chance.randrange(used), chance.randrange(8 + length, len(raw))])
            raw[where] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(raw))
        try:
            found = artifact.open(path)
            assert found.rows == 4
            for row in range(found.rows):
                found.sample(row)
            outcomes.add("read")
        except ArtifactError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
