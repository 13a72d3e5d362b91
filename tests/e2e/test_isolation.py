"""Two users of one machine with `isolation = "user"`: real processes of real users, on one daemon."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.sandbox import NO_TORCH, ROOM
from support.serving import http_client, process, wait_until

ALICE, BOB, GROUP = 4001, 4002, 4010
JOB = """
import json, os, sys
from pathlib import Path
import numpy as np, prepcache

def double(path):
    return np.full((64,), 2 * int(path.read_text()), np.int64)

paths = sorted(Path(sys.argv[1]).iterdir())
ds = prepcache.CachedDataset(paths, double, name="double", environment=[])
assert [int(ds[i][0]) for i in range(len(ds))] == [2 * i for i in range(len(ds))]
print(json.dumps({"hit": ds.report().hit, "computed": ds.report().computed}))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users reach, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


needs_users = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv, to run as other users",
)


def as_user(
    uid: int, folder: Path, *arguments: str, group: int = GROUP, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python as this user, in the daemon's group, to its end.

    He may search and read all folders, as the interpreter and the checkout may lie where he could not.
    """
    home = folder / f"home-{uid}"
    home.mkdir(exist_ok=True)
    os.chown(home, uid, group)
    environ = {**os.environ, "HOME": str(home), "PREPCACHE_URL": f"unix://{folder / 's.sock'}", **variables}
    environ["PYTHONPATH"] = str(NO_TORCH)  # which no job here needs
    for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        environ.pop(name, None)
    become = ["setpriv", f"--reuid={uid}", f"--regid={group}", "--clear-groups"]
    become += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    command = [*become, sys.executable, *arguments]
    run = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == code, run.stderr
    return run


def job(uid: int, folder: Path, **variables: str) -> dict[str, Any]:
    script = folder / "job.py"
    script.write_text(JOB)
    found: dict[str, Any] = json.loads(
        as_user(uid, folder, str(script), str(folder / "data"), **variables).stdout
    )
    return found


@contextlib.contextmanager
def daemon(folder: Path, *options: str) -> Iterator[Path]:
    """An isolating daemon, and its root, in whose folders its group commits and maps."""
    with process(folder, "--isolation", "user", "--group", str(GROUP), *options, environ=ROOM):
        yield folder / "root"


def plainly(uid: int, *command: str) -> int:
    """How a command ends that this member of the group runs, who has no other right."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"]
    return subprocess.run([*become, *command], cwd="/", capture_output=True, check=False).returncode


@needs_users
def test_a_group_member_cannot_list_or_change_artifacts(folder):
    (folder / "data").mkdir()
    (folder / "data" / "0").write_text("0")
    with daemon(folder) as root:
        job(ALICE, folder)
        with http_client(folder / "s.sock") as http:
            assert "/v1/leases/{lease_id}/data" not in http.get("/metrics").text, "it was sent, not shared"
        store = root / "v1"
        [made] = store.glob("objects/*/*")
        assert plainly(BOB, "test", "-r", str(made)) == 0, "who is told of one maps it"
        for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
            assert (store / name).exists() and plainly(BOB, "test", "-r", str(store / name))
        for name in (".", "objects", f"objects/{made.parent.name}", "recipes", "staging", "tmp"):
            assert plainly(BOB, "ls", str(store / name)), name
        assert plainly(BOB, "mv", str(made), str(store / "staging" / "x.y"))
        assert plainly(BOB, "chmod", "g+w", str(made))
        assert plainly(BOB, "sh", "-c", f": > {made}") and not plainly(BOB, "test", "-s", str(made))


@needs_users
def test_a_group_member_over_tcp_stores_and_maps_samples(folder):
    """The daemon cannot tell whose a file is that he lays into the shared folder: it is sent."""
    (folder / "data").mkdir()
    (folder / "data" / "0").write_text("0")
    token = folder / "token"
    token.write_text("correct-horse-battery-staple")
    token.chmod(0o600)
    with daemon(folder, "--host", "127.0.0.1", "--port", "0", "--token-file", str(token)):
        assert wait_until(lambda: "INFO prepcached.server: serving" in (folder / "log").read_text()), (
            "it has said where it serves"
        )
        [port] = re.findall(r"http://127\.0\.0\.1:([0-9]+)", (folder / "log").read_text())
        tcp = {"PREPCACHE_URL": f"http://127.0.0.1:{port}", "PREPCACHE_TOKEN": token.read_text()}
        assert job(ALICE, folder, **tcp) == {"hit": 0, "computed": 1}
        assert job(BOB, folder, **tcp) == {"hit": 1, "computed": 0}
        for uid in (ALICE, BOB):
            assert not list((folder / f"home-{uid}").glob("**/downloads-v1/*")), "it was mapped where it lies"


STRANGER = 43211


@needs_users
@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (
            0o660,
            f"permission denied; only the group {GROUP} may connect: run the container with --group-add ",
        ),
        (0o600, "permission denied; only user 0 may connect\n"),
    ],
)
def test_a_stranger_is_told_who_may_connect(folder, mode, says):
    path = folder / "s.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        os.chown(path, 0, GROUP)
        os.chmod(path, mode)
        run = as_user(STRANGER, folder, "-m", "prepcache", "status", group=STRANGER, code=3)
    assert says in run.stderr and "prepcached serve" not in run.stderr
