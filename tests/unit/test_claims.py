"""Claims: who makes which items, for jobs that no daemon tells."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from prepcache.daemon import claims
from prepcache.daemon.claims import Claims
from prepcache.daemon.description import is_first_rank

RECIPE = "ab" * 32
FIRST, SECOND = bytes(32), b"\xff" * 32


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_item_is_claimed_by_one_process_until_it_ends() -> None:
    told, tell = os.pipe()
    if (pid := os.fork()) == 0:
        mine = Claims(RECIPE)
        os.write(tell, b"1" if mine.take(FIRST) and mine.take(FIRST) else b"0")
        signal.pause()
    mine = Claims(RECIPE)
    try:
        assert os.read(told, 1) == b"1"
        assert mine.is_taken(FIRST) and not mine.take(FIRST)
        assert mine.take(SECOND) and not mine.is_taken(SECOND)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(tell)
    assert not mine.is_taken(FIRST) and mine.take(FIRST)


def test_a_child_gives_up_nothing_of_its_parents() -> None:
    mine = Claims(RECIPE)
    assert mine.take(FIRST)
    if (pid := os.fork()) == 0:
        os._exit(0 if Claims(RECIPE).is_taken(FIRST) and not mine.is_any else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert Claims(RECIPE).is_taken(FIRST)


def test_fills_of_one_recipe_keep_their_own_claims() -> None:
    """In one process, too: train and val are opened in two threads, and one ends before the other."""
    one, other = Claims(RECIPE), Claims(RECIPE)
    assert one.take(FIRST) and other.take(SECOND) and not other.take(FIRST)
    one.note_outage()
    other.note_outage()
    one.close()
    third = Claims(RECIPE)
    assert third.is_taken(SECOND) and third.was_outage() and not third.is_taken(FIRST)


def test_claims_end_with_what_keeps_them() -> None:
    mine, other = Claims(RECIPE), Claims(RECIPE)
    assert mine.take(FIRST) and other.is_taken(FIRST)
    del mine
    assert not other.is_taken(FIRST)


def test_a_fill_claims_so_many_items_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel looks through all of them for each: a million would take the job minutes."""
    monkeypatch.setattr(claims, "MAX_CLAIMS", 1)
    mine, other = Claims(RECIPE), Claims(RECIPE)
    assert mine.take(FIRST) and mine.take(SECOND)
    assert other.is_taken(FIRST) and not other.is_taken(SECOND)


def test_a_claim_that_is_given_up_is_free_and_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MAX_CLAIMS", 1)
    mine, other = Claims(RECIPE), Claims(RECIPE)
    assert mine.take(FIRST) and mine.is_any and other.is_taken(FIRST)
    mine.give_up(SECOND)
    mine.give_up(FIRST)
    assert not mine.is_any and other.take(FIRST)
    assert mine.take(SECOND) and other.is_taken(SECOND)


def test_all_fills_know_of_an_outage_until_who_saw_it_ends() -> None:
    mine, other = Claims(RECIPE), Claims(RECIPE)
    assert not mine.was_outage() and not other.was_outage()
    mine.note_outage()
    assert mine.was_outage() and other.was_outage() and not other.is_taken(SECOND)
    other.note_outage()
    mine.close()
    assert other.was_outage() and mine.was_outage()
    other.close()
    assert not mine.was_outage()


def test_claims_are_of_one_recipe_and_never_swept(cache: Path) -> None:
    """Recipes share files, which a job of days has open."""
    mine, others = Claims(RECIPE), Claims("ab" + "cd" * 31)
    assert mine.take(FIRST) and others.take(FIRST)
    mine.note_outage()
    (file,) = (cache / "prepcache" / claims.FOLDER).iterdir()
    os.utime(file, (0, 0))
    third = Claims(RECIPE)
    assert not third.take(FIRST) and third.take(SECOND) and not others.was_outage()


def test_to_look_for_claims_makes_no_file(cache: Path) -> None:
    mine = Claims(RECIPE)
    assert not mine.is_taken(FIRST) and not mine.was_outage() and not cache.exists()


def test_without_locks_everything_may_be_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    mine = Claims(RECIPE)
    assert mine.take(FIRST) and not mine.is_taken(FIRST) and not mine.is_any


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
    assert is_first_rank() == (set(ranks.values()) <= {"0"})
