"""The shared folder: trusted only by its instance id; staged files; downloads checked by digest."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from blake3 import blake3

from prepcache.daemon.transfer import (
    FREE_SHARE,
    KEEP_DOWNLOADS_S,
    SharedFolder,
    downloaded,
    nameless,
    stage,
    sweep,
)
from prepcache.digests import Digest
from prepcache.errors import ArtifactError

DATA = b"an artifact's bytes"
DIGEST = Digest(blake3(DATA).hexdigest())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "v1" / "staging").mkdir(parents=True)
    (root / "instance").write_text("abc123\n")
    return root


def find(root: Path, override: Path | None = None, instance: str = "abc123") -> SharedFolder | None:
    return SharedFolder.find(override, str(root), f"{root}/v1/staging", instance)


def test_a_folder_is_shared_if_it_has_the_daemons_instance_id(root):
    shared = find(root)
    assert shared is not None
    assert shared.path_of(DIGEST) == root / "v1" / "objects" / DIGEST[:2] / DIGEST


@pytest.mark.parametrize("kind", ["another", "noise", "none", "symlink", "fifo", "folder"])
def test_a_folder_with_another_instance_file_is_not_trusted(root, kind):
    instance = root / "instance"
    instance.unlink()
    if kind in ("another", "noise"):
        instance.write_bytes(b"other" if kind == "another" else b"\xff" * 10_000)
    elif kind == "symlink":
        (root / "real").write_text("abc123")
        instance.symlink_to(root / "real")
    elif kind == "fifo":
        os.mkfifo(instance)
    elif kind == "folder":
        instance.mkdir()
    assert find(root) is None


def test_prepcache_dir_wins_over_another_mount(root, tmp_path):
    shared = SharedFolder.find(root, "/as/the/daemon/sees/it", "/as/the/daemon/sees/it/v1/staging", "abc123")
    assert shared is not None and shared.root == root and shared.staging == root / "v1" / "staging"
    elsewhere = tmp_path / "empty"
    assert find(root, override=elsewhere) is not None, "a wrong PREPCACHE_DIR falls back to the daemon's path"


@pytest.mark.parametrize("staging", ["/etc", "{root}/../elsewhere", "{root}"])
def test_a_staging_folder_outside_the_root_is_not_used(root, staging):
    assert SharedFolder.find(None, str(root), staging.format(root=root), "abc123") is None


@pytest.mark.parametrize("how", ["linked", "copied"])
def test_a_file_gets_a_name_in_the_staging_folder(root, tmp_path, how):
    path = root / "v1" / "staging" / "session-1.name"
    before = os.umask(0o077)
    try:
        fd = nameless(path.parent if how == "linked" else "/dev/shm")
        os.write(fd, DATA)
        assert stage(fd, path)
    finally:
        os.umask(before)
    assert (os.fstat(fd).st_ino == path.stat().st_ino) == (how == "linked")
    assert path.read_bytes() == DATA and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_nlink == 1
    again = path.with_name("session-1.again")
    assert stage(fd, again) and again.read_bytes() == DATA, "a silent daemon still has the other name"
    assert path.stat().st_nlink == again.stat().st_nlink == 1, "which no daemon takes of a file with two"
    path.unlink()
    assert stage(fd, path) and path.read_bytes() == DATA, "as it is offered once more"
    os.close(fd)


def test_a_folder_that_takes_no_file_is_passed_over(root):
    fd = nameless(root)
    assert not stage(fd, root / "nowhere" / "name")
    os.close(fd)
    assert sorted(one.name for one in root.iterdir()) == ["instance", "v1"]


def given(data: bytes) -> Callable[[int], None]:
    return lambda fd: os.write(fd, data) and None


def refused(fd: int) -> None:
    raise KeyboardInterrupt


def test_a_download_is_made_once_and_those_of_old_are_removed(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    for name in ("old", "new"):
        (folder / name).write_bytes(b"x")
    os.utime(folder / "old", (time.time() - 2 * KEEP_DOWNLOADS_S,) * 2)
    sweep(folder)
    assert downloaded(folder, DIGEST, len(DATA), given(DATA)).read_bytes() == DATA
    assert downloaded(folder, DIGEST, len(DATA), refused) == folder / DIGEST
    assert {one.name for one in folder.iterdir()} == {"new", DIGEST}


@pytest.mark.parametrize("came", [DATA[:-1], DATA + b"x", DATA[:-1] + b"?", b""])
def test_a_download_of_other_bytes_is_refused_and_leaves_nothing(tmp_path, came):
    with pytest.raises(ArtifactError, match=DIGEST):
        downloaded(tmp_path / "d", DIGEST, len(DATA), given(came))
    with pytest.raises(KeyboardInterrupt):
        downloaded(tmp_path / "d", DIGEST, len(DATA), refused)
    assert list((tmp_path / "d").iterdir()) == [] and stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700


def test_downloads_leave_a_part_of_the_disk_free(tmp_path, monkeypatch):
    """A job in a container without the daemon's folder writes its checkpoints to the same disk."""
    blocks = 1000
    free = blocks // FREE_SHARE + 1  # and one for the download

    def statvfs(_: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=free, f_blocks=blocks, f_frsize=len(DATA))

    monkeypatch.setattr(os, "statvfs", statvfs)
    folder = tmp_path / "d"
    assert downloaded(folder, DIGEST, len(DATA), given(DATA)).read_bytes() == DATA
    free -= 1
    with pytest.raises(OSError, match=rf"kept free of downloads, in {folder}: free space there"):
        downloaded(folder, Digest("0" * 64), len(DATA), given(DATA))
    assert [one.name for one in folder.iterdir()] == [DIGEST]
