"""Generated damage: a header whose JSON was changed anywhere is refused, or every row can be read."""

import copy
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from prepcache import artifact
from prepcache.errors import ArtifactError, StagedFileRefused
from prepcache.protocol.wire import StagedFile
from prepcached.store.store import Store
from support.artifacts import rewrite, write
from support.stores import MEMORY, RECIPE, ROOMY, put

SAMPLES: list[Any] = [
    {"x": torch.zeros(2, 3), "n": 1, "t": "text"},
    {"x": torch.ones(4, 3), "n": 2, "t": "more"},
    (np.zeros(3, ">i4"), np.arange(2), np.zeros((), "f8")),
    (np.zeros(3, ">i4"), np.arange(5), np.zeros((), "f8")),
    [None, 2**60, torch.zeros(2, dtype=torch.bfloat16)],
]

OBSERVED = [{"kind": "file", "name": "mask.png", "digest": "00" * 32}]

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**31, 2**48, 2**62, 2**63, 2**64, -(2**63), 10**40]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "\ud800", '[["a","<i4"]]', "U8", "I64", "F32", "tensor", "str"]),
    st.sampled_from(["none", "int", "<i8", "|O", "|V9", "x"]),
    st.lists(st.integers(0, 4), max_size=4),
    st.just({}),
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The addresses of everything within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, child in inner for place in [(*at, key), *_places(child, (*at, key))]]


@st.composite
def changed(draw: st.DrawFn, path: Path) -> bool:
    """Replaces, removes, doubles or exchanges values in a file's header; False if that left none."""

    def change(header: dict[str, Any], document: dict[str, Any]) -> None:
        whole = {"header": header, "document": document}
        for _ in range(draw(st.integers(1, 3))):
            places = [place for place in _places(whole) if len(place) > 1]
            *path, key = draw(st.sampled_from(places))
            parent: Any = whole
            for step in path:
                parent = parent[step]
            action = draw(st.sampled_from(["replace", "remove", "double", "exchange"]))
            if action == "replace":
                parent[key] = draw(VALUES)
            elif action == "remove" and key != "__metadata__":
                del parent[key]
            elif action == "double" and isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            elif action == "exchange":
                other = draw(
                    st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent)))
                )
                parent[key], parent[other] = parent[other], parent[key]

    try:
        rewrite(path, change)
    except (TypeError, KeyError, AttributeError):
        return False
    return True


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_changed_header_is_refused_or_harmless(data):
    """It gives an ArtifactError, or rows that can be read."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write(path, SAMPLES)
        if not data.draw(changed(path)):
            return
        try:
            found = artifact.open(path)
            for row in range(found.rows):
                found.sample(row)
        except ArtifactError:
            pass


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_a_changed_header_ends_no_start_and_no_commit(data):
    """The daemon takes such a file, or refuses it, and goes on; also where it finds it at a start."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        store = Store(folder, limits=ROOMY)
        whole = put(store, "whole", size_bytes=8).artifact.key
        for n in range(4):
            path = Path(store.staging, f"s.{n}")
            write(path, SAMPLES[:1], recipe=RECIPE, observed=OBSERVED)
            if not data.draw(changed(path)):
                continue
            found = blake3(path.read_bytes()).hexdigest()
            shutil.copy(path, Path(store.objects, found[:2], found))
            with suppress(StagedFileRefused):
                store.commit(RECIPE, StagedFile(path.name, path.stat().st_size), owner_uid=os.getuid())
        store.close()
        store = Store(folder, limits=ROOMY)
        assert store.entry(whole)
        for entry in store.entries().entries:
            store.entry(entry.key).to_json()
            store.resolve(entry.recipe).to_json()
        assert store.check() == []
        store.close()
