"""A MkDocs hook that writes the reference pages from the code: commands, settings, HTTP, metrics, errors.

Each page is a function that returns Markdown, so that tests can read it without building the site.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from prepcache import errors
from prepcache.command.cli import app as client_command
from prepcached.cli import app as daemon_command

_JOB_VARIABLES = {
    "PREPCACHE_URL": (
        "which daemon: `unix:///run/prepcache/prepcached.sock` or `http://host:port`",
        "the system service if its socket is there, else your own daemon, started on demand",
    ),
    "PREPCACHE_TOKEN": ("the token for a daemon over TCP", "none"),
    "PREPCACHE_TOKEN_FILE": ("a file that holds the token, if `PREPCACHE_TOKEN` is not set", "none"),
    "PREPCACHE_DIR": (
        "where this process sees the daemon's root, if the path differs from the daemon's own",
        "the path that the daemon names",
    ),
    "PREPCACHE": (
        "`on`; `off`: no daemon, every access preprocesses; `readonly`: use the cache, store nothing; "
        "`refresh`: preprocess again and replace what is stored",
        "`on`",
    ),
}
_EXIT_CODES = (
    "Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 no daemon; more under [Errors](errors.md)."
)
_METHODS = ("get", "post", "put", "delete")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to the site."""
    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    return files


def errors_page() -> str:
    """One row for each error class that prepcache raises or the daemon answers."""
    rows = (
        (
            f"`{error.code}`",
            f"`{error.__name__}`",
            str(error.status),
            str(error.exit_code),
            "yes" if error.is_retryable else "",
            _first_line(error.__doc__),
        )
        for error in errors.all_errors()
    )
    return _page(
        "Errors",
        "Every error has a stable code. Over HTTP, errors are problem documents (RFC 9457) with that `code`; "
        "commands end with the exit code; in Python, all are subclasses of `prepcache.PrepcacheError`.",
        _table(("code", "class", "HTTP", "exit code", "retry helps", "meaning"), rows),
    )


def settings_page() -> str:
    """The environment variables of jobs, and the daemon's settings."""
    serve = _group(daemon_command).commands["serve"]
    daemon = (
        (f"`--{name}`", f"`PREPCACHED_{_upper(name)}`", f"`{name.replace('-', '_')}`", _text(option.help))
        for option in serve.params
        if (name := _long_name(option)) not in ("help", "check-config")
    )
    return _page(
        "Settings",
        "## Jobs and the `prepcache` command",
        _table(
            ("variable", "meaning", "default"),
            ((f"`{name}`", *texts) for name, texts in _JOB_VARIABLES.items()),
        ),
        "## The daemon",
        "The command line takes precedence over the environment, the environment over the TOML file, and the "
        "file over the default. `PREPCACHED_CONFIG` or `--config` names the file. Your own daemon has the "
        "environment of the job that starts it.",
        _table(("option", "environment", "in the file", "meaning"), daemon),
    )


def commands_page() -> str:
    """Every command with its arguments and options."""
    parts = [_EXIT_CODES, "All commands that print take `--json`, but `prepcached stop`."]
    for program, app in (("prepcache", client_command), ("prepcached", daemon_command)):
        parts.append(f"## {program}")
        for name, command in all_commands(app).items():
            about, _, example = (command.help or "").partition("Example:")
            arguments = " ".join(_argument(option) for option in _arguments(command))
            parts.append(f"### {program} {name}")
            parts.append(f"```text\n{program} {name} {arguments}".rstrip() + "\n```")
            parts.append(_text(about))
            if example.strip():
                parts.append(f"Example: `{example.strip()}`")
            options = [option for option in command.params if option not in _arguments(command)]
            if options:
                rows = ((f"`--{_long_name(option)}`", _text(option.help)) for option in options)
                parts.append(_table(("option", "meaning"), rows))
    return _page("Commands", *parts)


def all_commands(app: typer.Typer) -> dict[str, Any]:
    """The commands of a program by name; those of a group as `group command`."""
    found: dict[str, Any] = {}
    for name, command in _group(app).commands.items():
        below = getattr(command, "commands", None)
        found |= {name: command} if below is None else {f"{name} {each}": one for each, one in below.items()}
    return found


def http_page() -> str:
    """Every endpoint, from the OpenAPI document of a daemon."""
    document, _ = _served()
    rows = (
        (f"`{method.upper()} {path}`", _text(_first_line(one.get("description") or one.get("summary"))))
        for path, methods in document["paths"].items()
        for method, one in methods.items()
        if method in _METHODS
    )
    return _page(
        "HTTP endpoints",
        "The daemon listens on a unix socket, which `prepcache status` names, and optionally on TCP with "
        "`Authorization: Bearer TOKEN`:",
        "```sh\ncurl --unix-socket /run/prepcache/prepcached.sock http://localhost/v1/stats\n```",
        "`GET /docs` describes requests and responses, from the OpenAPI document at `/openapi.json`. Errors "
        "are problem documents (RFC 9457) with a stable `code`. Unknown members and query parameters are "
        "refused by name. Lists come in pages: pass `cursor` to get the next one. What answers `GET` answers "
        "`HEAD`.",
        _table(("method and path", "what it does"), rows),
        "The page at `GET /` is for people. To open it in a browser on another machine:",
        "```sh\nssh -N -L 8080:/run/prepcache/prepcached.sock box     # then open http://localhost:8080/\n```",
    )


def metrics_page() -> str:
    """Every metric of prepcache's own, from the exposition of a daemon."""
    _, exposition = _served()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exposition, flags=re.MULTILINE))
    helps = re.findall(r"^# HELP (prepcache\w*) (.*)$", exposition, flags=re.MULTILINE)
    rows = ((f"`{name}`", kinds[name], _text(text)) for name, text in helps if not name.endswith("_created"))
    return _page(
        "Metrics",
        "`GET /metrics` has them in the format of Prometheus.",
        _table(("metric", "type", "meaning"), rows),
    )


@functools.cache
def _served() -> tuple[dict[str, Any], str]:
    """The OpenAPI document and the metrics of a daemon that is started for this and stopped again."""
    with tempfile.TemporaryDirectory() as folder:
        uds = str(Path(folder) / "daemon.sock")
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "prepcached",
                "serve",
                "--root",
                folder + "/root",
                "--uds",
                uds,
                "--min-free",
                "0",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        with (
            process,
            httpx.Client(transport=httpx.HTTPTransport(uds=uds), base_url="http://localhost") as http,
        ):
            try:
                while not Path(uds).exists():
                    if process.poll() is not None:
                        raise RuntimeError(
                            f"the daemon did not start: {process.stderr and process.stderr.read()}"
                        )
                    time.sleep(0.05)
                return http.get("/openapi.json", timeout=60).json(), http.get("/metrics", timeout=60).text
            finally:
                process.terminate()


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page,
    "errors": errors_page,
    "http": http_page,
    "metrics": metrics_page,
    "settings": settings_page,
}


def _group(app: typer.Typer) -> Any:
    return typer.main.get_command(app)


def _argument(argument: Any) -> str:
    name = argument.metavar or str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _arguments(command: Any) -> list[Any]:
    return [option for option in command.params if option.param_type_name == "argument"]


def _long_name(option: Any) -> str:
    return max(option.opts, key=len).lstrip("-")


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().split("\n")[0].rstrip(".")


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", *parts)) + "\n"


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
