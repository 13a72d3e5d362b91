"""`prepcache tier`: the bucket that this machine's daemon shares with those of other machines."""

from __future__ import annotations

from typing import Annotated

import typer

from prepcache.command.cli_tables import AsJson, emit
from prepcache.daemon import waits
from prepcache.daemon.client import Client
from prepcache.protocol import inspection, status_text
from prepcache.protocol.wire import Message

app = typer.Typer(
    rich_markup_mode=None,
    help="The bucket that daemons of several machines share.\n\nExample: prepcache tier status",
    no_args_is_help=True,
)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the bucket, what was copied from and to it, and whether it answers.

    Example: prepcache tier status
    """
    with Client() as client:
        found = client.call(inspection.TierStatus, "GET", "/v1/tier")
    _show(found, as_json, *(f"{name:16}{text}" for name, text in status_text.tier(found)))


@app.command()
def push(as_json: AsJson = False) -> None:
    """Copy the artifacts that the bucket lacks. Commits are copied automatically, unless that failed.

    Example: prepcache tier push
    """
    with Client() as client:
        done = client.call(inspection.TierDone, "POST", "/v1/tier/push", limit_s=waits.VERIFY_S)
    _show(done, as_json, f"copied {status_text.artifacts(done.artifacts)}")


@app.command()
def pull(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's digest, 64 hex digits.")],
    as_json: AsJson = False,
) -> None:
    """Fetch all artifacts of one recipe from the bucket. Exit code 1 if some could not be fetched.

    Example: prepcache tier pull 58ee19b45572...
    """
    asked = inspection.TierPullRequest.from_json({"recipe": recipe})
    with Client() as client:
        done = client.call(inspection.TierDone, "POST", "/v1/tier/pull", asked, limit_s=waits.VERIFY_S)
    failed = f"; {status_text.artifacts(done.failed)} could not be fetched, see the daemon's log"
    fetched = f"fetched {status_text.artifacts(done.artifacts)}"
    _show(done, as_json, fetched + (failed if done.failed else ""))
    raise typer.Exit(1 if done.failed else 0)


@app.command()
def gc(
    yes: Annotated[bool, typer.Option("--yes", help="Delete them.")] = False,
    as_json: AsJson = False,
) -> None:
    """List artifacts in the bucket that no manifest names and that are over a day old.

    With --yes, delete them.

    Example: prepcache tier gc --yes
    """
    asked = inspection.TierGarbageRequest(yes)
    with Client() as client:
        done = client.call(inspection.TierDone, "POST", "/v1/tier/gc", asked, limit_s=waits.VERIFY_S)
    left = f", {done.artifacts - len(done.names)} not listed here" if done.artifacts > len(done.names) else ""
    found = f"{'deleted' if yes else 'found'} {status_text.artifacts(done.artifacts)}"
    _show(done, as_json, *done.names, f"{found} that no manifest names{left}")


def _show(message: Message, as_json: bool, *lines: str) -> None:
    emit(message.to_json(), as_json, lambda: typer.echo("\n".join(lines)))
