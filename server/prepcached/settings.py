"""The daemon's settings: one frozen object, made once, passed inward.

Invariants:
    1. Command line > environment (`PREPCACHED_*`) > TOML file > default, each setting by itself.
    2. What cannot work, alone or together, fails here, and the message holds the mend.
    3. The token is in no repr, log line or problem document.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from grp import getgrnam
from pathlib import Path
from pwd import getpwnam, getpwuid
from typing import Any

from prepcache.errors import ConfigError
from prepcache.protocol.places import MAX_SOCKET_PATH_BYTES, own_root, own_socket
from prepcache.protocol.units import size_text

PREFIX = "PREPCACHED_"
MIN_TOKEN_CHARS = 16
MIN_BUDGET_BYTES = 1 << 20
NO_ID = 2**32 - 1
"""chown(2) takes this for "as it is"."""
_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power, _letter: 1024**_power}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


@dataclass(frozen=True)
class Settings:
    """What `prepcached serve` runs with.

    Args:
        root: folder of the store.
        uds: path of the unix socket; None for none.
        host, port: TCP, beside the socket or alone; needs a token.
        token: what TCP clients must show.
        group: of the unix socket (mode 0660), and of what jobs reach in the root; None for the process's own.
        max_bytes, min_free_bytes: the budget; None for the store's defaults.
        admins: uids that may purge and pin what others own, beside root and the daemon's own.
        isolation: "group": who reaches the daemon shares all entries; "user": each user sees his own.
        trusted: uids that share and see everybody's all the same, beside admins.
        allowed_hosts: names under which TCP clients may reach the daemon, beside `host` and loopback.
        idle_exit_s: stop when nobody did more than look for so long; None: never.
    """

    root: Path
    uds: Path | None
    host: str | None = None
    port: int | None = None
    token: str | None = field(default=None, repr=False)
    group: int | None = None
    max_bytes: int | None = None
    min_free_bytes: int | None = None
    admins: tuple[int, ...] = ()
    isolation: str = "group"
    trusted: tuple[int, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    idle_exit_s: float | None = None
    log_level: str = "info"
    log_format: str = "text"


_LIVE = frozenset({"max_bytes", "min_free_bytes"})
_NAMES = {"token": "token_file", "idle_exit_s": "idle_exit"}
"""Of members that are not called as their setting is."""


def changes(running: Settings, read: Settings) -> list[str]:
    """The settings that differ and are not in force before the next start, with their values; no token."""
    told = []
    for one in fields(Settings):
        old, new = getattr(running, one.name), getattr(read, one.name)
        if one.name not in _LIVE and old != new:
            values = f" ({old} -> {new})" if one.repr else ""
            told.append(_NAMES.get(one.name, one.name) + values)
    return told


def size_bytes(value: Any) -> int:
    """`"200GiB"`, `"10 GB"`, `4096` as bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.match(value) if isinstance(value, str) else None
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError('a size, such as "200GiB" or 4096')
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("text in quotes")
    return value


def _folder(value: Any) -> str:
    if not _text(value).strip():
        raise ValueError("the path of a folder; leave it out for the default")
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list) and all(isinstance(part, (str, int)) for part in value):
        return tuple(str(part) for part in value)
    raise ValueError('a list, such as ["alice", "bob"] (on the command line and in the environment: a,b)')


def _port(value: Any) -> int:
    try:
        port = int(value)
    except (ValueError, TypeError, OverflowError):
        port = -1
    if not 0 <= port <= 65535:
        raise ValueError("a port number from 0 to 65535")
    return port


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (ValueError, TypeError, OverflowError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("seconds, more than 0")
    return seconds


def _one_of(*known: str) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        if value not in known:
            raise ValueError("one of " + ", ".join(known))
        return str(value)

    return checked


KNOWN: dict[str, Callable[[Any], Any]] = {
    "root": _folder,
    "uds": _text,
    "host": _text,
    "port": _port,
    "token_file": _text,
    "group": _text,
    "max_bytes": size_bytes,
    "min_free": size_bytes,
    "admins": _names,
    "isolation": _one_of("group", "user"),
    "trusted": _names,
    "allowed_hosts": _names,
    "idle_exit": _seconds,
    "log_level": _one_of("debug", "info", "warning", "error"),
    "log_format": _one_of("text", "json"),
}
"""Every setting: its TOML key, in upper case behind `PREPCACHED_` its variable, with dashes its option."""


def load(
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    config: Path | None = None,
    *,
    activated: bool = False,
) -> Settings:
    """Settings from all four places.

    Args:
        options: from the command line; None where not given.
        environ: the environment.
        config: the TOML file; default `PREPCACHED_CONFIG`, else none.
        activated: whether systemd hands over a listening socket.

    Raises:
        ConfigError: naming the setting, where it came from, and the mend.
    """
    return _together(_given(KNOWN, options, environ, config), environ, activated)


def places(
    options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None
) -> tuple[Path, Path | None]:
    """The root and the socket: to stop a daemon or to check its root, no other setting has to be right.

    Raises:
        ConfigError: as `load`, for these two, and for a file that cannot be read or names what there is not.
    """
    values = _given(("root", "uds"), options, environ, config)
    root = _root(values, environ)
    return root, _uds(values, environ, root)


def _given(
    names: Iterable[str], options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> dict[str, Any]:
    """The values of settings that were given somewhere, each checked by itself."""
    if config is None and environ.get(PREFIX + "CONFIG"):
        config = Path(environ[PREFIX + "CONFIG"])
    in_file = {} if config is None else _read_toml(config)
    values = {}
    for name in names:
        variable = PREFIX + name.upper()
        if options.get(name) is not None:
            values[name] = _checked(name, options[name], "--" + name.replace("_", "-"))
        elif variable in environ:
            values[name] = _checked(name, environ[variable], variable)
        elif name in in_file:
            values[name] = _checked(name, in_file[name], f"{config}: {name}")
    return values


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror}): give --config a readable file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: is not TOML: {exc}") from None
    for name in values:
        if name not in KNOWN:
            close = difflib.get_close_matches(name, KNOWN, 1)
            hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(KNOWN)
            raise ConfigError(f"{path}: there is no setting {name!r}: {hint}")
    return values


