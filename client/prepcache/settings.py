"""What the environment says about the daemon: PREPCACHE, PREPCACHE_URL, PREPCACHE_TOKEN(_FILE),
PREPCACHE_DIR.

Invariants:
    1. Read once, when a client is made, into one frozen object; inner classes take plain values.
    2. A value that means nothing is a `ConfigError` that says what may stand there.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from prepcache.errors import ConfigError
from prepcache.protocol.places import MAX_SOCKET_PATH_BYTES


class Mode(enum.Enum):
    """What `PREPCACHE` says.

    ON: use what is there, keep what is made. OFF: never contact a daemon. READONLY: use what is there,
    lease and commit nothing. REFRESH: ignore what is there, make everything again and keep it.
    """

    ON = "on"
    OFF = "off"
    READONLY = "readonly"
    REFRESH = "refresh"

    @property
    def is_writing(self) -> bool:
        return self in (Mode.ON, Mode.REFRESH)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens: a socket, where `owner` (a uid) must listen, or a host and port."""

    socket: str | None = None
    host: str = ""
    port: int = 0
    owner: int | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in `unix:///path` or `http://host:port`. Raises ConfigError."""
        told = "PREPCACHE_URL must be unix:///path/to/socket or http://host:port"
        try:
            parts = urlsplit(url)
            path, port = parts.path, parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not a daemon's URL: {error}; {told}", url=url) from None
        if parts.scheme == "unix" and not parts.netloc and path[:1] == "/" != path and "\0" not in path:
            if (size := len(os.fsencode(path))) <= MAX_SOCKET_PATH_BYTES:
                return cls(socket=path)
            told = f"its path has {size} bytes; the limit is {MAX_SOCKET_PATH_BYTES}; {told}"
        extra = path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme == "http" and parts.hostname and not extra:
            return cls(host=parts.hostname, port=port or 80)
        raise ConfigError(f"{url!r} is not a daemon's URL: {told}", url=url)

    @property
    def url(self) -> str:
        if self.socket is not None:
            return f"unix://{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The client's settings.

    Args:
        address: the daemon's, or None: it is looked for (launcher.py).
        folder: the store's root as this process sees it, where that differs from what the daemon names.
    """

    mode: Mode = Mode.ON
    address: Address | None = None
    token: str | None = None
    folder: Path | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads the `PREPCACHE*` variables; an empty one counts as not set. Raises ConfigError."""
        given = {k: v for k, v in (os.environ if environ is None else environ).items() if v}
        said = given.get("PREPCACHE", "on").strip().lower()
        modes = {mode.value: mode for mode in Mode}
        if said not in modes:
            raise ConfigError(f"PREPCACHE must be one of {', '.join(modes)}, not {said!r}", value=said)
        url, folder = given.get("PREPCACHE_URL"), given.get("PREPCACHE_DIR")
        address = None if url is None else Address.parse(url)
        return cls(modes[said], address, _token(given), None if folder is None else Path(folder))


def is_first_rank() -> bool:
    """Whether no variable says that this is another rank of a job than the first."""
    ranks = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return all(rank in ("", "0") for rank in ranks)


def _token(given: Mapping[str, str]) -> str | None:
    """The token, or what its file holds: container platforms hand secrets over as files."""
    path = given.get("PREPCACHE_TOKEN_FILE")
    if "PREPCACHE_TOKEN" in given or path is None:
        return check_token(given.get("PREPCACHE_TOKEN"))
    try:
        return check_token(Path(path).read_text(encoding="latin-1"))
    except OSError as error:
        raise ConfigError(f"PREPCACHE_TOKEN_FILE: {path} cannot be read ({error.strerror})") from None


def check_token(token: str | None) -> str | None:
    """The token as a header may carry it, or ConfigError: a line break would forge a header."""
    if token is None:
        return None
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise ConfigError("PREPCACHE_TOKEN must be printable ASCII without spaces")
    return token
