"""Archives that are open to be read count by the bytes of their file."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


def test_an_object_that_hides_its_class_is_refused_by_name(tmp_path: Path) -> None:
    with an_npz(tmp_path / "a.npz", 1) as file, pytest.raises(UnkeyableError, match="BagObj has no stable"):
        digest_of(file.f)


class Fakes:
    """Makes what passes for objects of libraries, which keep their state where Python does not see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: ExitStack) -> None:
        self._monkeypatch, self._files = monkeypatch, files

    def descriptor(self, path: Path) -> int:
        return self._files.enter_context(path.open("rb")).fileno()

    def made(self, module: str, named: str, /, **members: Any) -> Any:
        cls = type(named, (), {"__module__": module, "__slots__": (), **members})
        home = ModuleType(module)
        home.__file__ = os.__file__  # of no project
        setattr(home, named, cls)
        self._monkeypatch.setitem(sys.modules, module, home)
        return cls()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    with ExitStack() as files:
        yield Fakes(monkeypatch, files)


def an_hdf5(fakes: Fakes, path: Path, name: str | None = "/d", **differs: Any) -> Any:
    """As h5py's data sets: an open file, and a place in it."""
    descriptor = fakes.descriptor(path)
    handle = SimpleNamespace(get_vfd_handle=lambda: descriptor)
    told = {"mode": "r", "driver": "sec2", "swmr_mode": False, "filename": str(path), "id": handle, **differs}
    return fakes.made("h5py._hl", "Dataset", file=SimpleNamespace(**told), name=name)


def an_lmdb(fakes: Fakes, path: Path, **differs: bool) -> Any:
    fakes.descriptor(path)
    flags = {"readonly": True, "subdir": False, **differs}
    folder = str(path.parent if flags["subdir"] else path)
    return fakes.made("lmdb", "Environment", flags=lambda _: flags, path=lambda _: folder)


@pytest.mark.parametrize("make", [an_hdf5, an_lmdb])
def test_a_file_that_is_open_in_a_library_counts_by_its_bytes(
    tmp_path: Path, fakes: Fakes, make: Callable[..., Any]
) -> None:
    path = tmp_path / "data.mdb"
    digests = []
    for content in (b"one", b"two", b"one"):
        path.write_bytes(content)
        digests.append(digest_of(make(fakes, path)))
    assert digests[0] == digests[2] != digests[1]
    held = make(fakes, path)
    path.unlink()
    path.write_bytes(b"two")
    with pytest.raises(UnkeyableError, match="is not the file that it has open"):
        digest_of(held)


def test_the_place_in_a_file_counts(tmp_path: Path, fakes: Fakes) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"one")
    assert digest_of(an_hdf5(fakes, path, "/d")) != digest_of(an_hdf5(fakes, path, "/e"))


def test_of_an_lmdb_in_a_folder_the_file_of_its_data_counts(tmp_path: Path, fakes: Fakes) -> None:
    (tmp_path / "data.mdb").write_bytes(b"one")
    before = digest_of(an_lmdb(fakes, tmp_path / "data.mdb", subdir=True))
    (tmp_path / "data.mdb").write_bytes(b"two")
    assert digest_of(an_lmdb(fakes, tmp_path / "data.mdb", subdir=True)) != before


@pytest.mark.parametrize(
    ("make", "differs"),
    [
        (an_hdf5, {"mode": "r+"}),
        (an_hdf5, {"driver": "core"}),
        (an_hdf5, {"swmr_mode": True}),
        (an_hdf5, {"name": None}),
        (an_lmdb, {"readonly": False}),
    ],
)
def test_one_that_may_be_written_or_is_no_file_is_refused(
    tmp_path: Path, fakes: Fakes, make: Callable[..., Any], differs: dict[str, Any]
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    with pytest.raises(UnkeyableError, match="not open to be read from a file"):
        digest_of(make(fakes, path, **differs))
