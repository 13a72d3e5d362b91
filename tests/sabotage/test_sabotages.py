"""Every sabotage is caught: a test that is named for it fails when the product is sabotaged so."""

import os
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from sabotage.catalogue import SABOTAGES
from support.forked import TORCH, JobServer

REPO = Path(__file__).parents[2]
BY_NIGHT = re.compile(
    r"^@pytest\.mark\.(?:soak|nightly)\b(?!\(daily).*\n(?:[@ )\]].*\n)*def (test_\w+)", re.MULTILINE
)
"""Tests of which no case runs every day."""


@pytest.fixture(scope="module")
def server() -> Iterator[JobServer]:
    server = JobServer(*TORCH, "pytest", "hypothesis", "xdist.plugin")
    yield server
    server.close()


@pytest.mark.nightly
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda one: one.name)
def test_sabotage_is_caught(server, sabotage):
    command = [str(REPO / "tests/sabotage/run.py"), sabotage.name, sabotage.caught_by]
    run = server.start(command, os.environ, REPO)
    out, err = run.communicate(timeout=240)
    if run.returncode == 0 and " passed" not in out:
        pytest.skip(out)
    assert run.returncode == 1, f"not caught: {out}{err}"
    assert "FAILED" in out, out


def test_sabotages_name_code_and_tests_that_there_are():
    """Else it is known only when their turn comes at night; the tests themselves run by day."""
    for sabotage in SABOTAGES:
        module, _, path = sabotage.target.partition(":")
        assert attrgetter(path)(import_module(module)) is not None
        file, _, test = sabotage.caught_by.partition("::")
        text = (REPO / file).read_text()
        names = re.findall(r"^(?:def )?(test_\w+)", text, re.MULTILINE)
        assert not test or test.partition("[")[0] in names, sabotage.name
        assert test.partition("[")[0] not in BY_NIGHT.findall(text), sabotage.name
