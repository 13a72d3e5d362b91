"""What systemd hands to a daemon, and what it is told.

Source: sd_listen_fds(3), sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

LOG = logging.getLogger(__name__)

LISTEN_FDS_START = 3


def is_activated(environ: Mapping[str, str]) -> bool:
    """Whether systemd hands listening sockets to this process."""
    return environ.get("LISTEN_PID") == str(os.getpid()) and environ.get("LISTEN_FDS", "0") != "0"


def handed_over(environ: Mapping[str, str]) -> list[socket.socket]:
    """The sockets that systemd hands to this process."""
    if not is_activated(environ):
        return []
    found = []
    for fd in range(LISTEN_FDS_START, LISTEN_FDS_START + int(environ["LISTEN_FDS"])):
        os.set_inheritable(fd, False)
        found.append(socket.socket(fileno=fd))
    return found


def notify(state: str, environ: Mapping[str, str]) -> None:
    """Tells systemd, if it asked to be told."""
    path = environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(
                state.encode(), socket.MSG_DONTWAIT, address
            )  # a manager that hangs holds up no request
        except OSError as exc:
            LOG.warning("systemd was not told %s: %s", state, exc)


def watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    """How often systemd wants to hear from this process: half of its limit; None: it does not ask.

    Source: sd_watchdog_enabled(3).
    """
    limit_us = environ.get("WATCHDOG_USEC", "")
    if not limit_us.isdecimal() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(limit_us) / 2 / 1_000_000
