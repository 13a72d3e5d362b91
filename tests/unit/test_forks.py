"""What a forked child finds free."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from prepcache.daemon import client
from prepcache.daemon.launcher import Endpoint
from prepcache.forks import Living
from prepcache.settings import Address, Settings


class Thing:
    pass


def test_what_lives_may_be_read_while_some_come_and_go() -> None:
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


def test_a_fork_while_a_thread_looks_for_its_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, may_go_on, parent = threading.Event(), threading.Event(), os.getpid()

    def find(settings: Settings) -> Endpoint:
        if os.getpid() == parent:
            looking.set()
            may_go_on.wait()
        return Endpoint(Address(socket=str(tmp_path / "sock")))

    monkeypatch.setattr(client, "find", find)
    asks = client.Client()
    thread = threading.Thread(target=lambda: asks.url)
    thread.start()
    looking.wait()
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(0 if asks.url else 1)
    may_go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert asks.endpoint is asks.endpoint
