"""The line at open: what it says, what it costs, and that nothing comes of a daemon that does not explain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prepcache import errors, report
from prepcache.protocol import wire
from prepcache.settings import Mode


class FakeTransport:
    """Answers, or raises, and counts what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any, float]] = []

    def call(self, method: str, path: str, body: Any, *, limit_s: float, gives: Any) -> Any:
        self.asked.append((path, body, limit_s))
        if isinstance(self.answer, Exception):
            raise self.answer
        return gives.from_json(self.answer)


class FakeDistinct:
    def __init__(self, count: int) -> None:
        self.first = np.arange(count)

    def __len__(self) -> int:
        return len(self.first)


def artifacts(
    answer: Any = None, *, missing: int = 3, of: int = 3, mode: Mode = Mode.ON, **members: Any
) -> SimpleNamespace:
    """What report.py needs of an artifact set."""
    transport = FakeTransport(answer)

    def run(attempt: Callable[..., Any]) -> Any:
        return attempt(limit_s=5.0)

    given = {
        "catalogue": SimpleNamespace(missing=np.arange(missing), distinct=FakeDistinct(of)),
        "session": SimpleNamespace(run=run, client=SimpleNamespace(transport=transport), is_away=False),
        "recipe": SimpleNamespace(digest="2" * 64, parts={"config": {}}),
        "mode": mode,
        "reason": "",
        "has_any": False,
        "has_mapped": False,
        "why": "",
        "changed_inputs": (),
    }
    found = SimpleNamespace(**(given | members))
    found.note_missing = lambda why, cue: vars(found).update(why=why, why_cue=cue)
    return found


def why(found: SimpleNamespace, items: Any = ("a", "b", "c"), root: Any = None) -> list[str]:
    return report.why_missing(found, found.catalogue, items, root)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        errors.DaemonUnreachable("gone", url="u", why="broken"),
        errors.NotFound("no such endpoint"),
        errors.StoreError("disk"),
        {"nonsense": True},
    ],
)
def test_a_daemon_that_does_not_explain_is_no_error(answer: Any) -> None:
    assert why(artifacts(answer)) == [report.NOT_KNOWN]


def test_a_miss_names_files_and_no_values(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    items = [tmp_path / "a.txt", "a text of somebody", {"password": "hunter2"}, 7]
    found = artifacts(has_any=True, missing=4, of=5)
    assert why(found, items, tmp_path) == [found.why] == ["4 of 5 items not cached: a.txt and 3 more"]
    found = artifacts(changed_inputs=("project:v\n.txt", *(f"/{n}" for n in range(99))))
    why(found)
    assert found.why.startswith("v?.txt, which the function used, changed; /0, ")
    assert len(found.why) == wire.MAX_WHY and found.why.isprintable()


@pytest.mark.parametrize(("name", "shown"), [("project:vocab.txt", "vocab.txt"), ("/etc/v:1.txt",) * 2])
def test_observed_inputs_are_named_as_people_know_them(name: str, shown: str) -> None:
    assert why(artifacts(changed_inputs=(name,))) == [f"{shown}, which the function used, changed"]
