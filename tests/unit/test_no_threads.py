"""A process that may start no thread any more, for it has too many, or ends: the job goes on all the same."""

import threading
from types import ModuleType, SimpleNamespace

import pytest

from prepcache.daemon import heartbeat, waits
from prepcache.errors import DaemonUnreachable
from prepcache.fill import commit
from support.fills import AccessJob, daemon_fixture, left_behind  # noqa: F401
from support.fills import Bench as FillBench
from support.sessions import Bench, SomeRecipe, bench_fixture  # noqa: F401


class Refused(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


class RefusedTimer(threading.Timer):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def refuse(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    kept = {**vars(threading), "Thread": Refused, "Timer": RefusedTimer}
    monkeypatch.setattr(module, "threading", SimpleNamespace(**kept))


def test_a_session_that_nobody_could_keep_is_not_used(bench, monkeypatch, caplog):
    refuse(monkeypatch, heartbeat)
    with pytest.raises(DaemonUnreachable, match="its session cannot be kept alive: can't start new thread"):
        bench.session.resolve(SomeRecipe())
    assert bench.session.is_gone and len(caplog.records) == 1


def test_a_fill_ends_where_no_thread_can_commit(daemon, monkeypatch):
    """What it made is committed at the end of the process."""
    monkeypatch.setattr(waits, "SPARE_S", 0.05)
    refuse(monkeypatch, commit)
    monkeypatch.setattr(commit, "THREAD", commit._Thread())  # one of an earlier test may still run
    bench = FillBench(daemon, list(range(10)))
    filled = bench.fill()
    assert (filled.computed, filled.reason, filled.late) == (bench.called, "", 10)
    bench.committer.end()
    assert len(FillBench(daemon, list(range(10)), "after").missing()) == 0
    assert left_behind(daemon) == 0
