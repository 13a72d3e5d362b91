"""Opening a root: what may hold a store, and what is remembered."""

import errno
import os
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from prepcache import errors
from prepcached.config import Settings
from prepcached.store import root as root_module
from prepcached.store.layout import Layout
from prepcached.store.records import Limits
from prepcached.store.root import GIB, Root
from prepcached.store.store import Store
from support.serving import build
from support.stores import ROOMY, put


def test_a_new_root_carries_its_tag_readme_and_instance(tmp_path):
    root = Root(str(tmp_path / "new" / "root"))
    folder = Path(root.layout.root)
    assert (folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert "prepcached" in (folder / "README").read_text()
    assert (folder / "instance").read_text() == root.instance
    root.close()
    again = Root(str(folder))
    assert again.instance == root.instance
    again.close()


def test_a_network_filesystem_is_refused(tmp_path_factory, monkeypatch):
    folder = str(tmp_path_factory.mktemp("disk"))
    asked = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", folder]
    kind = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    Root(folder).close()
    monkeypatch.setattr(root_module, "NETWORK_FILESYSTEMS", {kind})
    with pytest.raises(errors.RootUnusable, match=rf"\({kind}\).*--root"):
        Root(folder)


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "objects").write_text("")
    with pytest.raises(errors.RootUnusable, match="objects"):
        Root(str(tmp_path))
    with pytest.raises(errors.RootUnusable):
        Root(str(tmp_path / "v1" / "objects"))


def test_the_default_budget_is_decided_once(tmp_path):
    root = Root(str(tmp_path))
    max_bytes, min_free = root.filled_in(Limits())
    fs = os.statvfs(tmp_path)
    assert 0 < max_bytes <= min(200 * GIB, fs.f_bavail * fs.f_frsize // 4 + GIB)
    assert min_free == max(fs.f_blocks * fs.f_frsize // 20, 10 * GIB)
    Path(root.layout.budget).write_text("12345")
    assert root.filled_in(Limits())[0] == 12345
    for garbage in (b"a lot\n", b"\xff"):
        Path(root.layout.budget).write_bytes(garbage)
        with pytest.raises(errors.RootUnusable, match=r"/budget is damaged.*delete it"):
            root.filled_in(Limits())
    assert root.filled_in(Limits(max_bytes=7, min_free_bytes=0)) == (7, 0)
    root.close()


def test_folders_have_the_modes_that_keep_others_out(tmp_path):
    (tmp_path / "v1" / "staging").mkdir(parents=True)  # as a first start leaves it that was cut short
    old = os.umask(0o077)
    root = Root(str(tmp_path))
    os.umask(old)
    layout = root.layout
    looked_at = (layout.versioned, layout.staging, layout.tmp, layout.objects)
    modes = [os.stat(path).st_mode & 0o7777 for path in looked_at]
    assert modes == [0o2710, 0o3730, 0o2700, 0o2711]
    assert os.stat(layout.object_folder("ab" * 32)).st_mode & 0o7777 == 0o2711
    root.close()


@pytest.mark.parametrize("version", ["v0", "v9"])
def test_another_versions_root_is_refused_with_the_mend(tmp_path, version):
    (tmp_path / version).mkdir()
    with pytest.raises(errors.RootUnusable, match=f"rm -rf {tmp_path / version}"):
        Root(str(tmp_path))
    assert os.listdir(tmp_path / version) == []
    (tmp_path / version).rmdir()
    Root(str(tmp_path)).close()


def test_a_root_made_read_only_by_systemd_names_the_unit_line(tmp_path, monkeypatch):
    refusal = OSError(errno.EROFS, "Read-only file system", str(tmp_path / "root"))
    monkeypatch.setattr(os, "makedirs", mock.Mock(side_effect=refusal))
    with pytest.raises(errors.RootUnusable, match=f"Read-only.*ReadWritePaths={tmp_path / 'root'}"):
        Root(str(tmp_path / "root"))


DIGEST = "ab" * 32


@pytest.mark.parametrize(
    "digest", ["", "..", "../" * 22, DIGEST.upper(), DIGEST + "\n", DIGEST[:-1], "g" * 64]
)
def test_only_64_lower_case_hex_digits_name_an_object(digest):
    with pytest.raises(errors.BadRequest):
        Layout("/r").object_path(digest)


GROUP = 43213
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give to any group")


def keep(root: Path, name: str) -> None:
    store = Store(root, limits=ROOMY)
    put(store, name)
    store.close()


def start(root: Path, group: int) -> None:
    given = Settings(root=root, uds=root.parent / "s", group=group, max_bytes=ROOMY.max_bytes, min_free=0)
    server, [listener] = build(given)
    listener.close()
    server.daemon.store.close()


@needs_root
def test_a_group_gets_folders_and_earlier_files(tmp_path):
    root = tmp_path / "root"
    keep(root, "a")
    root.chmod(0o700)
    start(root, GROUP)
    layout = Layout(str(root))
    [artifact] = Path(layout.objects).glob("*/*")
    for path in (layout.root, layout.instance, layout.staging, layout.tmp, artifact.parent, artifact):
        assert os.stat(path).st_gid == GROUP, path
    assert os.stat(root).st_mode & 0o7777 == 0o710 and os.stat(layout.staging).st_mode & 0o7777 == 0o3730
    keep(root, "b")
    assert {os.stat(path).st_gid for path in Path(layout.objects).glob("*/*")} == {GROUP}


def test_a_root_that_cannot_be_given_to_the_group_stays_closed(tmp_path, monkeypatch):
    root = tmp_path / "root"
    keep(root, "a")
    root.chmod(0o700)
    monkeypatch.setattr(os, "chown", mock.Mock(side_effect=PermissionError(errno.EPERM, "no")))
    root_module.give(Layout(str(root)), GROUP)
    assert os.stat(root).st_mode & 0o7777 == 0o700
