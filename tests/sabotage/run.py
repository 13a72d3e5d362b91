"""Runs tests on a sabotaged product:

python run.py SABOTAGE TEST...
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from sabotage.catalogue import SABOTAGES
from sabotage.patching import replace


def apply(name: str) -> None:
    (chosen,) = (one for one in SABOTAGES if one.name == name)
    replace(chosen.target, chosen.make)


if __name__ == "__main__":
    os.environ["SABOTAGE"] = sys.argv[1]  # for processes that tests fork (support/job_server.py)
    apply(sys.argv[1])
    options = ["-x", "-q", "--tb=line", "-rfEs", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # a plugin that the product imports
    # A folder of its own: else pytest ends with the removal, for minutes, of what earlier runs have left.
    with tempfile.TemporaryDirectory(prefix="sabotage-", ignore_cleanup_errors=True) as folder:
        sys.exit(pytest.main([*options, f"--basetemp={folder}", *sys.argv[2:]]))
