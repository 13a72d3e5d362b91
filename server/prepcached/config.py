"""The daemon's settings: one frozen model, made once, passed inward.

Invariants:
    1. Command line > environment (`PREPCACHED_*`) > TOML file > default. Unknown names are refused
       everywhere.
    2. What cannot work fails here, and the message says where it came from.
    3. The token is in no repr, log line or problem document.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from grp import getgrnam
from pathlib import Path
from pwd import getpwnam
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from prepcache.errors import ConfigError
from prepcache.protocol.places import MAX_SOCKET_PATH_BYTES, own_root, own_socket
from prepcache.protocol.units import parse_size

PREFIX = "PREPCACHED_"
MIN_TOKEN_CHARS = 16
MIN_BUDGET_BYTES = 1 << 20
NO_ID = 2**32 - 1  # chown(2) takes this for "as it is"


def size_bytes(value: Any) -> int:
    """`"200GiB"`, `"10 GB"`, `4096` as bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(value if isinstance(value, str) else "")
    except ConfigError:
        raise ValueError('must be a size, such as "200GiB" or 4096') from None


def _path(value: Any) -> Path:
    """An absolute path, since the daemon changes its working directory."""
    text = os.fspath(value) if isinstance(value, (str, Path)) else ""
    if not text.strip() or "\0" in text:
        raise ValueError("must be a path in quotes; leave it out for the default")
    return Path(os.path.abspath(text))


def _names(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError('must be a list, such as ["alice", "bob"] (elsewhere than in the file: a,b)')
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _uid(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else getpwnam(name).pw_uid
    except KeyError:
        raise ValueError(f"must name users or uids; there is no user {name!r}") from None


def _quotas(value: Any) -> dict[int, int]:
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        value = {name.strip(): size.strip() for name, _, size in pairs}
    if not isinstance(value, dict):
        raise ValueError(
            'must be a table, such as alice = "50GiB" (in the environment: alice=50GiB,bob=1TiB)'
        )
    return {_uid(str(name)): size_bytes(size) for name, size in value.items()}


def _gid(value: Any) -> int:
    name = str(value)
    try:
        gid = int(name) if name.isdecimal() else getgrnam(name).gr_gid
    except KeyError:
        gid = NO_ID
    if gid >= NO_ID:
        raise ValueError(
            f"must be an existing group (groupadd --system {name or 'NAME'}); leave it out for none"
        )
    return gid


def _address(value: Any) -> Any:
    host, _, port = str(value).rpartition(":")
    if not host:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:9109")
    return host.strip("[]"), port


def _setting(about: str, metavar: str | None = None, default: Any = None) -> Any:
    """A setting, and what `prepcached serve --help` says of it."""
    return Field(default=default, description=about, json_schema_extra={"metavar": metavar})


Size = Annotated[int, BeforeValidator(size_bytes)]
AbsolutePath = Annotated[Path, BeforeValidator(_path)]
Uids = Annotated[tuple[int, ...], BeforeValidator(lambda value: tuple(map(_uid, _names(value))))]
Port = Annotated[int, Field(ge=0, le=65535)]


class TierSettings(BaseModel):
    """The bucket of several machines; `upstream` is the lead daemon from which this one leases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    mode: Literal["read-only", "read-write"] = "read-write"
    upstream: str | None = None
    upstream_token_file: AbsolutePath | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.upstream is None) != (self.upstream_token_file is None):
            raise ConfigError("tier: upstream and upstream_token_file go together: give both, or neither")
        at = urlsplit(self.upstream or "http://none")
        if at.scheme not in ("http", "https") or not at.netloc or at.username or at.path.strip("/"):
            raise ConfigError("tier.upstream: must be http://host:port or https://host")
        if self.upstream is not None and self.mode == "read-only":
            raise ConfigError(
                'tier.upstream: needs mode = "read-write", or other machines would wait in vain for this '
                "machine's samples"
            )
        return self


class Settings(BaseModel):
    """What `prepcached serve` runs with. `token` is what `token_file` holds; users and groups are numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: AbsolutePath = _setting("Folder of the store; default ~/.cache/prepcache.", "DIR", ...)
    uds: Annotated[Path | None, BeforeValidator(lambda value: _path(value) if value else None)] = _setting(
        "Unix socket, mode 0660; empty: none.", "PATH"
    )
    host: str | None = _setting("TCP address, beside the socket or alone; needs a token.")
    port: Port | None = _setting("TCP port.")
    token_file: AbsolutePath | None = _setting("Holds the token of TCP clients; mode 0600.", "FILE")
    token: str | None = Field(default=None, repr=False)
    metrics_listen: Annotated[tuple[str, Port], BeforeValidator(_address)] | None = _setting(
        "Serve metrics and health there, without a token.", "HOST:PORT"
    )
    group: Annotated[int, BeforeValidator(_gid)] | None = _setting(
        "Group of the unix socket and of the folders that jobs use."
    )
    max_bytes: Size | None = _setting("Budget on disk, as 200GiB.", "SIZE")
    min_free: Size | None = _setting("Space on the disk that the cache never takes.", "SIZE")
    user_quota: Size | None = _setting("Limit on the size of one user's entries.", "SIZE")
    quotas: Annotated[dict[int, int], BeforeValidator(_quotas)] = _setting(
        "The same for some users, by name.", "A=SIZE,B=SIZE", {}
    )
    admins: Uids = _setting("Users who may purge other users' entries.", "A,B", ())
    isolation: Literal["group", "user"] = _setting(
        "group: all share all entries; user: users see their own.", default="group"
    )
    trusted: Uids = _setting("Users who see all entries with --isolation user.", "A,B", ())
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_names)] = _setting(
        "Names under which TCP clients reach the daemon.", "A,B", ()
    )
    idle_exit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = _setting(
        "Stop after this time without a job; commands do not count.", "SECONDS"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "debug, info, warning or error.", default="info"
    )
    tier: Annotated[
        TierSettings | None,
        BeforeValidator(lambda value: {"url": value} if isinstance(value, str) else value),
    ] = _setting("Bucket shared with other machines, as s3://bucket/prefix.", "URL")
    log_format: Literal["text", "json"] = _setting("text, or json: one object a line.", default="text")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.host is None) != (self.port is None):
            raise ConfigError("host and port go together: give both --host and --port, or neither")
        if self.host is not None and self.token is None:
            raise ConfigError(
                "TCP needs a token, since every user of the machine can reach its ports: "
                "write 32 random characters to a file of mode 0600 and give --token-file FILE"
            )
        if self.uds is not None and len(os.fsencode(self.uds)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"{self.uds}: a socket's path may have at most {MAX_SOCKET_PATH_BYTES} bytes: "
                "give --uds a shorter one"
            )
        if self.trusted and self.isolation != "user":
            raise ConfigError('trusted: works only with isolation = "user": set that, or leave `trusted` out')
        return self


