"""What a confused client may send while others work: refused or borne, with a message that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.serving import Serving
from support.stores import items_of


def refused(served: Serving, answer: Any, name: str) -> str:
    """Checks that a commit was refused and stored nothing; what was said."""
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "staged-file-refused"
    assert items_of(served.store) == [] and served.store.check() == []
    detail: str = answer.json()["detail"]
    assert name in detail and "(pid " in detail and "write the files again" in detail, detail
    return detail


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00" * path.stat().st_size)


def _cut_header(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[:8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [_garbage, _cut_header])
def test_a_staged_file_with_a_bad_header_leaves_the_lease(served: Serving, damage: Any) -> None:
    job = served.job("confused")
    job.resolve()
    lease = job.lease("ab").json()["lease"]
    staged = job.stage(served.store.staging, "ab")
    damage(Path(served.store.staging) / staged["name"])
    refused(served, job.commit([lease], [staged]), staged["name"])
    assert job.commit([lease], [job.stage(served.store.staging, "ab")]).status_code == 200
