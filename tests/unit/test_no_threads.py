"""A process that may start no thread any more, for it has too many, or ends: the job goes on all the same."""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace

import pytest

from prepcache.daemon import heartbeat, outage
from prepcache.errors import DaemonUnreachable
from prepcache.fill import background_commit
from support.fake_session import FakeDaemon
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


def test_a_session_that_nobody_could_keep_is_not_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(monkeypatch, heartbeat)
    with pytest.raises(DaemonUnreachable, match="its session cannot be kept alive: can't start new thread"):
        bench.session.resolve(SomeRecipe())
    assert bench.session.is_gone and len(caplog.records) == 1


def test_a_daemon_for_which_nobody_can_look_is_gone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.session.budget.budget_s = 2.0
    bench.session.resolve(SomeRecipe())
    refuse(monkeypatch, outage)
    bench.world.said["POST resolve"] = lambda request: None
    with pytest.raises(DaemonUnreachable, match="cannot be reached"):
        bench.session.resolve(SomeRecipe())
    assert bench.session.is_gone


def test_a_fill_keeps_what_it_cannot_commit(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, background_commit)
    bench = FillBench(daemon, list(range(10)))
    filled = bench.fill()
    assert filled.computed == bench.called and "no thread can be started" in filled.reason
    assert [bench.samples()[index] for index in bench.called] == [index * index for index in bench.called]
    assert left_behind(daemon) == 0
