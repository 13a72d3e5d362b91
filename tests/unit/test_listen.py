"""The daemon's sockets: who may use them, what is not taken away from others, and who asks."""

import errno
import os
import socket
import stat
import struct
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from prepcache.errors import ConfigError
from prepcached import __main__, cli
from prepcached.auth import Peer
from prepcached.config import Settings
from prepcached.start import is_activated, listen
from support.serving import build
from support.stores import ROOMY


def settings(tmp_path: Path, **members: object) -> Settings:
    return Settings(root=tmp_path / "root", uds=tmp_path / "s.sock", **members)  # type: ignore[arg-type]


def test_the_socket_is_for_its_owner_and_group(tmp_path):
    before = os.umask(0o000)
    try:
        [sock] = listen(settings(tmp_path, group=os.getgid()), {})
    finally:
        os.umask(before)
    with sock:
        found = os.stat(tmp_path / "s.sock")
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, os.getgid())


def test_a_folder_made_for_the_socket_is_private_without_a_group(tmp_path):
    for name, group, mode in (("private", None, 0o700), ("shared", os.getgid(), 0o755)):
        [sock] = listen(Settings(root=tmp_path, uds=tmp_path / name / "s.sock", group=group), {})
        with sock:
            assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == mode


def test_a_group_that_cannot_get_the_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "chown", mock.Mock(side_effect=PermissionError(errno.EPERM, "no")))
    with pytest.raises(ConfigError, match="usermod -aG"):
        listen(settings(tmp_path, group=12345), {})
    assert not (tmp_path / "s.sock").exists()


def test_a_full_disk_is_logged_once(tmp_path, caplog):
    disk = os.statvfs(tmp_path)
    for min_free_bytes, times in ((0, 0), (disk.f_blocks * disk.f_frsize, 1)):
        server, [listener] = build(settings(tmp_path, max_bytes=ROOMY.max_bytes, min_free=min_free_bytes))
        listener.close()
        store = server.daemon.store
        for _ in range(2):
            store.maintain()
        store.close()
        assert caplog.text.count("nothing can be stored") == caplog.text.count("PREPCACHED_MIN_FREE") == times


def test_ctrl_c_ends_the_command_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "main", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(SystemExit) as caught:
        __main__.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "prepcached: interrupted\n"


def test_a_socket_that_somebody_listens_on_is_left_to_him(tmp_path):
    [sock] = listen(settings(tmp_path), {})
    with sock:
        with pytest.raises(ConfigError, match="another daemon listens there"):
            listen(settings(tmp_path), {})
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s.sock"))


def test_a_file_is_not_replaced_by_a_socket(tmp_path):
    (tmp_path / "s.sock").write_text("somebody's")
    with pytest.raises(ConfigError, match="is not a socket"):
        listen(settings(tmp_path), {})
    assert (tmp_path / "s.sock").read_text() == "somebody's"


def test_a_port_that_is_taken_is_refused(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="choose another port"):
            port = taken.getsockname()[1]
            listen(Settings(root=tmp_path, uds=None, host="127.0.0.1", port=port, token="x" * 16), {})


def test_sockets_for_another_process_are_not_taken(tmp_path):
    environ = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1"}
    assert not is_activated(environ)
    assert not is_activated({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"})
    [sock] = listen(settings(tmp_path), environ)
    sock.close()


def test_a_unix_peer_is_who_the_kernel_says():
    assert Peer(os.getuid(), 0).open_pidfd() is None, "it cannot be seen"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer.of(ours)
    assert peer == Peer(os.getuid(), os.getpid())
    pidfd = peer.open_pidfd()
    assert pidfd is not None
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        assert f"Pid:\t{os.getpid()}\n" in info.read()
    os.close(pidfd)


def test_the_highest_uid_is_not_taken_for_ours():
    """Negative uids are the daemon's own words: who has the token, those who are trusted (auth.py)."""

    class Connection:
        family = socket.AF_UNIX

        def getsockopt(self, level: int, name: int, size: int) -> bytes:
            return struct.pack("=iII", 7, 2**32 - 2, 2**32 - 2)

    assert Peer.of(Connection()) == Peer(2**32 - 2, 7)


def test_a_process_that_is_gone_gives_no_pidfd():
    with subprocess.Popen(["true"]) as child:
        pass
    with pytest.raises(ProcessLookupError):
        Peer(1, child.pid).open_pidfd()
