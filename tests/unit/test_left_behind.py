"""Commits that take too long: the job goes on with what it has made, and they go on without it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from prepcache import artifact
from prepcache.control.patience import BUDGET_S, Patience
from prepcache.data import backlog, committer
from prepcache.data.backlog import INHERITED_S, Backlog
from prepcache.data.pace import COMMIT_BYTES
from prepcache.data.spill import Spilled
from prepcache.errors import DaemonUnreachable
from support.fake_session import FakeDaemon
from support.fills import Bench, daemon_fixture, left_behind  # noqa: F401
from support.serving import wait_until

pytestmark = pytest.mark.timeout(60)
ITEMS = list(range(40))


class Hung:
    """The commits of a session hang until `end`; each may fail then."""

    all: ClassVar[list[Hung]] = []

    def __init__(self, bench: Bench, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self.begun = 0
        self._error = error
        bench.session.fail = self._fail
        self.all.append(self)

    def _fail(self, method: str) -> None:
        if method == "commit":
            self.begun += 1
            assert self.may_end.wait(60)
            if self._error is not None:
                raise self._error

    def end(self) -> None:
        """Lets them end, and waits until they have."""
        self.may_end.set()
        assert wait_until(lambda: not committing())


def committing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prepcache-commit"]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long commits may be waited for while none is left behind: a moment."""
    fresh = Backlog()
    allowed: list[float] = []
    true = fresh.allowed_s

    def moment(nbytes: int) -> float:
        allowed.append(min(true(nbytes), 0.05))
        return allowed[-1]

    monkeypatch.setattr(fresh, "allowed_s", moment)
    for module in (committer, backlog):
        monkeypatch.setattr(module, "BACKLOG", fresh)
    yield allowed
    while Hung.all:
        Hung.all.pop().end()
    assert fresh.allowed_s(1), "none is counted as left behind for ever"


def rows(item: int) -> Any:
    return np.full(1000, item, "i8")


def test_a_job_goes_on_with_its_samples_while_a_commit_hangs(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)
    filled = bench.fill()
    assert (sorted(filled.computed), sorted(filled.left), filled.reason) == (ITEMS, ITEMS, "")
    assert bench.samples() == [i * i for i in ITEMS]
    assert daemon.artifacts == {}
    assert "release" not in bench.session.calls, "others would make them, too"
    hung.end()
    assert len(Bench(daemon, ITEMS, "after").task().todo) == 0, "it was stored all the same"
    assert left_behind(daemon) == 0
    assert len(bench.session.dropped) == 1, "nothing here maps it"


def test_while_one_is_left_behind_no_other_is_waited_for(
    daemon: FakeDaemon, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what waits to be committed fill the memory."""
    writers: list[weakref.ref[artifact.Writer]] = []

    class Noted(artifact.Writer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            writers.append(weakref.ref(self))

    monkeypatch.setattr("prepcache.data.collect.artifact.Writer", Noted)
    bench = Bench(daemon, ITEMS, function=rows)
    hung = Hung(bench)
    filled = bench.fill(commit_bytes=40_000)
    assert hung.begun == 1
    assert sorted(filled.left) == ITEMS
    assert waits[0] > 0 and len(waits) > 5 and not any(waits[1:])
    filled.left.clear()
    assert len(writers) > 5
    assert sum(writer() is not None for writer in writers) <= 2, "of the commit that hangs, and the last one"
    hung.end()
    assert len(Bench(daemon, ITEMS, "after", rows).task().todo) == 0
    assert left_behind(daemon) == 0


@pytest.mark.parametrize("is_unreachable", [True, False])
def test_what_a_daemon_was_not_given_in_the_end_is_offered_to_it_later(
    daemon: FakeDaemon, is_unreachable: bool
) -> None:
    """If it is gone; not if it refused. Others may make the items, either way."""
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench, DaemonUnreachable("it was killed") if is_unreachable else ValueError("a bug"))
    adopted: list[Any] = []
    given_by: list[threading.Thread] = []

    def adopter() -> Callable[[list[Any]], None]:
        given_by.append(threading.current_thread())
        return adopted.extend

    filled = bench.fill(adopter=adopter)
    assert sorted(filled.left) == ITEMS and adopted == []
    hung.end()
    assert [sorted(batch.indices) for batch in adopted] == [ITEMS] * is_unreachable
    assert set(given_by) == {threading.current_thread()}
    assert left_behind(daemon) == 0
    assert bench.samples() == [i * i for i in ITEMS]


def test_where_no_file_can_be_made_what_hangs_is_made_again_on_access(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To wait for the only samples would hold the job as long as the daemon hangs."""
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)

    class Full(Spilled):
        def __init__(self, *_: Any) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("prepcache.data.commits.Spilled", Full)
    filled = bench.fill()
    assert "no file takes it meanwhile: [Errno 28] No space" in filled.reason
    assert bench.samples() == [None] * len(ITEMS)
    hung.end()
    assert len(Bench(daemon, ITEMS, "after").task().todo) == 0, "it was stored all the same"
    assert left_behind(daemon) == 0