def _checked(name: str, value: Any, source: str) -> Any:
    try:
        return KNOWN[name](value)
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"{source} = {value!r}: must be {exc}") from None


def _together(values: Mapping[str, Any], environ: Mapping[str, str], activated: bool) -> Settings:
    root = _root(values, environ)
    host, port = values.get("host"), values.get("port")
    if (host is None) != (port is None):
        raise ConfigError("host and port go together: give both --host and --port, or neither")
    token = _token(Path(values["token_file"])) if values.get("token_file") else None
    if host is not None and token is None:
        raise ConfigError(
            "TCP needs a token, since every user of the machine reaches its ports: "
            "write 32 random characters to a file of mode 0600 and give --token-file FILE"
        )
    uds = None if activated and "uds" not in values else _uds(values, environ, root)
    if uds is None and host is None and not activated:
        raise ConfigError("nothing to listen on: give --uds PATH, or --host and --port")
    if uds is not None and len(os.fsencode(uds)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{uds}: a socket's path may have {MAX_SOCKET_PATH_BYTES} bytes: give --uds a shorter one"
        )
    budget = values.get("max_bytes")
    if budget is not None and budget < MIN_BUDGET_BYTES:
        raise ConfigError(f"max_bytes = {budget}: no artifact fits; give at least 1MiB, best 10GiB or more")
    if values.get("trusted") and values.get("isolation") != "user":
        raise ConfigError(
            'trusted: has a meaning with isolation = "user" alone: set that, or leave `trusted` out'
        )
    _check_min_free(root, values.get("min_free"))
    return Settings(
        root=root,
        uds=uds,
        host=host,
        port=port,
        token=token,
        group=_group(values.get("group")),
        max_bytes=budget,
        min_free_bytes=values.get("min_free"),
        admins=tuple(_uid("admins", name) for name in values.get("admins", ())),
        isolation=values.get("isolation", "group"),
        trusted=tuple(_uid("trusted", name) for name in values.get("trusted", ())),
        allowed_hosts=values.get("allowed_hosts", ()),
        idle_exit_s=values.get("idle_exit"),
        log_level=values.get("log_level", "info"),
        log_format=values.get("log_format", "text"),
    )


def _root(values: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    return Path(os.path.abspath(values["root"])) if values.get("root") else own_root(environ)


def _uds(values: Mapping[str, Any], environ: Mapping[str, str], root: Path) -> Path | None:
    """The socket's path; an empty one means none."""
    if "uds" not in values:
        return own_socket(environ, root)
    return Path(os.path.abspath(values["uds"])) if values["uds"] else None


def _check_min_free(root: Path, min_free_bytes: int | None) -> None:
    if min_free_bytes is None:
        return
    try:
        fs = os.statvfs(next(one for one in (root, *root.parents) if one.is_dir()))
    except OSError:
        return  # whoever opens the root says what is wrong with it
    total_bytes = fs.f_blocks * fs.f_frsize
    if min_free_bytes >= total_bytes:
        raise ConfigError(
            f"min_free = {size_text(min_free_bytes)}: the disk under {root} has {size_text(total_bytes)} in "
            "all, so nothing would ever be kept: give --min-free less, best a twentieth of that"
        )


def _token(path: Path) -> str:
    try:
        with path.open("r", encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except PermissionError as exc:
        raise ConfigError(
            f"token_file {path}: cannot be read ({exc.strerror}): the daemon's user must, and nobody "
            f"else should: chown {_user_name()} {path}; chmod 400 {path}"
        ) from None
    except OSError as exc:
        raise ConfigError(f"token_file {path}: cannot be read ({exc.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"token_file {path}: must be ASCII text") from None
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(f"token_file {path}: everybody may read it: chmod 600 {path}")
    if len(token) < MIN_TOKEN_CHARS or not token.isprintable() or " " in token:
        raise ConfigError(
            f"token_file {path}: needs {MIN_TOKEN_CHARS} or more characters without spaces: "
            f"openssl rand -hex 32 > {path}"
        )
    return token


def _user_name() -> str:
    try:
        return getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    if name.isdecimal():
        if int(name) >= NO_ID:
            raise ConfigError(f"group {name}: is no number of a group; `getent group` lists them")
        return int(name)
    try:
        return getgrnam(name).gr_gid
    except KeyError:
        mend = f"groupadd --system {name}" if name else "leave it out for the process's own"
        raise ConfigError(f"group {name!r}: there is none of that name: {mend}") from None


def _uid(setting: str, name: str) -> int:
    try:
        return int(name) if name.isdecimal() else getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(f"{setting}: there is no user {name!r}") from None
