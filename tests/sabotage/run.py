"""Runs tests on a sabotaged product:

python run.py SABOTAGE TEST...
"""

import os
import sys
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
    sys.exit(pytest.main([*options, *sys.argv[2:]]))
