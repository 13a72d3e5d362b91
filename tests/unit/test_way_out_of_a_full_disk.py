"""What a job is advised where the disk is too full for a recipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prepcache.errors import DaemonUnreachable
from prepcache.index.artifact_set import LESS_FREE_BYTES, ArtifactSet


@pytest.mark.parametrize(
    ("min_free_bytes", "advises"), [(10 << 30, True), (LESS_FREE_BYTES, False), (None, True)]
)
def test_less_than_stays_free_already_is_not_advised(min_free_bytes: int | None, advises: bool) -> None:
    def limits() -> dict[str, Any]:
        if min_free_bytes is None:
            raise DaemonUnreachable("it is gone meanwhile")
        return {"min_free_bytes": min_free_bytes}

    own = SimpleNamespace(endpoint=SimpleNamespace(launcher="there is one"))
    told = ArtifactSet._way_out(SimpleNamespace(client=own, session=SimpleNamespace(limits=limits)))  # type: ignore[arg-type]
    assert ("MIN_FREE=1GiB" in told) == advises and "PREPCACHED_ROOT=DIR" in told
