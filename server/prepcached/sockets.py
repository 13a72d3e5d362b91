"""The daemon's listening sockets, and what systemd hands over and is told.

Invariants:
    1. A unix socket is never more open than 0660, from its first moment.

Source: sd_listen_fds(3), sd_notify(3).
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from prepcache.errors import ConfigError
from prepcached.config import Settings

LOG = logging.getLogger(__name__)

LISTEN_FDS_START = 3
BACKLOG = 1024


def listen(settings: Settings, environ: Mapping[str, str]) -> list[socket.socket]:
    """All sockets, bound and listening.

    Raises:
        ConfigError: a path or port that is taken or not allowed.
    """
    listeners = handed_over(environ)
    for one in listeners:
        if one.family != socket.AF_UNIX and settings.token is None:
            raise ConfigError("systemd passed a TCP socket: TCP needs a token (--token-file FILE)")
    if settings.host is not None and settings.port is not None:
        listeners.append(listen_tcp(settings.host, settings.port))
    if settings.metrics_listen is not None:
        listeners.append(listen_tcp(*settings.metrics_listen))
    inherited = {one.getsockname() for one in listeners}
    if settings.uds is not None and os.fspath(settings.uds) not in inherited:
        try:
            listeners.append(listen_unix(settings.uds, settings.group))
        except BaseException:
            for one in listeners:
                one.close()
            raise
    return listeners


def listen_unix(path: Path, group: int | None) -> socket.socket:
    """A unix socket at a path, of mode 0660; takes a stale one's place.

    Raises:
        ConfigError: it cannot be there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o022)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _clear_stale(path)
        os.umask(0o177)
        sock.bind(os.fspath(path))
        if group is not None:
            _give_to(path, group)
        path.chmod(0o660)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        raise ConfigError(
            f"{path}: cannot create the socket ({exc.strerror}): give --uds another path"
        ) from None
    except ConfigError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _give_to(path: Path, group: int) -> None:
    try:
        os.chown(path, -1, group)
    except OSError as exc:
        path.unlink()
        raise ConfigError(
            f"group {group}: cannot own {path} ({exc.strerror}): add the daemon's user to the group "
            "(usermod -aG) and log in again, or leave --group out"
        ) from None


def _clear_stale(path: Path) -> None:
    """Takes away a socket that nobody listens on."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path}: exists and is not a socket: give --uds another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED:
            raise ConfigError(f"{path}: another daemon listens there: stop it, or give --uds another path")
    path.unlink(missing_ok=True)


def listen_tcp(host: str, port: int) -> socket.socket:
    """A TCP socket.

    Raises:
        ConfigError: it is taken, or not allowed.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named: asyncio sets TCP_NODELAY only then, and without it a request takes 44 ms.
        sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as exc:
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({exc.strerror}): choose another port"
        ) from None
    return sock


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
