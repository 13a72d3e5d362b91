"""The `prepcache` command: look at the cache, purge, pin, verify; tables for people, `--json` for programs.

Exit codes: 0 done, 1 the answer is no, 2 usage, 3 daemon unreachable; others from the error table.

Invariants:
    1. Whatever happens, a person sees one line that says what and what to do, never a traceback.
    2. With `--json`, standard output is one JSON text and nothing else; of `status --watch`, one a line.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from prepcache import __version__
from prepcache.command import cli_tables, fill_commands
from prepcache.command.cli_tables import AsJson, emit
from prepcache.daemon import waits
from prepcache.daemon.client import Client, Filters
from prepcache.daemon.launcher import Launcher
from prepcache.errors import BadRequest, NotFound, PrepcacheError
from prepcache.protocol import inspection, status_text
from prepcache.protocol.inspection import SORTS
from prepcache.protocol.units import parse_size, parse_span
from prepcache.protocol.wire import Message, hex64

T = TypeVar("T")
MOST_KEYS = 100  # that are counted of those that begin alike
INTERNAL = 70  # EX_SOFTWARE (sysexits.h)

app = typer.Typer(
    rich_markup_mode=None,
    help="Look after the cache of preprocessed tensors that the training jobs of this machine share.",
    epilog="The daemon is the one at $PREPCACHE_URL, else the system service, else your own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(fill_commands.fill)
app.command()(fill_commands.plan)

tier = typer.Typer(
    rich_markup_mode=None,
    help="The bucket that daemons of several machines share.\n\nExample: prepcache tier status",
    no_args_is_help=True,
)
app.add_typer(tier, name="tier")


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"prepcache {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="The recipe's name, or a prefix that ends in *.")
]
Recipe = Annotated[
    str | None, typer.Option("--recipe", metavar="DIGEST", help="The recipe's digest, or its first digits.")
]
Owner = Annotated[str | None, typer.Option("--owner", metavar="USER", help="The owner's name or uid.")]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="SPAN", help="Not used for this long, as 30d or 12h.")
]
ProducedBy = Annotated[
    str | None, typer.Option("--produced-by", metavar="TEXT", help="Made by this script, host or user.")
]
Free = Annotated[
    str | None,
    typer.Option("--free", metavar="SIZE", help="Remove this much, as 50GB, least recently used first."),
]
Keys = Annotated[list[str], typer.Argument(metavar="KEY", help="Keys, or their first digits.")]


@app.command()
def status(
    is_watched: Annotated[bool, typer.Option("--watch", help="Update until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is cached, whether it helps, and who is connected.

    Also why the last job missed, and how to free space. It starts no daemon.

    Example: prepcache status --watch
    """

    def look() -> cli_tables.Status:
        with _client(is_starting=False) as client:
            miss = None
            with contextlib.suppress(NotFound):
                miss = client.explain()
            names = client.names(cli_tables.NAMES_SHOWN)
            return cli_tables.Status(
                client.info(), client.stats(), client.sessions(), client.url, names, miss
            )

    if is_watched:
        cli_tables.watch(look, as_json)
    else:
        seen = look()
        emit(seen.to_json(), as_json, lambda: cli_tables.show(*cli_tables.status_lines(seen)))


