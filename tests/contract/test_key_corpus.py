"""The key corpus: no wrong hit, and no needless miss but those that the default mode means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from key_corpus import CASES
from key_corpus.run import Verdict, run

pytestmark = pytest.mark.timeout(
    1500
)  # the whole corpus is run for the first of these: minutes where cores are few


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[Verdict]:
    return run(CASES, tmp_path_factory.mktemp("corpus"))


def told(verdicts: list[Verdict]) -> list[str]:
    return [f"{v.case.name} ({v.mode}): {v.detail}" for v in verdicts]


def test_the_corpus_is_as_large_as_promised_and_names_no_case_twice() -> None:
    assert sum(case.is_must_change and "function" in case.changes for case in CASES) >= 120
    assert sum("function" not in case.changes for case in CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


def test_no_case_is_a_wrong_hit(verdicts: list[Verdict]) -> None:
    assert told([v for v in verdicts if v.is_wrong_hit]) == []


def test_no_case_is_a_needless_miss(verdicts: list[Verdict]) -> None:
    assert told([v for v in verdicts if v.is_needless_miss]) == []


def test_every_case_could_be_keyed(verdicts: list[Verdict]) -> None:
    assert told([v for v in verdicts if v.is_changed is None]) == []
