"""What is collected: whole items, wherever an interrupt comes, and a filesystem that takes no file."""

import errno
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from blake3 import blake3

from prepcache.artifact import columns, writer
from prepcache.artifact.writer import Writer, copy
from prepcache.digests import RecipeDigest
from prepcache.fill import pending
from prepcache.fill.call import Part
from prepcache.fill.pending import Collected, LocalFile

TASK: Any = types.SimpleNamespace(
    catalogue=types.SimpleNamespace(
        distinct=types.SimpleNamespace(digests=[blake3(b"%d" % n).digest() for n in range(102)]),
        index=types.SimpleNamespace(edition=0),
    ),
    producer={},
    by=mock.Mock(**{"recipe.digest": "0" * 64}),
)


def sample(n: int, *, length: int = 3) -> dict[str, Any]:
    """A leaf of each kind of column."""
    return {
        "none": None, "int": n, "str": "x" * n,
        "scalar": np.float32(n), "dense": np.full((2, 3), n), "ragged": np.full((length, 2), n),
        "bytes": bytes(length), "bfloat16": torch.full((length,), n, dtype=torch.bfloat16),
        "large": np.full(700, n),
    }  # fmt: skip


@contextmanager
def interrupted_at(line: int) -> Iterator[None]:
    """Ctrl-C at so many lines of the writer and of what collects."""
    files, lines, before = {columns.__file__, writer.__file__, pending.__file__}, 0, sys.gettrace()

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                sys.settrace(before)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def collected(parts: list[Part]) -> Collected:
    made = Collected(TASK)
    for part in parts:
        made.add(part, None)
    return made


def file_of(made: Collected, path: Path) -> tuple[list[int], list[bytes], bytes]:
    batch = made.batch([])
    with path.open("wb") as file:
        copy(batch.file.fd, file.fileno(), batch.file.nbytes)
    return batch.indices, list(batch.cover), path.read_bytes()


@pytest.mark.parametrize("whole", [0, 2])
def test_an_interrupt_anywhere_leaves_whole_items(tmp_path, whole):
    """What was collected is all there or, where columns may have half of an item, dropped."""
    before = [Part(n, [sample(n)], True, 0.1) for n in range(whole)]
    met = Part(100, [sample(7), sample(8, length=5), "of another tree"], True, 0.1)
    after = Part(101, [sample(9, length=4)], True, 0.1)
    path = tmp_path / "artifact"
    wanted = {
        tuple(part.index for part in parts): [
            file_of(collected([*parts, *more]), path) for more in ([], [after])
        ]
        for parts in ([], before, [*before, met])
    }
    lines = 0
    for lines in range(1, 10_000):
        made = collected(before)
        try:
            with interrupted_at(lines):
                made.add(met, None)
            break
        except KeyboardInterrupt:
            left = tuple(made.indices)
        assert file_of(made, path) == wanted[left][0], lines
        made.add(after, None)
        assert file_of(made, path) == wanted[left][1], lines
    assert lines > 100


def test_parts_of_an_item_lie_in_the_folder_of_more_room(tmp_path, monkeypatch):
    room = {str(tmp_path): 1, str(tmp_path / "staging"): 2}
    TASK.by.artifacts.session.staging.return_value = tmp_path / "staging"
    (tmp_path / "staging").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: types.SimpleNamespace(free=room[folder]))
    parts = [Part(0, [sample(n), sample(n, length=n), n], n == 9, 0.5) for n in range(10)]
    whole = Part(0, [one for part in parts for one in part.samples], True, 5.0)
    wanted = file_of(collected([whole]), tmp_path / "whole")
    assert file_of(collected(parts), tmp_path / "parts") == wanted
    monkeypatch.setattr(pending, "COMMIT_BYTES", 1000)
    made = collected(parts)
    assert file_of(made, tmp_path / "spilled") == file_of(made, tmp_path / "again") == wanted
    assert os.fstat(made._scratch).st_size > 40_000
    assert os.readlink(f"/proc/self/fd/{made._scratch}").startswith(f"{tmp_path}/staging/")


class Refused(Writer):
    """Its file is not taken by the filesystem."""

    def write(self, file: Any, **names: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_full_filesystem_is_reported_with_its_folder(tmp_path, monkeypatch):
    mend = "free space there, make it writable, or "
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writer, said = Refused(RecipeDigest("0" * 64)), f"{os.strerror(errno.EROFS)}, in {tmp_path}"
    with pytest.raises(OSError, match=re.escape(f"{said}: {mend}set TMPDIR to another folder")):
        LocalFile(writer, {})
