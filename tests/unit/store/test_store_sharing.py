"""The group of `--group`: it is given what its jobs reach by path."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from prepcached.config import Settings
from prepcached.store import root as sharing
from prepcached.store.layout import Layout
from prepcached.store.store import Store
from support.serving import build
from support.stores import ROOMY, put

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
def test_a_group_gets_folders_and_earlier_files(tmp_path: Path) -> None:
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


@needs_root
def test_a_root_that_is_named_by_a_link_is_given_itself(tmp_path: Path) -> None:
    root, link = tmp_path / "root", tmp_path / "link"
    keep(root, "a")
    root.chmod(0o700)
    link.symlink_to(root)
    sharing.give(Layout(str(link)), GROUP)
    assert (os.stat(root).st_gid, os.stat(root).st_mode & 0o7777) == (GROUP, 0o710)
    assert os.lstat(link).st_gid != GROUP


def test_a_root_that_cannot_be_given_to_the_group_stays_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    root = tmp_path / "root"
    keep(root, "a")
    root.chmod(0o700)
    monkeypatch.setattr(os, "chown", fails)
    sharing.give(Layout(str(root)), GROUP)
    assert os.stat(root).st_mode & 0o7777 == 0o700
