"""Names from outside become paths only when they are harmless."""

from __future__ import annotations

import pytest

from prepcache import errors
from prepcached.store.layout import Layout, staged_name

DIGEST = "ab" * 32


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
