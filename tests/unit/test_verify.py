"""Verifying hits: what changes in the store meanwhile is no difference; one is found wherever it is."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache.errors import PreprocessError, VerifyError
from prepcache.fill.call import Job
from prepcache.making import verify
from prepcache.protocol.wire import ArtifactRef
from support.fake_session import FakeDaemon
from support.fills import RECIPE, Bench, daemon_fixture  # noqa: F401

ITEMS = list(range(12))


def filled(
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    *,
    items_each: int = 3,
    function: Callable[[int], Any] | None = None,
    is_expanded: bool = False,
) -> Bench:
    """All items in artifacts of so many, as another job finds them at its opening."""
    with monkeypatch.context() as patch:
        patch.setattr("prepcache.fill.filler.COMMIT_ITEMS", items_each)
        Bench(daemon, ITEMS, "first", function, is_expanded=is_expanded).fill()
    bench = Bench(daemon, ITEMS, "second", function, is_expanded=is_expanded)
    bench.task()
    return bench


def refs(daemon: FakeDaemon) -> list[ArtifactRef]:
    return [ref for _, ref in daemon.artifacts[RECIPE.digest]]


def verified(bench: Bench, meanwhile: Callable[[int], None] = lambda item: None) -> tuple[int, list[str]]:
    """How many were compared, and what was condemned; `meanwhile` happens while an item is made again."""
    condemned: list[str] = []

    def condemn(ref: ArtifactRef, what: str) -> str:
        condemned.append(ref.digest)
        return ""

    made = bench.job.function
    job = Job(lambda item: (meanwhile(item), made(item))[1], {}, bench.job.is_expanded)
    originals: Any = types.SimpleNamespace(
        item=bench.item_of, position=lambda i: i, name=lambda i, _: f"item {i} ({bench.item_of(i)})"
    )
    return verify(job, bench.catalogue, originals, 1.0, condemn), condemned


def merge(daemon: FakeDaemon, bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another artifact has all of them, and the job hears of it."""
    folder.mkdir()
    whole = FakeDaemon(folder)
    filled(whole, monkeypatch, items_each=len(ITEMS))
    (ref,) = refs(whole)
    Path(folder / ref.digest).rename(daemon.folder / ref.digest)
    bench.catalogue.index.take_in([ref], is_complete=True)


def test_merged_items_are_verified_where_they_are_now(daemon, monkeypatch, tmp_path):
    bench = filled(daemon, monkeypatch)

    def meanwhile(item: int) -> None:
        if item == 4:
            merge(daemon, bench, tmp_path / "merged", monkeypatch)

    assert verified(bench, meanwhile) == (len(ITEMS), [])


def test_purged_items_are_verified_as_they_were_or_skipped(daemon, monkeypatch):
    bench = filled(daemon, monkeypatch)

    def meanwhile(item: int) -> None:
        if item == 4:
            bench.catalogue.index.lose(ref.digest for ref in refs(daemon))

    assert verified(bench, meanwhile) == (5, [])


def test_an_error_while_verifying_keeps_its_cause(daemon, monkeypatch):
    bench = filled(daemon, monkeypatch)

    def fail(item: int) -> None:
        raise ValueError("bad") from KeyError(item)

    with pytest.raises(PreprocessError, match="again failed: bad") as raised:
        verified(bench, fail)
    assert isinstance(cause := raised.value.__cause__, ValueError) and isinstance(cause.__cause__, KeyError)


def test_a_difference_is_found_in_the_last_byte(daemon, monkeypatch):
    bench = filled(daemon, monkeypatch, function=lambda item: np.full(2000, item))

    def other(item: int) -> Any:
        sample = np.full(2000, item)
        sample[-1] += item == 4
        return sample

    bench.job = Job(other, {})
    with pytest.raises(VerifyError, match=r"item 4 \(4\), preprocessed again"):
        verified(bench)
