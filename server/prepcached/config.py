"""The daemon's settings: one frozen model, made once, passed inward.

Invariants:
    1. Command line > environment (`PREPCACHED_*`) > TOML file > default, each setting by itself. An unknown
       name is refused, in the environment and the file too.
    2. What cannot work, alone or together, fails here, and the message holds the mend.
    3. The token is in no repr, log line or problem document.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from grp import getgrnam
from pathlib import Path
from pwd import getpwnam, getpwuid
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from prepcache.errors import ConfigError
from prepcache.protocol.places import MAX_SOCKET_PATH_BYTES, own_root, own_socket
from prepcache.protocol.units import parse_size, size_text

PREFIX = "PREPCACHED_"
MIN_TOKEN_CHARS = 16
MIN_BUDGET_BYTES = 1 << 20
NO_ID = 2**32 - 1
"""chown(2) takes this for "as it is"."""
_MUST_BE = {
    "string_type": "text in quotes",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "path_type": "a path in quotes",
}
"""What pydantic says in more words, for people who edit a file."""


def size_bytes(value: Any) -> int:
    """`"200GiB"`, `"10 GB"`, `4096` as bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(value if isinstance(value, str) else "")
    except ConfigError:
        raise ValueError('a size, such as "200GiB" or 4096') from None


def _path(value: Any) -> Path:
    """Made whole: the daemon changes its working directory."""
    if not isinstance(value, (str, Path)) or "\0" in str(value):
        raise ValueError("text in quotes")
    return Path(os.path.abspath(value))


def _folder(value: Any) -> Path:
    if isinstance(value, str) and not value.strip():
        raise ValueError("the path of a folder; leave it out for the default")
    return _path(value)


def _socket(value: Any) -> Path | None:
    """Its path; an empty one means none."""
    return _path(value) if value else None


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, (list, tuple)) and all(isinstance(part, (str, int)) for part in value):
        return tuple(str(part) for part in value)
    raise ValueError('a list, such as ["alice", "bob"] (on the command line and in the environment: a,b)')


def _uids(value: Any) -> tuple[int, ...]:
    return tuple(_uid(name) for name in _names(value))


def _uid(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else getpwnam(name).pw_uid
    except KeyError:
        raise ValueError(f"names or uids of users; there is no user {name!r}") from None


def _quotas(value: Any) -> dict[int, int]:
    """`{alice = "50GiB", bob = "10GiB"}`, by uid."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        value = {name.strip(): size.strip() for name, _, size in pairs}
    if not isinstance(value, dict):
        raise ValueError(
            'a table of sizes by user: alice = "50GiB" (in the environment: alice=50GiB,bob=1TiB)'
        )
    return {_uid(str(name)): size_bytes(size) for name, size in value.items()}


def _gid(value: Any) -> int:
    name = str(value)
    if name.isdecimal():
        if int(name) >= NO_ID:
            raise ValueError(f"an existing group, not {name}; `getent group` lists them")
        return int(name)
    try:
        return getgrnam(name).gr_gid
    except KeyError:
        mend = f"groupadd --system {name}" if name else "leave it out for the process's own"
        raise ValueError(f"an existing group: {mend}") from None


def _port(value: Any) -> int:
    if not re.fullmatch(r"\d{1,5}", str(value)) or int(value) > 65535:
        raise ValueError("a port number from 0 to 65535")
    return int(value)


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (ValueError, TypeError, OverflowError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("seconds, more than 0")
    return seconds


def _address(value: Any) -> tuple[str, int]:
    """`HOST:PORT`."""
    host, _, port = str(value).rpartition(":")
    if not host:
        raise ValueError("HOST:PORT, such as 127.0.0.1:9109")
    return host.strip("[]"), _port(port)


class TierSettings(BaseModel):
    """A bucket that the daemons of several machines share: a table in the file, or a URL alone.

    Args:
        url: s3://, gs://, az:// or file://, with a prefix; never with credentials.
        mode: "read-only" daemons fetch from it and write nothing into it.
        upstream: the lead daemon, `http://host:port` or `https://host`, from which this one leases what its
            jobs preprocess, so that no other machine does.
        upstream_token_file: a file with what the lead's `token_file` holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    mode: Literal["read-only", "read-write"] = "read-write"
    upstream: str | None = None
    upstream_token_file: Annotated[Path | None, BeforeValidator(_socket)] = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.upstream is None) != (self.upstream_token_file is None):
            raise ConfigError("tier: upstream and upstream_token_file go together: give both, or neither")
        parts = urlsplit(self.upstream or "http://none")
        if (
            parts.scheme not in ("http", "https")
            or not parts.netloc
            or parts.username
            or parts.path.strip("/")
        ):
            raise ConfigError("tier.upstream: must be http://host:port or https://host")
        if self.upstream is not None and self.mode == "read-only":
            raise ConfigError(
                'tier.upstream: needs mode = "read-write", or other machines would wait in vain for this '
                "machine's samples"
            )
        return self


