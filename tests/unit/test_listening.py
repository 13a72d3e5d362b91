"""The note of where a daemon listens: believed only where nobody but this user could have made it."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpcore
import pytest

from prepcache.daemon import deadline
from prepcache.daemon.client import Client
from prepcache.daemon.deadline import DUE, Backend
from prepcache.daemon.launcher import Endpoint, Launcher
from prepcache.errors import RootInUse
from prepcache.protocol import places
from prepcache.protocol.listening import (
    NAME,
    STARTING_NAME,
    forget,
    note,
    note_starting,
    noted,
    starting,
)
from prepcache.settings import Address
from prepcached.store.root import Root


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Path]:
    """A socket that somebody listens on, noted in `tmp_path`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "run.sock"))
        listener.listen()
        note(tmp_path, str(tmp_path / "run.sock"))
        yield tmp_path / "run.sock"


def test_what_was_noted_is_found_until_it_is_forgotten(there: Path, tmp_path: Path) -> None:
    assert noted(tmp_path) == there
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    forget(tmp_path)
    forget(tmp_path)
    assert noted(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "unix://", "unix:///gone.sock\n", "unix://rel\n", "/plain\n", "unix:///a\nb\n", "x" * 9999]
)
def test_a_note_that_names_no_socket_is_not_followed(there: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert noted(tmp_path) is None


def test_a_note_that_others_can_write_is_not_followed(there: Path, tmp_path: Path) -> None:
    for mode in (0o620, 0o602, 0o666):
        (tmp_path / NAME).chmod(mode)
        assert noted(tmp_path) is None


def test_a_note_or_socket_of_somebody_else_is_not_followed(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert noted(tmp_path) is None


def test_an_address_file_that_is_a_link_is_not_followed(there: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text((tmp_path / NAME).read_text())
    forget(tmp_path)
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    assert noted(tmp_path) is None
    (tmp_path / "link.sock").symlink_to(there)
    note(tmp_path, str(tmp_path / "link.sock"))
    assert noted(tmp_path) is None
    note(tmp_path, str(tmp_path / "elsewhere"))
    assert noted(tmp_path) is None


def test_a_client_uses_the_daemon_of_its_root(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    client._found = Endpoint.own(Launcher(tmp_path / "other.sock", tmp_path, os.environ, ("/bin/false",)))
    assert client.start()
    assert client.url == f"unix://{there}"
    assert client.endpoint.address.owner == os.geteuid()
    assert client.transport.address == client.endpoint.address


def test_a_note_that_nobody_listens_behind_is_no_daemon(there: Path, tmp_path: Path) -> None:
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    note(tmp_path, str(dead))
    assert noted(tmp_path) == dead
    assert Launcher(tmp_path / "other.sock", tmp_path, os.environ).elsewhere() is None
    assert Launcher(there, tmp_path, os.environ).elsewhere() is None


def test_a_socket_that_another_user_listens_on_is_not_spoken_to(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DUE.at = time.monotonic() + 60
    unchecked, checked = Address(socket=str(there)), Address(socket=str(there), owner=os.geteuid())
    for address in (unchecked, checked):
        Backend(address).connect_unix_socket(str(there)).close()
    monkeypatch.setattr(deadline, "peer_uid", lambda sock: os.geteuid() + 1)
    Backend(unchecked).connect_unix_socket(str(there)).close()
    with pytest.raises(httpcore.ConnectError) as raised:
        Backend(checked).connect_unix_socket(str(there))
    assert "another user listens there" in str(raised.value.args[0])


def test_in_the_short_tmp_folder_the_listener_must_be_the_user(tmp_path: Path) -> None:
    public = places.own_socket({"HOME": "/" + "h" * 200})
    assert Endpoint.own(Launcher(public, tmp_path, {})).address.owner == os.geteuid()
    private = places.own_socket({"HOME": "/h", "XDG_RUNTIME_DIR": "/run/user/7"})
    assert Endpoint.own(Launcher(private, tmp_path, {})).address.owner is None


def test_a_taken_root_names_where_its_daemon_listens(there: Path, tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    with pytest.raises(RootInUse, match=f"PREPCACHE_URL=unix://{there}"):
        Root(str(tmp_path))
    root.close()


def test_what_a_starting_daemon_does_is_told_while_it_lives(tmp_path: Path) -> None:
    note_starting(tmp_path, "PUT /x\x1b[1m (for 3 s)")
    assert starting(tmp_path) == (os.getpid(), "PUT /x?[1m (for 3 s)")
    (tmp_path / STARTING_NAME).write_text("999999999 7 who was killed")
    assert starting(tmp_path) is None
    (tmp_path / STARTING_NAME).write_text(f"{os.getpid()} 7 who was killed, and had our number")
    assert starting(tmp_path) is None
    (tmp_path / STARTING_NAME).write_text("rubbish")
    assert starting(tmp_path) is None
    note_starting(tmp_path, "")
    note_starting(tmp_path, "")
    assert starting(tmp_path) is None and not list(tmp_path.iterdir())
    note_starting(tmp_path / "gone", "anything")
