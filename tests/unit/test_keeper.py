"""What is collected of samples made on access: where an interrupt meets it, and at the end."""

from __future__ import annotations

from typing import Any

import pytest

from prepcache.errors import DaemonUnreachable
from support.fake_session import FakeDaemon
from support.fills import Bench, daemon_fixture  # noqa: F401


def test_what_an_interrupt_met_half_collected_is_in_no_sample_that_comes_after(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(daemon, [1, 2, 3], function=str)
    task = bench.task()
    keeper = bench.keeper(task)
    monkeypatch.setattr(keeper, "_set_timer", lambda after_s: None)
    one, two, three = (next(iter(bench.job.parts(index, bench.item_of(index)))) for index in range(3))

    keeper.add(one)
    (group,) = keeper._collected._writer._groups.values()
    (column,) = group.columns

    def interrupted(value: str) -> None:
        column._values += value.encode()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(group, "_appends", [interrupted])
        keeper.add(two)
    keeper.add(three)
    keeper.pid = 0  # it commits nothing at the end of this process
    (spilled,) = keeper._collected.batch([]).spill(task.producer)
    assert [spilled.artifact.sample(row) for row in range(spilled.artifact.rows)] == ["3"]
    assert keeper._pending == {2}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("is_committing", [True, False])
def test_at_the_end_a_thread_that_commits_is_waited_for_only_while_the_daemon_answers(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, is_committing: bool, is_there: bool
) -> None:
    """It waits on its own time: the job would lose that, and what it waits itself besides."""
    bench = Bench(daemon, [1])
    keeper = bench.keeper(bench.task())
    done = []

    def limits() -> dict[str, Any]:
        if not is_there:
            raise DaemonUnreachable("it hangs")
        return {}

    monkeypatch.setattr(keeper._supply.session, "limits", limits, raising=False)
    monkeypatch.setattr(keeper, "flush", lambda limit_s: done.append("flushed"))
    if is_committing:
        keeper._committing.acquire()
    keeper.end()
    keeper.pid = 0  # it commits nothing at the end of this process
    assert bool(done) == (is_there or not is_committing)