KNOWN = tuple(name for name in Settings.model_fields if name != "token")
"""Every setting: its TOML key, in upper case behind `PREPCACHED_` its variable, with dashes its option."""


def load(
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    config: Path | None = None,
    *,
    activated: bool = False,
) -> Settings:
    """Settings from all four places; raises ConfigError. `activated`: systemd hands over a socket."""
    values, labels = _merged(options, environ, config)
    if activated and "uds" not in labels:
        values["uds"] = None
    if values.get("token_file"):
        values["token"] = read_token("token_file", Path(values["token_file"]))
    try:
        found = Settings.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        name, message = str(fault["loc"][0]), fault["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{labels[name]} = {values[name]!r}: {message}") from None
    if found.uds is None and found.host is None and not activated:
        raise ConfigError("nothing to listen on: give --uds PATH, or --host and --port")
    if found.max_bytes is not None and found.max_bytes < MIN_BUDGET_BYTES:
        raise ConfigError(
            f"max_bytes = {found.max_bytes}: too small: give at least 1MiB, better 10GiB or more"
        )
    if found.tier is not None and found.tier.upstream_token_file is not None:
        read_token("tier.upstream_token_file", found.tier.upstream_token_file)
    return found


def _merged(
    options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values, and where each came from."""
    if config is None and environ.get(PREFIX + "CONFIG"):
        config = Path(environ[PREFIX + "CONFIG"])
    given = [(f"{config}: {name}", name, value) for name, value in _read_toml(config).items()]
    given += [
        (variable, variable.removeprefix(PREFIX).lower(), text)
        for variable, text in environ.items()
        if variable.startswith(PREFIX) and variable != PREFIX + "CONFIG"
    ]
    given += [("--" + name.replace("_", "-"), name, one) for name, one in options.items() if one is not None]
    for label, name, _ in given:
        if name not in KNOWN:
            close = difflib.get_close_matches(name, KNOWN, 1)
            mend = f"did you mean {close[0]}?" if close else f"known are {', '.join(KNOWN)}"
            raise ConfigError(f"{label}: there is no such setting; {mend}")
    values = {name: value for _, name, value in given}
    values.setdefault("root", own_root(environ))
    if "uds" not in values:
        values["uds"] = own_socket(environ, Path(os.path.abspath(str(values["root"]))))
    return values, {name: label for label, name, _ in given}


def _read_toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as exc:
        mend = "name a readable file in --config or PREPCACHED_CONFIG"
        raise ConfigError(f"{path}: cannot be read ({exc.strerror}): {mend}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: is not TOML: {exc}") from None


def read_token(name: str, path: Path) -> str:
    """The token in a file; raises ConfigError where it is none, or everybody may read it."""
    try:
        is_public = path.stat().st_mode & 0o007
        token = path.read_bytes().decode("ascii").strip()
    except OSError as exc:
        mend = "only the daemon's user should be able to: chown it to that user, and chmod 400"
        raise ConfigError(f"{name} {path}: cannot be read ({exc.strerror}): {mend}") from None
    except UnicodeDecodeError:
        token = ""
    if is_public:
        raise ConfigError(f"{name} {path}: everybody may read it: chmod 600 {path}")
    if not MIN_TOKEN_CHARS <= len(token) <= 4096 or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{name} {path}: needs {MIN_TOKEN_CHARS} or more ASCII characters without spaces: "
            f"openssl rand -hex 32 > {path}"
        )
    return token
