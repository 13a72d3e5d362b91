"""One fork server for all crash tests of a worker, and a root that is ready to be cut short."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.crashing import StoreProcess
from support.store_actor import prepare


@pytest.fixture(scope="session")
def store_process() -> Iterator[StoreProcess]:
    store_process = StoreProcess()
    yield store_process
    store_process.close()


@pytest.fixture(scope="session")
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: a killed process leaves the same there as on a disk, sooner."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def prepared(memory: Path) -> Path:
    """A root with eight artifacts; never used itself, only copied."""
    prepare(str(memory / "prepared"))
    return memory / "prepared"


@pytest.fixture
def copy_of(prepared: Path) -> Callable[[Path], Path]:
    def copy(target: Path) -> Path:
        subprocess.run(["cp", "-a", str(prepared), str(target)], check=True)
        return target

    return copy
