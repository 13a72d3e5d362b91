"""Claims: who makes which items, for jobs that no daemon tells."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from prepcache.daemon import claims
from prepcache.daemon.description import is_main_process

RECIPE = "ab" * 32
FIRST, SECOND = bytes(32), b"\xff" * 32


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(claims, "_OPEN", {})
    return tmp_path


def test_an_item_is_claimed_by_one_process_until_it_ends() -> None:
    told, tell = os.pipe()
    if (pid := os.fork()) == 0:
        mine = claims.claims_on(RECIPE, is_new=True)
        os.write(tell, b"1" if mine.take(FIRST) and mine.take(FIRST) else b"0")
        signal.pause()
    try:
        assert os.read(told, 1) == b"1"
        mine = claims.claims_on(RECIPE, is_new=True)
        assert mine.is_taken(FIRST) and not mine.take(FIRST)
        assert mine.take(SECOND) and not mine.is_taken(SECOND)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(tell)
    assert not mine.is_taken(FIRST) and mine.take(FIRST)
    claims.release(RECIPE)


def test_a_child_has_claims_of_its_own() -> None:
    assert claims.claims_on(RECIPE, is_new=True).take(FIRST)
    if (pid := os.fork()) == 0:
        os._exit(0 if claims.claims_on(RECIPE).is_taken(FIRST) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    claims.release(RECIPE)
    assert claims.claims_on(RECIPE).take(FIRST)
    claims.release(RECIPE)


def test_a_process_claims_so_many_items_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel looks through all of them for each: a million would take the job minutes."""
    monkeypatch.setattr(claims, "MAX_CLAIMS", 1)
    mine = claims.claims_on(RECIPE, is_new=True)
    assert mine.take(FIRST) and mine.take(SECOND)
    other = claims.Claims(RECIPE, is_new=False)
    assert other.is_taken(FIRST) and not other.is_taken(SECOND)
    other.close()
    claims.release(RECIPE)


def test_a_claim_that_is_given_up_is_free_and_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MAX_CLAIMS", 1)
    mine, other = claims.claims_on(RECIPE, is_new=True), claims.Claims(RECIPE, is_new=False)
    assert mine.take(FIRST) and mine.is_any and other.is_taken(FIRST)
    mine.give_up(SECOND)
    mine.give_up(FIRST)
    assert not mine.is_any and other.take(FIRST)
    assert mine.take(SECOND) and other.is_taken(SECOND)
    other.close()
    claims.release(RECIPE)


def test_all_fills_know_of_an_outage_until_who_saw_it_ends() -> None:
    mine, other = claims.claims_on(RECIPE, is_new=True), claims.Claims(RECIPE, is_new=False)
    assert not mine.was_outage() and not other.was_outage()
    mine.note_outage()
    assert mine.was_outage() and other.was_outage() and not other.is_taken(SECOND)
    other.note_outage()
    claims.release(RECIPE)
    assert other.was_outage()
    other.close()
    assert not claims.claims_on(RECIPE).was_outage()


def test_nobody_has_claimed_where_there_is_no_file(cache: Path) -> None:
    assert not claims.claims_on(RECIPE).is_there
    assert not any(cache.iterdir())


def test_without_locks_everything_may_be_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    mine = claims.claims_on(RECIPE, is_new=True)
    assert mine.take(FIRST) and not mine.is_taken(FIRST) and not mine.is_there


@pytest.mark.parametrize(
    "ranks", [{}, {"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "3"}, {"SLURM_PROCID": "1"}]
)
def test_the_first_of_many_ranks_speaks_for_the_job(
    monkeypatch: pytest.MonkeyPatch, ranks: dict[str, str]
) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, rank in ranks.items():
        monkeypatch.setenv(name, rank)
    assert is_main_process() == (set(ranks.values()) <= {"0"})
