"""Commits that fail in ways of their own: each has an outcome."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from prepcache.daemon.folder import Downloads, Staged
from prepcache.digests import Digest
from prepcache.errors import DaemonUnreachable
from prepcache.fill.commit import Batch, Commits, Outcome
from prepcache.index.artifact_set import NoSession


class Unwritable:
    """A writer that cannot be written anywhere."""

    nbytes = 8

    def write(self, fd: int, **names: Any) -> Any:
        raise MemoryError


class Absent(NoSession):
    def stage(self) -> Any:
        raise DaemonUnreachable("nobody is there")

    def forsake(self, leases: Any) -> None:
        assert not leases


def test_unwritable_samples_have_an_outcome() -> None:
    batch = Batch([Unwritable()], [1], {bytes(32): None})  # type: ignore[list-item]
    [result] = Commits(Absent(), "0" * 64, {}).commit(batch, 0)
    assert result.outcome is Outcome.AWAY and result.reason


class Refused:
    """A writer whose file the filesystem does not take."""

    nbytes = 8

    def __init__(self, number: int) -> None:
        self._number = number

    def write(self, fd: int, **names: Any) -> Any:
        raise OSError(self._number, os.strerror(self._number))


class Staging(Absent):
    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def stage(self) -> Any:
        return Staged.new(None, self._scratch, "s")


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.ENOSPC, "free space there or "), (errno.EDQUOT, "free space there or "),
        (errno.EROFS, "make it writable or "), (errno.EACCES, "make it writable or "),
        (errno.EIO, ""),
    ],
)  # fmt: skip
def test_a_full_filesystem_is_reported_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, mend: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    batch = Batch([Refused(number)], [1], {bytes(32): None})  # type: ignore[list-item]
    [result] = Commits(Staging(tmp_path / "scratch"), "0" * 64, {}).commit(batch, 0)
    said = f"[Errno {number}] {os.strerror(number)}, in {tmp_path}"
    assert result.reason == f"{said}/scratch: {mend}set XDG_CACHE_HOME to another folder"
    with pytest.raises(OSError, match=re.escape(f"{said}: {mend}set TMPDIR to another folder")):
        batch.spill({})


def test_a_missing_folder_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "folder"
    for attempt in (
        lambda: Downloads(folder).path_of(Digest("0" * 64), 8, lambda fd: None),
        lambda: Staged.new(None, folder, "s"),
    ):
        with pytest.raises(NotADirectoryError, match=f"in {folder}: set XDG_CACHE_HOME"):
            attempt()