def _tier(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(size_bytes)]
Quotas = Annotated[dict[int, int], BeforeValidator(_quotas)]
Uids = Annotated[tuple[int, ...], BeforeValidator(_uids)]


class Places(BaseModel):
    """Where a daemon lives: to stop it or to check its root, no other setting has to be right.

    Args:
        root: folder of the store.
        uds: path of the unix socket; None for none.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    root: Annotated[Path, BeforeValidator(_folder)]
    uds: Annotated[Path | None, BeforeValidator(_socket)] = None


class Settings(Places):
    """What `prepcached serve` runs with.

    Args:
        host, port: TCP, beside the socket or alone; needs a token.
        token_file, token: what TCP clients must show, and the file that holds it.
        metrics_listen: where `/metrics`, `/healthz` and `/readyz` alone are answered, without a token.
        group: of the unix socket (mode 0660), and of what jobs reach in the root; None for the process's own.
        max_bytes, min_free: the budget; None for the store's defaults.
        user_quota: bytes that one user's entries may take; None: no limit but the budget.
        quotas: the same for some users, by uid.
        admins: uids that may purge and pin what others own, beside root and the daemon's own.
        isolation: "group": who reaches the daemon shares all entries; "user": each user sees his own.
        trusted: uids that share and see everybody's all the same, beside admins.
        allowed_hosts: names under which TCP clients may reach the daemon, beside `host` and loopback.
        tier: a bucket that other machines' daemons share (tier/).
        idle_exit: stop when nobody did more than look for so many seconds; None: never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str | None = None
    port: Annotated[int | None, BeforeValidator(_port)] = None
    token_file: Annotated[Path | None, BeforeValidator(_socket)] = None
    token: str | None = Field(default=None, repr=False)
    metrics_listen: Annotated[tuple[str, int] | None, BeforeValidator(_address)] = None
    group: Annotated[int | None, BeforeValidator(_gid)] = None
    max_bytes: Size | None = None
    min_free: Size | None = None
    user_quota: Size | None = None
    quotas: Quotas = Field(default_factory=dict)
    admins: Uids = ()
    isolation: Literal["group", "user"] = "group"
    trusted: Uids = ()
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    idle_exit: Annotated[float | None, BeforeValidator(_seconds)] = None
    tier: Annotated[TierSettings | None, BeforeValidator(_tier)] = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.host is None) != (self.port is None):
            raise ConfigError("host and port go together: give both --host and --port, or neither")
        if self.host is not None and self.token is None:
            raise ConfigError(
                "TCP needs a token, since every user of the machine can reach its ports: "
                "write 32 random characters to a file of mode 0600 and give --token-file FILE"
            )
        if self.metrics_listen is not None and self.metrics_listen[1] == self.port:
            raise ConfigError(f"metrics_listen: --port already uses {self.port}: choose another port")
        if self.uds is not None and len(os.fsencode(self.uds)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"{self.uds}: a socket's path may have at most {MAX_SOCKET_PATH_BYTES} bytes: "
                "give --uds a shorter one"
            )
        if self.trusted and self.isolation != "user":
            raise ConfigError('trusted: works only with isolation = "user": set that, or leave `trusted` out')
        return self


P = TypeVar("P", bound=Places)
KNOWN = tuple(name for name in Settings.model_fields if name != "token")
"""Every setting: its TOML key, in upper case behind `PREPCACHED_` its variable, with dashes its option."""
LIVE = frozenset({"max_bytes", "min_free", "user_quota", "quotas", "admins", "trusted", "token"})
LIVE |= {"token_file", "log_level"}
"""What a reload changes in a daemon that runs."""


