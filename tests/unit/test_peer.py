"""Peers by themselves: who they are by the kernel's word."""

from __future__ import annotations

import os
import socket
import struct
import subprocess

import pytest

from prepcached.auth import Peer


def test_a_unix_peer_is_who_the_kernel_says() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Peer.of(ours) == Peer(os.getuid(), os.getpid())


def test_the_highest_uid_is_not_taken_for_ours() -> None:
    """Negative uids are the daemon's own words: who has the token, those who are trusted (auth.py)."""

    class Connection:
        family = socket.AF_UNIX

        def getsockopt(self, level: int, name: int, size: int) -> bytes:
            return struct.pack("=iII", 7, 2**32 - 2, 2**32 - 2)

    assert Peer.of(Connection()) == Peer(2**32 - 2, 7)


def test_a_pidfd_is_of_the_peer_where_it_can_be_seen() -> None:
    assert Peer(os.getuid(), 0).open_pidfd() is None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pidfd = Peer.of(ours).open_pidfd()
    assert pidfd is not None
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        assert f"Pid:\t{os.getpid()}\n" in info.read()
    os.close(pidfd)


def test_a_process_that_is_gone_gives_no_pidfd() -> None:
    with subprocess.Popen(["true"]) as child:
        pass
    with pytest.raises(ProcessLookupError):
        Peer(1, child.pid).open_pidfd()
