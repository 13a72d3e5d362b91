"""Small files whole or not at all, temporary ones gone, copies equal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepcached.store import durable


def test_a_written_file_is_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    durable.write_file(str(tmp_path), "name", b"x" * 100_000, tmp=str(tmp))
    assert (tmp_path / "name").read_bytes() == b"x" * 100_000
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp) == []


def test_a_temporary_file_is_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyError), durable.temporary(str(tmp_path)) as (fd, _):
        os.write(fd, b"half")
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_a_temporary_file_that_was_renamed_stays(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    with durable.temporary(str(tmp_path / "tmp")) as (fd, path):
        os.write(fd, b"whole")
        durable.place(path, str(tmp_path / "name"))
    assert (tmp_path / "name").read_bytes() == b"whole"


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 3_000_001])
def test_a_copy_is_equal(tmp_path: Path, size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    (tmp_path / "src").write_bytes(data)
    src = os.open(tmp_path / "src", os.O_RDONLY)
    with durable.temporary(str(tmp_path)) as (dst, _):
        durable.copy(src, dst, size_bytes)
        assert os.pread(dst, size_bytes + 1, 0) == data
    os.close(src)
