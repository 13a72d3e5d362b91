"""What observation can't see is said once, by function, with what to do."""

from __future__ import annotations

import sys

import pytest

from support.jobs import Jobs

SCRIPT = """
import ctypes

def imread(path):
    libc = ctypes.CDLL(None)
    fd = libc.open(os.fsencode(path), os.O_RDONLY)
    buffer = ctypes.create_string_buffer(20_000)
    got = libc.read(fd, buffer, 20_000)
    libc.close(fd)
    return np.frombuffer(buffer.raw[:got], np.uint8).copy()

def by_c(i):
    return imread(f"images/{i:04d}.png")

def by_python(i):
    with open(f"images/{i:04d}.png", "rb") as file:
        return np.frombuffer(file.read(), np.uint8).copy()

def by_item(path):
    return imread(path)

def by_process(i):
    import subprocess
    return subprocess.run(["wc", "-c"], input=b"12", capture_output=True, check=True).stdout.decode()

def main():
    options = {"lazy": {"lazy": True}, "workers": {"num_workers": 2}}.get(sys.argv[2], {})
    items = [Path(f"images/{i:04d}.png") for i in range(8)] if sys.argv[1] == "by_item" else range(8)
    ds = prepcache.CachedDataset(items, globals()[sys.argv[1]], **options)
    assert len(list(ds)) == 8
    tell(ds)

if __name__ == "__main__":
    main()
"""


def said_by(jobs: Jobs, function: str, how: str = "fill") -> list[str]:
    """The lines that a job said of its function."""
    script = jobs.write(SCRIPT)
    (jobs.box.folder / "images").mkdir(exist_ok=True)
    for number in range(8):
        (jobs.box.folder / "images" / f"{number:04d}.png").write_bytes(bytes(5000 + number))
    running = jobs.start(script, function, how)
    _, said = running.process.communicate(timeout=240)
    assert running.process.returncode == 0, said
    return [line for line in said.splitlines() if f"job.{function}: it " in line]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 tells what is handed over")
@pytest.mark.parametrize("how", ["fill", "workers"])
def test_reads_of_a_c_library_are_said_once_with_the_remedy(jobs: Jobs, how: str) -> None:
    (line,) = said_by(jobs, "by_c", how)
    assert "reads files that prepcache cannot observe" in line
    assert "pass their paths in the item, or change version=" in line
    assert said_by(jobs, "by_c", how) == [], "a hit reads nothing"


@pytest.mark.parametrize("function", ["by_python", "by_item"])
def test_what_was_seen_being_read_is_not_said(jobs: Jobs, function: str) -> None:
    assert said_by(jobs, function) == []


def test_a_start_of_a_process_is_said_once_with_the_remedy(jobs: Jobs) -> None:
    (line,) = said_by(jobs, "by_process")
    assert "starts processes (wc). Of the files that they read" in line
    assert "change version=" in line
