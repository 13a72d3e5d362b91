"""The table of `make mutants`, which would rot unseen between its runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from mutants_table import MUTANTS, Mutant

REPO = Path(__file__).resolve().parents[2]


def test_there_are_as_many_mutants_as_promised_and_no_two_of_one_name() -> None:
    assert len(MUTANTS) >= 120
    assert len({(mutant.file, mutant.name) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.name}")
def test_a_replacement_applies_leaves_python_and_names_tests_that_are_there(mutant: Mutant) -> None:
    path = mutant.path(REPO)
    compile(mutant.replaced(path.read_text()), str(path), "exec")
    tests = [word for word in shlex.split(mutant.tests.partition(" -k ")[0]) if not word.startswith("--")]
    assert tests
    assert all((REPO / test).exists() for test in tests)


def test_a_replacement_that_does_not_apply_is_an_error() -> None:
    mutant = MUTANTS[0]
    path = mutant.path(REPO)
    with pytest.raises(LookupError, match="stands there 0 times"):
        Mutant("it", mutant.file, "this text is not there", "", "").replaced(path.read_text())
    with pytest.raises(LookupError, match="files are called"):
        Mutant("it", "nothing.py", "", "", "").path(REPO)
