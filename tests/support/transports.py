"""A transport to a daemon that says what the test wants, or breaks off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prepcache.daemon.http import Transport
from prepcache.settings import Address
from support.fake_daemon import FakeDaemon, Request

LIMIT_S = 0.5
"""Of an exchange with a daemon that would keep it for ever."""


@pytest.fixture(name="connect")
def connect_fixture(tmp_path: Path) -> Iterator[Callable[..., tuple[Transport, FakeDaemon]]]:
    made: list[Any] = []

    def connect(answer: Callable[[Request], Any]) -> tuple[Transport, FakeDaemon]:
        path = str(tmp_path / "s.sock")
        daemon = FakeDaemon(path, answer)
        transport = Transport(Address(socket=path))
        made.extend([transport, daemon])
        return transport, daemon

    yield connect
    for one in made:
        one.close()


def broken_off(said: bytes) -> Iterator[bytes]:
    yield said
    raise OSError("the connection ends here")
