"""Names from outside become paths only when they are harmless."""

from __future__ import annotations

import pytest

from prepcache import errors
from prepcached.store.layout import Layout

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    "digest", ["", "..", "../" * 22, DIGEST.upper(), DIGEST + "\n", DIGEST[:-1], "g" * 64]
)
def test_only_64_lower_case_hex_digits_name_an_object(digest: str) -> None:
    with pytest.raises(errors.BadRequest):
        Layout("/r").object_path(digest)