def test_an_interrupt_while_a_commit_is_left_behind_loses_nothing(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)
    at_close = bench.session.at_close
    calls = iter([True])

    def interrupted(callback: Callable[[], None]) -> None:
        if next(calls, False):
            raise KeyboardInterrupt
        at_close(callback)

    monkeypatch.setattr(bench.session, "at_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.fill()
    assert bench.samples() == [i * i for i in ITEMS]
    hung.end()
    assert left_behind(daemon) == 0


def test_a_process_that_ends_waits_once_for_all_that_it_left_behind_and_not_long(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], None]] = []
    benches = [Bench(daemon, ITEMS, name, rows) for name in ("one", "two")]
    hung = [Hung(bench) for bench in benches]
    for bench in benches:
        bench.catalogue.refresh()  # each makes all, whatever the other has leased
        monkeypatch.setattr(bench.session, "at_close", ends.append)
    benches[0].fill(commit_bytes=40_000)
    assert len(ends) == 1, "for all batches of a fill"
    monkeypatch.setattr(backlog, "GOODBYE_S", 0.05)
    ends[0]()
    assert committing(), "it hangs, and is not waited for"
    assert committer.BACKLOG.goodbye_s() == 0, "nor is any other"
    hung[0].end()


def test_a_process_that_ends_gives_what_it_left_behind_a_moment(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(bench.session, "at_close", ends.append)
    monkeypatch.setattr(backlog, "GOODBYE_S", 60.0)
    bench.fill()
    threading.Timer(0.1, hung.may_end.set).start()
    ends[0]()
    assert not committing()


def test_a_commit_that_nobody_waits_for_charges_nobody_and_gives_nobody_up(daemon: FakeDaemon) -> None:
    """Else the end of a hang of minutes would be what the job has lost to its daemon."""
    now = [100.0]
    patience = Patience(clock=lambda: now[0], sleep=lambda _: None)
    bench = Bench(daemon, ITEMS)
    hung, fail = Hung(bench), bench.session.fail

    def exchange(_: float) -> None:
        now[0] += 600
        raise DaemonUnreachable("it said nothing", why="broken")

    def late(method: str) -> None:
        fail(method)
        if method == "commit":
            patience.run("unix:///d.sock", exchange)

    bench.session.fail = late
    bench.fill()
    hung.end()
    assert (patience.is_gone, patience.remaining_s > 0) == (False, True)
    with pytest.raises(DaemonUnreachable):
        patience.run("unix:///d.sock", exchange)
    assert patience.is_gone, "where somebody waits, it counts"


def test_an_unknown_daemon_has_less_than_the_jobs_patience_and_a_slow_one_what_it_needs() -> None:
    known = Backlog()
    assert 0 < known.allowed_s(1) < known.allowed_s(COMMIT_BYTES) < BUDGET_S
    known.note_speed(COMMIT_BYTES, 6.4)  # 20 MB/s
    assert known.allowed_s(COMMIT_BYTES) > 3 * 6.4
    known.note_speed(COMMIT_BYTES, 1e6)
    assert known.allowed_s(COMMIT_BYTES) < 70, "no daemon is that slow"
    known.note_speed(COMMIT_BYTES, 1e-6)
    assert known.allowed_s(COMMIT_BYTES) == Backlog().allowed_s(COMMIT_BYTES), (
        "the next may wait for the disk"
    )


def test_a_small_commit_tells_nothing_of_speed() -> None:
    known = Backlog()
    before = known.allowed_s(COMMIT_BYTES)
    known.note_speed(4096, 2.0)
    assert known.allowed_s(COMMIT_BYTES) == before


def test_a_forked_child_of_a_process_that_left_a_commit_behind_waits_for_none_for_a_while() -> None:
    """The thread that commits is its parent's; the daemon is the same."""
    now = [100.0]
    known = Backlog(clock=lambda: now[0])
    known.forked()
    assert known.allowed_s(1) > 0, "where nothing hangs"
    known.leave()
    known.forked()
    assert known.allowed_s(1) == 0
    now[0] += INHERITED_S
    assert known.allowed_s(1) > 0
