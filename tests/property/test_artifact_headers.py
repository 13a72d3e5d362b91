"""Generated damage: a header whose JSON was changed anywhere is refused, or every row can be read."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prepcache import artifact
from prepcache.errors import ArtifactError
from support.artifacts import rewrite, write

SAMPLES: list[Any] = [
    {"x": torch.zeros(2, 3), "n": 1, "t": "text"},
    {"x": torch.ones(4, 3), "n": 2, "t": "more"},
    (np.zeros(3, ">i4"), np.arange(2), np.zeros((), "f8")),
    (np.zeros(3, ">i4"), np.arange(5), np.zeros((), "f8")),
    [None, 2**60, torch.zeros(2, dtype=torch.bfloat16)],
]

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**31, 2**48, 2**62, 2**63, 2**64, -(2**63), 10**40]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "U8", "I64", "F32", "tensor", "str", "none", "int", "<i8", "|O", "|V9", '[["a","<i4"]]', "x"]
    ),
    st.lists(st.integers(0, 4), max_size=4),
    st.just({}),
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The addresses of everything within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, child in inner for place in [(*at, key), *_places(child, (*at, key))]]


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_changed_header_is_refused_or_harmless(data: st.DataObject) -> None:
    """Values replaced, removed, doubled or exchanged give an ArtifactError, or rows that can be read."""

    def change(header: dict[str, Any], document: dict[str, Any]) -> None:
        whole = {"header": header, "document": document}
        for _ in range(data.draw(st.integers(1, 3))):
            places = [place for place in _places(whole) if len(place) > 1]
            *path, key = data.draw(st.sampled_from(places))
            parent: Any = whole
            for step in path:
                parent = parent[step]
            action = data.draw(st.sampled_from(["replace", "remove", "double", "exchange"]))
            if action == "replace":
                parent[key] = data.draw(VALUES)
            elif action == "remove" and key != "__metadata__":
                del parent[key]
            elif action == "double" and isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            elif action == "exchange":
                other = data.draw(
                    st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent)))
                )
                parent[key], parent[other] = parent[other], parent[key]

    with TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write(path, SAMPLES)
        try:
            rewrite(path, change)
        except (TypeError, KeyError, AttributeError):
            return  # the change left no header to be written
        try:
            found = artifact.open(path)
            for row in range(found.rows):
                found.sample(row)
        except ArtifactError:
            pass
