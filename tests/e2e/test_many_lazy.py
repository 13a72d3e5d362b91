"""Many lazy data sets of one job: what each has open, and whose time their commits take."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from prepcache import CachedDataset, Client
from prepcache.daemon.session import Session
from prepcache.daemon.wait_budget import WaitBudget
from prepcache.errors import DaemonUnreachable
from support.serving import serving, wait_until

COUNT = 20


def make(item: int) -> int:
    return item


def sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += str(entry.readlink()).startswith("socket:")
    return count


def silent(left_s: float) -> None:
    raise DaemonUnreachable("what answers is no daemon", why="nonsense")


def test_many_lazy_data_sets_share_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of threads side by side would else spend the job's patience with a daemon that is only busy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    patience = WaitBudget()
    committing: list[int] = []
    at_once: set[int] = set()
    commit = Session.commit

    def watched(self: Session, *arguments: Any, **options: Any) -> Any:
        committing.append(1)
        at_once.add(len(committing))
        with contextlib.suppress(DaemonUnreachable):
            self.run(silent)  # would give up the daemon in the job's name
        try:
            return commit(self, *arguments, **options)
        finally:
            committing.pop()

    def opened(item: int) -> CachedDataset:
        client = Client(f"unix://{tmp_path}/s.sock", budget=patience)
        return CachedDataset([item], make, lazy=True, progress=False, client=client)

    with serving(tmp_path):
        first = opened(COUNT)
        try:
            before = sockets()
            cold = [opened(number) for number in range(COUNT)]
            assert sockets() <= before + COUNT // 2
            monkeypatch.setattr(Session, "commit", watched)
            assert [ds[0] for ds in [first, *cold]] == [COUNT, *range(COUNT)]
            assert wait_until(lambda: all(ds.cached() for ds in cold))
            assert at_once == {1}
            assert not patience.is_gone
        finally:
            Session.current(Client(f"unix://{tmp_path}/s.sock")).close()
