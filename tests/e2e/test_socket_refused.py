"""Who may not connect to a daemon's socket is told who may, and not to start a daemon that runs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

STRANGER, GROUP = 43211, 43212
STATUS = "import sys; from prepcache.command.cli import main; sys.argv = ['prepcache', 'status']; main()"
COUNTS = "then log in again"

needs_users = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv, to run as another user",
)


@needs_users
@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (0o660, f"permission denied; only members of the group {GROUP} may connect: "),
        (0o600, "permission denied; only user 0 may connect\n"),
    ],
)
def test_a_stranger_is_told_who_may_connect(mode: int, says: str) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        os.chmod(folder, 0o755)
        path = Path(folder, "s.sock")
        listening.bind(str(path))
        listening.listen()
        os.chown(path, 0, GROUP)
        os.chmod(path, mode)
        become = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
        become += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # to find Python
        environ = {**os.environ, "HOME": folder, "PREPCACHE_URL": f"unix://{path}"}
        command = [*become, sys.executable, "-c", STATUS]
        run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 3 and says in run.stderr
    assert "prepcached serve" not in run.stderr
    assert (COUNTS in run.stderr) == (mode == 0o660)
