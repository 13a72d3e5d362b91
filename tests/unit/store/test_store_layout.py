"""Names from outside become paths only when they are harmless."""

from __future__ import annotations

import pytest

from prepcache import errors
from prepcached.store.layout import Layout, other_layout, session_of, staged_name

DIGEST = "ab" * 32


def test_paths_are_where_the_docstring_draws_them() -> None:
    layout = Layout("/r")
    assert layout.object_path(DIGEST) == f"/r/v1/objects/ab/{DIGEST}"
    assert layout.index == "/r/v1/index.sqlite"


@pytest.mark.parametrize(
    "digest", ["", "..", "../" * 22, DIGEST.upper(), DIGEST + "\n", DIGEST[:-1], "g" * 64]
)
def test_only_64_lower_case_hex_digits_name_an_object(digest: str) -> None:
    with pytest.raises(errors.BadRequest):
        Layout("/r").object_path(digest)


@pytest.mark.parametrize(
    "name",
    ["", "a", ".b", "a.", "../a.b", "a/b.c", "a.b\0", "a.b\n", "a..b", "é.b", "a." + "b" * 101, "-a.b"],
)
def test_a_staged_name_is_one_harmless_component(name: str) -> None:
    with pytest.raises(errors.StagedFileRefused):
        staged_name(name)


def test_a_staged_name_says_whose_it_is() -> None:
    assert session_of(staged_name("abc-1.2.tmp")) == "abc-1"


def test_other_layouts_are_told_from_this_one() -> None:
    assert [other_layout(name) for name in ("v0", "v1", "v2", "v", "vx", "lock")] == [
        0,
        None,
        2,
        None,
        None,
        None,
    ]
