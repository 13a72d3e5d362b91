"""The `prepcached` command: serve, stop, check, rebuild.

Exit codes: 0 done, 1 the answer is no (findings, no daemon to stop), 2 usage; others from the error table.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from prepcache import __version__
from prepcache.errors import ConfigError, DaemonUnreachable, Forbidden, PrepcacheError, RootInUse
from prepcache.protocol.units import count_text
from prepcached import config as settings_module
from prepcached.config import Settings

STOP_WAIT_S = 30.0
ASK_TIMEOUT_S = 5.0

app = typer.Typer(
    rich_markup_mode=None,
    help="The daemon that keeps preprocessed tensors for the training jobs of this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"prepcached {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML settings; default $PREPCACHED_CONFIG.")
]
# Texts, since a Path would make the working directory of "".
Root = Annotated[str | None, typer.Option("--root", metavar="DIR", help="Folder of the store.")]
Uds = Annotated[str | None, typer.Option("--uds", metavar="PATH", help="Unix socket of the daemon.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def serve(config: Path | None, check_config: bool, **options: str | None) -> None:
    """Run the daemon.

    Example: prepcached serve --root /srv/prepcache --uds /run/prepcache/prepcached.sock --max-bytes 200GiB
    """
    from prepcached import start

    activated = start.is_activated(os.environ)
    if check_config:
        found = settings_module.load(options, os.environ, config, activated=activated)
        typer.echo(json.dumps(found.model_dump(mode="json", exclude={"token"}), indent=2))
        return
    start.serve(lambda: settings_module.load(options, os.environ, config, activated=activated), os.environ)


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(name: str) -> inspect.Parameter:
    setting = Settings.model_fields[name]
    extra: Any = setting.json_schema_extra
    metavar = extra["metavar"] or name.rpartition("_")[2].upper()
    option = typer.Option(f"--{name.replace('_', '-')}", help=setting.description, metavar=metavar)
    return _parameter(name, Annotated[str | None, option])


_check = typer.Option("--check-config", help="Check the settings, print them, and exit.")
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        _parameter("config", Config),
        *map(_option, settings_module.KNOWN),
        _parameter("check_config", Annotated[bool, _check], False),
    ]
)
app.command()(serve)


@app.command()
def stop(config: Config = None, uds: Uds = None, root: Root = None) -> None:
    """Stop the daemon, and wait until it has ended.

    Without settings, the daemon at $PREPCACHE_URL, or else your own. A job that still runs would start your
    own again, with the settings of its environment.

    Example: prepcached stop --uds /run/prepcache/prepcached.sock
    """
    if config is None and uds is None and root is None:
        uds = _named_by_url(os.environ)
    where = settings_module.load({"root": root, "uds": uds}, os.environ, config)
    path = where.uds
    if path is None:
        raise ConfigError("the daemon is found by its unix socket: give --uds PATH")
    pid, listener = _behind(path)
    if not listener or listener != pid:
        typer.echo(f"the daemon at {path} runs elsewhere, such as in a container: stop it there", err=True)
        raise typer.Exit(1)
    try:
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    except PermissionError:
        typer.echo(f"pid {pid} belongs to another user: run this as that user or as root", err=True)
        raise typer.Exit(18) from None
    except ProcessLookupError:
        pass  # it ended while we asked
    else:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(STOP_WAIT_S * 1000):
            typer.echo(f"pid {pid} was asked to stop, but still runs after {STOP_WAIT_S:.0f} s", err=True)
            raise typer.Exit(1)
    typer.echo(f"stopped the daemon at {path} (pid {pid})")


@app.command()
def check(
    config: Config = None,
    root: Root = None,
    uds: Uds = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what was found.")] = False,
    as_json: Json = False,
) -> None:
    """Compare the index with the disk. To repair, stop the daemon first.

    A running daemon does the check itself, and nothing is changed.

    Example: prepcached check --root /var/cache/prepcache --repair
    """
    from prepcached.store.store import check_root

    where = settings_module.load({"root": root, "uds": uds}, os.environ, config)
    try:
        findings = [dataclasses.asdict(one) for one in check_root(where.root, repair=repair)]
    except RootInUse:
        if repair:
            raise
        findings = _check_beside(where.uds)
    if as_json:
        typer.echo(json.dumps(findings))
    else:
        for one in findings:
            typer.echo(f"{'mended' if one['is_repaired'] else 'found '}  {one['code']}: {one['what']}")
        typer.echo(
            count_text(len(findings), "finding", "findings")
            if findings
            else "no problems found: index and disk agree"
        )
    if any(not one["is_repaired"] for one in findings):
        raise typer.Exit(1)


@app.command()
def rebuild(config: Config = None, root: Root = None) -> None:
    """Rebuild the index from the artifacts; the daemon must be stopped.

    Example: prepcached rebuild --root /var/cache/prepcache
    """
    from prepcached.store.store import rebuild as rebuild_index

    done = rebuild_index(settings_module.load({"root": root}, os.environ, config).root)
    told = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    typer.echo(f"the index was rebuilt: {told or 'no artifacts were found'}")


def _named_by_url(environ: Mapping[str, str]) -> str | None:
    """The socket in PREPCACHE_URL, unless a variable of the daemon names one."""
    url = environ.get("PREPCACHE_URL", "")
    if not url or any(f"PREPCACHED_{name}" in environ for name in ("CONFIG", "UDS", "ROOT")):
        return None
    if not url.startswith("unix:///"):
        raise ConfigError(f"PREPCACHE_URL is {url}: stop that daemon where it runs, or give --root or --uds")
    return url.removeprefix("unix://")


def _behind(path: Path) -> tuple[int, int]:
    """The pid that the daemon behind a socket reports, and the one of the kernel (0: not visible)."""
    from prepcached.auth import Peer

    info = _ask(path, "GET", "/v1/info", ASK_TIMEOUT_S)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ASK_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
            return int(info["pid"]), Peer.of(probe).pid
        except (OSError, KeyError) as error:
            raise _no_answer(path, error) from None


def _check_beside(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        raise ConfigError("the daemon of this root has no unix socket: stop it to check the root")
    told = _ask(path, "POST", "/v1/check", None)
    if "findings" not in told:
        raise Forbidden(str(told.get("detail", "the daemon did not check its root")))
    more = [{"code": "more", "what": f"{told['more']} more findings"}] if told.get("more") else []
    return [{**one, "is_repaired": False} for one in [*told["findings"], *more]]


def _ask(path: Path, method: str, target: str, timeout_s: float | None) -> dict[str, Any]:
    """The answer of the daemon behind a socket; raises DaemonUnreachable."""
    import http.client

    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(timeout_s)
    try:
        connection.sock.connect(os.fspath(path))
        connection.request(method, target)
        found: dict[str, Any] = json.load(connection.getresponse())
        return found
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _no_answer(path, error) from None
    finally:
        connection.close()


def _no_answer(path: Path, error: Exception) -> DaemonUnreachable:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DaemonUnreachable(
        f"no daemon answers at {path} ({why.lower()}): if it runs elsewhere, give --root or --uds"
    )


def main() -> None:
    """Runs the command. Errors of prepcache end it with one line and their exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know few characters
    try:
        app(prog_name="prepcached")
    except PrepcacheError as error:
        typer.echo(f"prepcached: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("prepcache"):
            raise
        lacking = f"the daemon's dependencies are not installed ({error.name})"
        mend = f'{lacking}: in its checkout, pip install ".[server]"'
        typer.echo(f"prepcached: {mend}", err=True)
        sys.exit(1)
