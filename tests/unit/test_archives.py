"""Archives that are open to be read count by the bytes of their file."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe


def digest_of(value: Any) -> str:
    def f(x: int) -> Any:
        return value, x

    return recipe(f, code="function").digest


def a_zip(path: Path, number: int) -> zipfile.ZipFile:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", str(number))
    return zipfile.ZipFile(path)


def an_npz(path: Path, number: int) -> Any:
    np.savez(path, a=np.full(3, number))
    return np.load(path)


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (a_zip, lambda file: file.read("a.txt")),
        (an_npz, lambda file: (file["a"], file.f)),
    ],
)
def test_an_open_archive_counts_by_its_file(
    tmp_path: Path, make: Callable[[Path, int], Any], use: Callable[[Any], object]
) -> None:
    digests = []
    for number in (1, 2, 1):
        with make(tmp_path / "a.npz", number) as file:
            digests.append(digest_of(file))
            use(file)
            assert digest_of(file) == digests[-1], "what was read of it does not count"
    assert digests[0] != digests[1], "its bytes count"


def test_an_archive_whose_path_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with a_zip(tmp_path / "a.zip", 1) as file:
        os.rename(tmp_path / "a.zip", tmp_path / "b.zip")
        with pytest.raises(UnkeyableError, match="No such file"):
            digest_of(file)
        a_zip(tmp_path / "a.zip", 2).close()
        with pytest.raises(UnkeyableError, match="is not the file that it has open"):
            digest_of(file)


def test_an_archive_in_memory_or_being_written_is_refused(tmp_path: Path) -> None:
    a_zip(tmp_path / "a.zip", 1).close()
    in_memory = zipfile.ZipFile(io.BytesIO((tmp_path / "a.zip").read_bytes()))
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as written:
        for file in (in_memory, written):
            with pytest.raises(UnkeyableError, match="not open to be read from a file"):
                digest_of(file)


def test_what_raises_when_it_is_asked_for_its_class_is_refused_by_name(tmp_path: Path) -> None:
    with an_npz(tmp_path / "a.npz", 1) as file, pytest.raises(UnkeyableError, match="BagObj has no stable"):
        digest_of(file.f)
