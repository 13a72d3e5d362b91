"""The daemon installs, starts and serves a job where there is no torch: in an environment of its own."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

JOB = """
import json, sys, torch, prepcache

def double(x):
    return torch.full((3,), 2 * x)

ds = prepcache.CachedDataset([1, 2, 3], double)
report = ds.report()
print(json.dumps([report.hit, report.computed, [ds[i].tolist() for i in range(3)]]))
"""

ALL = """
import importlib, pkgutil, sys
import prepcached

for module in pkgutil.walk_packages(prepcached.__path__, "prepcached."):
    if not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
assert "prepcached.daemon" in sys.modules and "torch" not in sys.modules
"""


def test_no_module_of_the_daemon_imports_torch():
    subprocess.run([sys.executable, "-c", ALL], check=True)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with `prepcache[server]` and nothing more."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    options = ["--no-compile", "--constraint", str(REPO / "constraints.txt")]  # one start needs few modules
    subprocess.run([*pip, "install", *options, f"{REPO}[server]"], check=True)
    return python


@pytest.mark.nightly
def test_a_daemon_without_torch_serves_jobs_with_it(bare, box):
    assert subprocess.run([bare, "-c", "import torch"], capture_output=True, check=False).returncode == 1
    socket = box.folder / "d.sock"
    job = box.folder / "job.py"
    job.write_text(JOB)
    command = [bare, "-m", "prepcached", "serve", "--uds", str(socket), "--root", str(box.folder / "root")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=box.environ) as daemon:
        try:
            assert daemon.stderr is not None
            assert any("serving" in line for line in daemon.stderr), "the daemon says when it serves"
            environ = {"PREPCACHE_URL": f"unix://{socket}"}
            outcomes = [json.loads(box.python(job, environ=environ).stdout) for _ in range(2)]
        finally:
            daemon.terminate()
    samples = [[2, 2, 2], [4, 4, 4], [6, 6, 6]]
    assert outcomes == [[0, 3, samples], [3, 0, samples]]
    assert daemon.returncode == 0
