"""The key corpus: no wrong hit, and no needless miss but those that the default mode means."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from key_corpus import CASES
from key_corpus.run import Verdict, run

PARTS = 8


def told(verdicts: list[Verdict]) -> list[str]:
    return [f"{v.case.name} ({v.mode}): {v.detail}" for v in verdicts]


def test_the_corpus_is_as_large_as_promised():
    assert sum(case.is_must_change and "function" in case.changes for case in CASES) >= 120
    assert sum("function" not in case.changes for case in CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_keys_change_exactly_with_what_samples_depend_on(tmp_path, part):
    verdicts = run(CASES[part::PARTS], tmp_path)
    assert told([v for v in verdicts if v.is_wrong_hit]) == [], "wrong hits"
    assert told([v for v in verdicts if v.is_needless_miss]) == [], "needless misses"
    assert told([v for v in verdicts if (v.is_changed is None) is not v.case.is_refused]) == [], "no key"
