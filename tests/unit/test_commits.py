"""Commits that fail in ways of their own: each has an outcome."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from prepcache.daemon.folder import Downloads, Staged
from prepcache.digests import Digest
from prepcache.errors import DaemonUnreachable
from prepcache.fill.background_commit import Committer
from prepcache.fill.commit import Batch, Commits
from prepcache.index.artifact_set import NoSession
from support.serving import wait_until


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


@pytest.mark.timeout(20)
def test_unwritable_samples_have_an_outcome() -> None:
    committer = Committer(Commits(Absent(), "0" * 64, {}))
    committer.submit(Batch([Unwritable()], [1], {bytes(32): None}), 0)  # type: ignore[list-item]
    [outcome] = committer.outcomes(is_waiting=True)
    committer.close()
    assert outcome.reason and not outcome.kept and outcome.committed is None


@pytest.mark.timeout(20)
def test_a_waiting_thread_does_not_keep_the_last_batch() -> None:
    committer, writer = Committer(Commits(Absent(), "0" * 64, {})), Unwritable()
    kept = weakref.ref(writer)
    committer.submit(Batch([writer], [1], {bytes(32): None}), 0)  # type: ignore[list-item]
    del writer
    assert committer.outcomes(is_waiting=True)
    assert wait_until(lambda: kept() is None, limit_s=5)
    committer.close()


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, mend: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    batch = Batch([Refused(number)], [1], {bytes(32): None})  # type: ignore[list-item]
    [outcome] = Commits(Staging(tmp_path / "scratch"), "0" * 64, {}).commit(batch, 0)
    said = f"[Errno {number}] {os.strerror(number)}, in {tmp_path}"
    assert outcome.reason == f"{said}/scratch: {mend}set XDG_CACHE_HOME to another folder"
    assert f"are dropped and recomputed: {said}: {mend}set TMPDIR to another folder" in caplog.text


def test_a_missing_folder_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "folder"
    for attempt in (
        lambda: Downloads(folder).path_of(Digest("0" * 64), 8, lambda fd: None),
        lambda: Staged.new(None, folder, "s"),
    ):
        with pytest.raises(NotADirectoryError, match=f"in {folder}: set XDG_CACHE_HOME"):
            attempt()


class Interrupted(threading.Thread):
    def start(self) -> None:
        super().start()
        raise KeyboardInterrupt


@pytest.mark.timeout(20)
def test_an_interrupted_handover_is_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committer, batch = (
        Committer(Commits(Absent(), "0" * 64, {})),
        Batch([Unwritable()], [1], {bytes(32): None}),
    )  # type: ignore[list-item]
    before = set(threading.enumerate())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading, "Thread", Interrupted)
        committer.submit(batch, 0)
    assert committer.outcomes(is_waiting=True) == [] and committer.items_in_flight == 0
    committer.submit(batch, 0)
    assert committer.items_in_flight == 1
    assert len(committer.outcomes(is_waiting=True)) == 1 and not committer.in_flight
    committer.close()
    assert wait_until(lambda: before.issuperset(threading.enumerate()), limit_s=5)