def changes(running: Settings, read: Settings) -> list[str]:
    """The settings that differ and are not in force before the next start, with their values."""
    pairs = ((name, getattr(running, name), getattr(read, name)) for name in KNOWN if name not in LIVE)
    return [f"{name} ({old} -> {new})" for name, old, new in pairs if old != new]


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
    given = _Given(options, environ, config)
    values = given.values
    if activated and "uds" not in values:
        values["uds"] = None
    where = given.check(Places)
    if values.get("token_file"):
        values["token"] = read_token("token_file", Path(values["token_file"]))
    if where.uds is None and "host" not in values and not activated:
        raise ConfigError("nothing to listen on: give --uds PATH, or --host and --port")
    found = given.check(Settings)
    if found.max_bytes is not None and found.max_bytes < MIN_BUDGET_BYTES:
        raise ConfigError(
            f"max_bytes = {found.max_bytes}: too small; give at least 1MiB, better 10GiB or more"
        )
    _check_min_free(found.root, found.min_free)
    if found.tier is not None and found.tier.upstream_token_file is not None:
        read_token("tier.upstream_token_file", found.tier.upstream_token_file)
    return found


def places(options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> Places:
    """The root and the socket.

    Raises:
        ConfigError: as `load`, for these two, and for a file that cannot be read or names what there is not.
    """
    return _Given(options, environ, config).check(Places)


class _Given:
    """What was given, and where."""

    def __init__(self, options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None) -> None:
        if config is None and environ.get(PREFIX + "CONFIG"):
            config = Path(environ[PREFIX + "CONFIG"])
        in_file = {} if config is None else _read_toml(config)
        variables = {name: PREFIX + name.upper() for name in KNOWN}
        in_environ = {name: environ[one] for name, one in variables.items() if one in environ}
        on_line = {name: value for name, value in options.items() if value is not None}
        self.values: dict[str, Any] = {**in_file, **in_environ, **on_line}
        self._labels = {
            **{name: f"{config}: {name}" for name in in_file},
            **{name: variables[name] for name in in_environ},
            **{name: "--" + name.replace("_", "-") for name in on_line},
        }
        for variable in environ:
            if variable.startswith(PREFIX) and variable != PREFIX + "CONFIG":
                _check_known(variable.removeprefix(PREFIX).lower(), variable)
        self._environ = environ

    def check(self, model: type[P]) -> P:
        """The model of what was given, with the places that are the default.

        Raises:
            ConfigError: naming the first fault.
        """
        values = dict(self.values)
        try:
            if "root" not in values:
                values["root"] = own_root(self._environ)
            if "uds" not in values:
                root = Places.model_validate({"root": values["root"]}).root
                values["uds"] = own_socket(self._environ, root)
            return model.model_validate(values)
        except ValidationError as error:
            fault = error.errors()[0]
            name = str(fault["loc"][0])
            told = fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
            must = _MUST_BE.get(fault["type"], told)
            if fault["type"] == "literal_error":
                must = "one of " + fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
            raise ConfigError(f"{self._labels[name]} = {values[name]!r}: must be {must}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror}): give --config a readable file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: is not TOML: {exc}") from None
    for name in values:
        _check_known(name, str(path))
    return values


def _check_known(name: str, where: str) -> None:
    if name not in KNOWN:
        close = difflib.get_close_matches(name, KNOWN, 1)
        hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(KNOWN)
        raise ConfigError(f"{where}: unknown setting {name!r}: {hint}")


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
            f"min_free = {size_text(min_free_bytes)}: the disk under {root} has only "
            f"{size_text(total_bytes)}, so nothing could be stored: give --min-free about 5 % of that"
        )


def read_token(name: str, path: Path) -> str:
    """What a setting's file holds.

    Raises:
        ConfigError: it cannot be read, everybody may read it, or it holds no token.
    """
    try:
        with path.open("r", encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except PermissionError as exc:
        raise ConfigError(
            f"{name} {path}: cannot be read ({exc.strerror}). Only the daemon's user should be able "
            f"to: chown {_user_name()} {path}; chmod 400 {path}"
        ) from None
    except OSError as exc:
        raise ConfigError(f"{name} {path}: cannot be read ({exc.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} {path}: must be ASCII text") from None
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(f"{name} {path}: everybody may read it: chmod 600 {path}")
    if len(token) < MIN_TOKEN_CHARS or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{name} {path}: needs {MIN_TOKEN_CHARS} or more characters without spaces: "
            f"openssl rand -hex 32 > {path}"
        )
    return token


def _user_name() -> str:
    try:
        return getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
