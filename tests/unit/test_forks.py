"""What a forked child finds free."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from prepcache.daemon import client, launcher
from prepcache.daemon.launcher import Endpoint
from prepcache.forks import Living
from prepcache.keys.observation import calls
from prepcache.settings import Address


class Thing:
    pass


def test_what_lives_may_be_read_while_some_come_and_go():
    living: Living[Thing] = Living()
    things = [Thing(), Thing()]
    living.add(things[0])
    living.add(things[1])
    for thing in living:
        things.append(type(thing)())
        living.add(things[-1])
    living.discard(thing)
    assert list(living) == [things[0], *things[2:]]
    del things[2]
    assert list(living) == [things[0], things[2]]


def forked_while_within(patch: pytest.MonkeyPatch, target: Any, name: str, call: Callable[[], object]) -> int:
    """The exit code of a child that calls, too, while a thread of its parent is within a function."""
    within, may_go_on, parent = threading.Event(), threading.Event(), os.getpid()
    original = getattr(target, name)

    def wait(*given: Any) -> Any:
        if os.getpid() == parent:
            within.set()
            may_go_on.wait()
        return original(*given)

    patch.setattr(target, name, wait)
    thread = threading.Thread(target=call)
    thread.start()
    within.wait()
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(0 if call() else 1)
    may_go_on.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_while_a_thread_looks_for_its_daemon(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "find", lambda _: Endpoint(Address(socket=str(tmp_path / "sock"))))
    asks = client.Client()
    assert forked_while_within(monkeypatch, launcher, "find", lambda: asks.url) == 0
    assert asks.endpoint is asks.endpoint


def test_a_fork_while_a_thread_reads_the_code_of_a_job(monkeypatch):
    """Whatever of it the child looks at."""
    code = calls.JobCode([__file__])
    assert forked_while_within(monkeypatch, calls, "read_source", lambda: code.look(None) is None) == 0