@app.command("ls")
def list_entries(
    name: Name = None,
    recipe: Recipe = None,
    owner: Owner = None,
    older_than: OlderThan = None,
    produced_by: ProducedBy = None,
    pinned: Annotated[bool, typer.Option("--pinned", help="Only pinned entries.")] = False,
    sort: Annotated[str, typer.Option(metavar="|".join(SORTS), help="Largest or latest first.")] = "used_at",
    limit: Annotated[int, typer.Option(min=0, help="List at most so many; 0 for all.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the entries. `prepcache show KEY` shows how an entry was made.

    Example: prepcache ls --name "tokens*" --sort size_bytes
    """
    if sort not in SORTS:
        raise typer.BadParameter(f"must be one of {', '.join(SORTS)}", param_hint="--sort")
    with _client() as client:
        found = client.entries(
            **_filters(name, recipe, owner, older_than, produced_by),
            is_pinned=True if pinned else None,
            sort=f"-{sort}",
        )
        shown = list(itertools.islice(found, limit or None))
        is_more = next(found, None) is not None
        listed = [one.to_json() for one in shown] if as_json else []
        emit(listed, as_json, lambda: cli_tables.entries(shown, is_more))


@app.command()
def show(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A key, or its first digits, as `prepcache ls` lists them.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show one entry and the recipe of its samples. `prepcache ls --name NAME` finds the keys of a name.

    Example: prepcache show 3f9a1c20d4e7
    """
    with _client() as client:
        entry = _entry(client, key)
        recipe = None
        with contextlib.suppress(NotFound):
            recipe = client.recipe(entry.recipe)
    parts = recipe.to_json()["parts"] if recipe else None
    emit({**entry.to_json(), "parts": parts}, as_json, lambda: cli_tables.entry(entry, recipe))


@app.command()
def explain(
    target: Annotated[
        str | None,
        typer.Argument(metavar="KEY|RECIPE", help="A key or a recipe's digest, or its first digits."),
    ] = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Show why a job missed.

    Shows what is new or changed of its data, code, config and environment, against the nearest recipe that
    has entries. With --name, of its last miss; without KEY, RECIPE or NAME, of the last miss of any job.

    Example: prepcache explain --name prep.tokenize
    """
    if target is not None and name is not None:
        raise typer.BadParameter("give KEY or RECIPE, or a name, not both", param_hint="--name")
    with _client() as client:
        given: dict[str, Any] = {"name": name}
        if target is not None:
            recipes = [{"recipe": str(one.digest)} for one in client.recipes(target.lower())]
            given = _only(target, [*recipes, *({"key": key} for key in _keys(client, target))])
        told = client.explain(**given)
    emit(cli_tables.explanation_json(told), as_json, lambda: cli_tables.explanation(told))


@app.command()
def purge(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Keys, or their first digits.")
    ] = None,
    name: Name = None,
    recipe: Recipe = None,
    owner: Owner = None,
    older_than: OlderThan = None,
    produced_by: ProducedBy = None,
    free: Free = None,
    everything: Annotated[bool, typer.Option("--all", help="All entries that you own.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the entries that pass every filter. Jobs that need them later preprocess their items again.

    It asks first. Without a terminal, --yes, --json or --dry-run is required.

    Example: prepcache purge --name "tokens*" --older-than 30d --dry-run
    """
    chosen = _filters(name, recipe, owner, older_than, produced_by)
    free_bytes = None if free is None else parse_size(free)
    if (bool(keys or free_bytes) or any(one is not None for one in chosen.values())) == everything:
        raise BadRequest("give keys, filters or --free, or --all alone")
    if keys and free_bytes:
        raise BadRequest("give keys or --free, not both")
    is_asking = not dry_run and not yes
    is_at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if is_asking and not is_at_terminal and not as_json:
        raise BadRequest("there is no terminal to ask at: add --yes or --json to remove, --dry-run to list")
    with _client() as client:
        given = [_entry(client, key).key for key in keys] if keys else None
        purge_them = functools.partial(
            client.purge, given, everything=everything, free_bytes=free_bytes, **chosen
        )
        if is_asking and is_at_terminal:
            would = purge_them(dry_run=True)
            if would.entries:
                typer.confirm(f"This removes {cli_tables.amount(would)}. Continue?", abort=True, err=True)
        gone = purge_them(dry_run=dry_run)
        emit(gone.to_json(), as_json, lambda: cli_tables.purged(gone, dry_run))


@app.command()
def pin(keys: Keys, as_json: AsJson = False) -> None:
    """Keep entries from being evicted.

    Example: prepcache pin 3f9a1c20d4e7
    """
    _set_pinned(keys, True, as_json)


@app.command()
def unpin(keys: Keys, as_json: AsJson = False) -> None:
    """Let entries be evicted again.

    Example: prepcache unpin 3f9a1c20d4e7
    """
    _set_pinned(keys, False, as_json)


@app.command()
def verify(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte and compare it with the digest. Damaged entries are removed; then the exit code is 1.

    Example: prepcache verify 3f9a1c20d4e7
    """
    with _client() as client, Console(stderr=True).status("reading every byte"):
        found = client.verify([_entry(client, key).key for key in keys] if keys else None)
    emit(found.to_json(), as_json, lambda: cli_tables.verified(found))
    if found.bad or found.unreadable:
        raise typer.Exit(1)


@app.command("key")
def show_key(
    target: Annotated[str, typer.Argument(metavar="FILE:FUNCTION", help="A source file and a name in it.")],
    as_json: AsJson = False,
) -> None:
    """Show the code part of a function's key. FILE is read, never run.

    Config, globals and closures count too; only the job knows their values.

    Example: prepcache key train.py:tokenize
    """
    file, _, function = target.rpartition(":")
    if not file or not function or not Path(file).is_file():
        must = "must be FILE:FUNCTION of a file that is there, such as train.py:tokenize"
        raise typer.BadParameter(must, param_hint=target)
    from prepcache.keys.recipes import static_key

    parts = static_key(file, function)
    emit(parts, as_json, lambda: cli_tables.parts(parts))


@tier.command("status")
def tier_status(as_json: AsJson = False) -> None:
    """Show the bucket, what was copied, and whether it answers.

    Example: prepcache tier status
    """
    with Client() as client:
        found = client.call(inspection.TierStatus, "GET", "/v1/tier")
    _told(found, as_json, *(f"{name:16}{text}" for name, text in status_text.tier(found)))


@tier.command()
def push(as_json: AsJson = False) -> None:
    """Copy the artifacts that the bucket lacks. New ones are copied automatically, unless that failed.

    Example: prepcache tier push
    """
    with Client() as client:
        done = client.call(inspection.TierDone, "POST", "/v1/tier/push", limit_s=waits.VERIFY_S)
    _told(done, as_json, f"copied {status_text.artifacts(done.artifacts)}")


@tier.command()
def pull(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's digest, 64 hex digits.")],
    as_json: AsJson = False,
) -> None:
    """Fetch all artifacts of one recipe from the bucket. Exit code 1 if some could not be fetched.

    Example: prepcache tier pull 58ee19b45572...
    """
    asked = inspection.TierPullRequest.from_json({"recipe": hex64(recipe, "RECIPE")})
    with Client() as client:
        done = client.call(inspection.TierDone, "POST", "/v1/tier/pull", asked, limit_s=waits.VERIFY_S)
    failed = f"; {status_text.artifacts(done.failed)} could not be fetched, see the daemon's log"
    fetched = f"fetched {status_text.artifacts(done.artifacts)}"
    _told(done, as_json, fetched + (failed if done.failed else ""))
    raise typer.Exit(1 if done.failed else 0)


@tier.command()
def gc(
    yes: Annotated[bool, typer.Option("--yes", help="Delete them.")] = False,
    as_json: AsJson = False,
) -> None:
    """List artifacts over a day old that no recipe in the bucket uses.

    With --yes, delete them.

    Example: prepcache tier gc --yes
    """
    asked = inspection.TierGarbageRequest(yes)
    with Client() as client:
        done = client.call(inspection.TierDone, "POST", "/v1/tier/gc", asked, limit_s=waits.VERIFY_S)
    left = f", {done.artifacts - len(done.names)} not listed here" if done.artifacts > len(done.names) else ""
    found = f"{'deleted' if yes else 'found'} {status_text.artifacts(done.artifacts)}"
    _told(done, as_json, *done.names, f"{found} that no recipe uses{left}")


def _told(message: Message, as_json: bool, *lines: str) -> None:
    emit(message.to_json(), as_json, lambda: typer.echo("\n".join(lines)))


def _client(*, is_starting: bool = True) -> Client:
    client = Client()
    if isinstance(own := client.endpoint, Launcher):
        if not is_starting and not own.is_listening:
            raise own.not_running()
        if own.has_store and not own.is_listening:
            typer.echo(f"prepcache: starting the daemon of {own.root}; it stops when idle", err=True)
    return client


def _set_pinned(keys: list[str], is_pinned: bool, as_json: bool) -> None:
    with _client() as client:
        found = [_entry(client, key) for key in keys]
        for one in found:
            (client.pin if is_pinned else client.unpin)(one.key)
    told = [one.to_json() | {"is_pinned": is_pinned} for one in found]
    emit(told, as_json, lambda: cli_tables.pinned(found, is_pinned))


def _filters(
    name: str | None, recipe: str | None, owner: str | None, older_than: str | None, produced_by: str | None
) -> Filters:
    return {
        "name": name,
        "recipe": recipe,
        "owner": None if owner is None else _uid(owner),
        "older_than_s": None if older_than is None else parse_span(older_than),
        "produced_by": produced_by,
    }


def _uid(owner: str) -> int:
    if owner.isdecimal():
        return int(owner)
    import pwd

    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError:
        raise typer.BadParameter(f"there is no user {owner!r}", param_hint="--owner") from None


def _entry(client: Client, digits: str) -> inspection.Entry:
    """The entry of the only key that begins so, with the inputs that it observed."""
    return client.entry(_only(digits, _keys(client, digits)))


def _keys(client: Client, digits: str) -> list[str]:
    """The keys that begin so, by an order that using them does not change; several users may have one."""
    found = client.entries(key=digits.lower(), sort="created_at")
    return list(dict.fromkeys(str(one.key) for one in itertools.islice(found, MOST_KEYS)))


def _only(digits: str, found: list[T]) -> T:
    """The one that was found. Raises NotFound or BadRequest."""
    if not found:
        ls = "`prepcache ls --name NAME` lists the keys of a name"
        raise NotFound(f"no key begins with {digits}: {ls}", key=digits)
    if len(found) > 1:
        raise BadRequest(f"{len(found)} keys or recipes begin with {digits}; give more digits", key=digits)
    return found[0]


def main() -> None:
    """Runs the command; whatever is raised becomes one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know few characters
    try:
        app(prog_name="prepcache")
    except PrepcacheError as error:
        _end(error.message, error.exit_code)
    except BrokenPipeError:
        # `prepcache ls | head`: nobody reads on. Python would complain when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - invariant 1; what it was is told
        _end(f"internal error, please report it: {type(error).__name__}: {error}", INTERNAL)


def _end(message: str, exit_code: int) -> None:
    typer.echo(f"prepcache: {message}", err=True)
    sys.exit(exit_code)
