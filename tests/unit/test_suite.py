"""The test suite itself: names that can be read in one line."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
MOST = 60
"""Characters of a test's name."""


def test_names_of_tests_are_short():
    found = [(path, name) for path in TESTS.rglob("*.py") for name in _names(path)]
    assert len(found) > 1000
    assert [f"{path.name}: {name}" for path, name in found if len(name) > MOST] == []


def _names(path: Path) -> list[str]:
    return re.findall(r"^\s*def (test_\w+)", path.read_text(), re.MULTILINE)
