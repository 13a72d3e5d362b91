"""Engines as executors: dask, loky, submitit and Ray fill a data set, which the next job finds."""

import importlib.util

import pytest

from support.pages import REPO, lay_sample_data
from support.sandbox import sandbox

SCRIPT = REPO / "examples/ecosystem/executors.py"
MODULES = {"dask": "distributed", "loky": "loky", "submitit": "submitit", "ray": "ray"}
COUNT = 12


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODULES)
def test_an_engine_fills_what_the_next_job_finds(name, tmp_path):
    if importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"{MODULES[name]} is not installed: make nightly installs it")
    lay_sample_data(tmp_path)
    with sandbox() as box:
        box.start_daemon()
        environ = {"HOME": str(tmp_path)}  # some write there
        cold = box.python(SCRIPT, name, cwd=tmp_path, environ=environ).stdout.split()
        warm = box.python(SCRIPT, name, cwd=tmp_path, environ=environ).stdout.split()
    assert cold[-3:-1] == ["0", str(COUNT)]
    assert warm[-3:-1] == [str(COUNT), "0"]
    assert warm[-1] == cold[-1]
