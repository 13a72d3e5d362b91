"""Authentication and authorization: who makes a request, and what they may do.

Invariants:
    1. On the unix socket the kernel names the caller. All holders of the TCP token are one caller, never an
       admin.
    2. The token is compared in constant time, before anything else of a TCP request is read.
    3. Requests from another site's page (`Origin`) or under a foreign name (`Host`) are refused. On the unix
       socket too: `ssh -L` turns it into a port that browsers reach.
    4. With `isolation = "user"` callers see, share and change only their own entries; trusted users and
       admins see all, and share among themselves. A user that cannot be told from others is refused.
    5. A process and its death come from the kernel too (SO_PEERCRED, pidfd), never from the request. What
       cannot be seen (pid 0: another pid namespace; TCP) is never guessed: heartbeats take over.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResultBytes, urlsplit

from prepcache.errors import BadRequest, Forbidden, NotFound, Unauthorized
from prepcached.store import scopes

_UCRED = struct.Struct("=iII")  # pid, uid, gid
TOKEN_UID = -1  # owner, in the index, of what was committed with the TCP token
TRUSTED_UID = -2
"""Owner, in scopes, of what trusted users share. Entries from before the isolation are not among them."""
NOBODY_UID = 65534
"""What the kernel calls every user whom a user namespace does not map: user_namespaces(7)."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SET_TOKEN = "set PREPCACHE_TOKEN to what the daemon's --token-file holds (other clients: a bearer token)"
_READ = frozenset({b"authorization", b"host", b"origin", b"user-agent"})
_BROWSER = b"Mozilla/"
"""How every browser's User-Agent begins. Other clients of the unix socket may send any Host."""
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered over TCP without a token: they say only that the daemon lives and works."""
METRICS_PATHS = OPEN_PATHS | {"/metrics"}  # all that is answered at `metrics_listen`


@dataclass(frozen=True)
class Peer:
    """The other end of a connection: `uid` is None over TCP, `pid` 0 where it cannot be seen from here."""

    uid: int | None
    pid: int

    @classmethod
    def of(cls, connection: Any) -> Peer:
        if connection is None or connection.family != socket.AF_UNIX:
            return cls(None, 0)
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return cls(uid, pid)

    def open_pidfd(self) -> int | None:
        """Readable when the peer dies; None: cannot be watched. Raises ProcessLookupError: it is dead."""
        try:
            return os.pidfd_open(self.pid) if self.pid > 0 else None
        except ProcessLookupError:
            raise
        except OSError:
            return None


@dataclass(frozen=True)
class Caller:
    """Who makes a request.

    Args:
        uid: None over TCP.
        confined_to: the only owner whose entries the caller sees; None: everybody's.
        scope: of the recipes that the caller shares (store/scopes.py).
    """

    uid: int | None
    peer: Peer
    is_admin: bool = False
    confined_to: int | None = None
    scope: str = ""

    @property
    def owner_uid(self) -> int:
        return TOKEN_UID if self.uid is None else self.uid

    def check_may_change(self, owner: int, what: str) -> None:
        if not self.is_admin and owner != self.owner_uid:
            raise Forbidden(
                f"{what} belongs to {owner_name(owner)}: only its owner, root, and the daemon's admins may "
                "purge or pin it",
                owner=None if owner == TOKEN_UID else owner,
            )


def owner_name(owner: int) -> str:
    return "the holders of the TCP token" if owner == TOKEN_UID else f"uid {owner}"


class Auth:
    """The rules; `hosts` are names of the port beside loopback, `metrics_port` needs no token."""

    def __init__(
        self,
        *,
        token: str | None = None,
        admins: Collection[int] = (),
        hosts: Collection[str] = (),
        is_by_user: bool = False,
        trusted: Collection[int] = (),
        metrics_port: int | None = None,
    ) -> None:
        self.set_people(token, admins, trusted)
        self.is_by_user = is_by_user
        self._metrics_port = metrics_port
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    def set_people(self, token: str | None, admins: Collection[int], trusted: Collection[int]) -> None:
        """Who may do what from now on; open sessions keep the scope that they were opened in."""
        self._token = token.encode() if token else None
        self._admins = {0, os.geteuid(), *admins}
        self._trusted = {*self._admins, *trusted}

    def caller(
        self, peer: Peer, path: str, headers: Iterable[tuple[bytes, bytes]], port: int | None = None
    ) -> Caller:
        """Who makes a request, which came to a port of this machine or, None, over the unix socket.

        Raises:
            NotFound: the path is not served at `metrics_listen`.
            BadRequest: a header that decides was sent twice.
            Unauthorized: TCP without the token.
            Forbidden: a foreign Host or Origin, or a user that cannot be told from others.
        """
        if port is not None and port == self._metrics_port:
            if path not in METRICS_PATHS:
                raise NotFound(f"{path[:200]}: this address serves only {', '.join(sorted(METRICS_PATHS))}")
            return Caller(None, peer)
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in found:
                raise BadRequest(f"the header {name.decode()} was sent more than once")
            if name in _READ:
                found[name] = value
        if peer.uid is None and path not in OPEN_PATHS:
            self._check_token(found.get(b"authorization", b""))
        if peer.uid is None or b"origin" in found or found.get(b"user-agent", b"").startswith(_BROWSER):
            host = _split(b"//" + found.get(b"host", b"")).hostname or b""
            if host.decode("latin-1").lower() not in self._hosts:
                raise Forbidden(
                    f"this daemon is not reached under the name {host[:80].decode('latin-1')!r}: "
                    "add it to allowed_hosts in the daemon's settings"
                )
        origin = found.get(b"origin")
        if origin is not None and _split(origin).netloc.lower() != found.get(b"host", b"").lower():
            raise Forbidden("requests from another site's page are refused")
        if self.is_by_user and peer.uid == NOBODY_UID:
            raise Forbidden(
                f'isolation = "user": all users whom this daemon\'s user namespace does not map have uid '
                f"{NOBODY_UID}: map the users into the container, or run the daemon outside it"
            )
        is_admin = peer.uid is not None and peer.uid in self._admins
        return Caller(peer.uid, peer, is_admin, self._confined_to(peer.uid), self.scope(peer.uid))

    def scope(self, uid: int | None) -> str:
        """The scope of a user's recipes; None: the holders of the token."""
        if not self.is_by_user:
            return ""
        owner = self._confined_to(uid)
        return scopes.scope(TRUSTED_UID if owner is None else owner)

    def _confined_to(self, uid: int | None) -> int | None:
        if not self.is_by_user or uid in self._trusted:
            return None
        return TOKEN_UID if uid is None else uid

    def _check_token(self, authorization: bytes) -> None:
        if not authorization:
            raise Unauthorized(f"this daemon requires a token over TCP, and none was sent: {_SET_TOKEN}")
        scheme, _, shown = authorization.partition(b" ")
        is_right = self._token is not None and secrets.compare_digest(shown.strip(), self._token)
        if scheme.lower() != b"bearer":
            raise Unauthorized("the header must be `Authorization: Bearer TOKEN`, with the daemon's token")
        if not is_right:
            raise Unauthorized(f"the token is not this daemon's: {_SET_TOKEN}")


def _split(url: bytes) -> SplitResultBytes:
    try:
        return urlsplit(url)
    except ValueError:
        raise Forbidden(f"{url[:80].decode('latin-1')!r} is not a host") from None
