"""Artifacts whose documents and tables lie: each attack by its name, refused before any row is read.

Not checked, for it would mean to read all data: that booleans are 0 or 1.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache import artifact
from prepcache.artifact import header as artifact_format
from prepcache.artifact.header import MAX_INPUTS, MAX_OBSERVED_BYTES
from prepcache.digests import entry_key
from prepcache.errors import ArtifactError
from support.artifacts import patch_tensor, rewrite, write
from support.attacks import SAMPLES, path_fixture, refused  # noqa: F401

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
    "huge": _packed(b"x" * MAX_OBSERVED_BYTES + b"\0\0"),
    "too many": _packed(bytes(3 * MAX_INPUTS + 2)),
}


@pytest.mark.parametrize("attack", OBSERVED_ATTACKS)
def test_observed_inputs_that_lie(path: Path, attack: str) -> None:
    rewrite(path, lambda _, document: document.update(observed=OBSERVED_ATTACKS[attack]))
    with pytest.raises(ArtifactError, match="the observed inputs cannot be read"):
        _ = artifact.open(path).header.observed
    with pytest.raises(ArtifactError, match="the observed inputs cannot be read"), open(path, "rb") as file:
        artifact.check(file.fileno())


@pytest.mark.parametrize("attack", DOCUMENT_ATTACKS)
def test_documents_that_lie(path: Path, attack: str) -> None:
    rewrite(path, lambda _, document: DOCUMENT_ATTACKS[attack](document))
    refused(path)


def test_two_columns_of_one_name(path: Path) -> None:
    def double(header: dict[str, Any], document: Document) -> None:
        columns = document["groups"][0]["columns"]
        columns[1] = columns[0]
        data = header.pop("n")["data_offsets"]
        header["_fill.n"] = {"dtype": "U8", "shape": [data[1] - data[0]], "data_offsets": data}

    rewrite(path, double)
    refused(path, "two columns are named")


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
    patch_tensor(path, *TABLE_ATTACKS[attack])
    refused(path)


def test_more_rows_than_the_only_group_has(tmp_path: Path) -> None:
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
