"""For both commands: flags in the help are flags, where newer versions of typer write `--json <bool>`, and a
terminal that knows few characters ends neither."""

from __future__ import annotations

import io
import sys
from typing import Any

from typer.core import TyperCommand, TyperGroup


def escape_unknown_characters() -> None:
    """Standard output shows what its encoding lacks, as ASCII lacks an umlaut, by an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class Command(TyperCommand):
    """A command, for `@app.command(cls=Command)`."""

    def get_params(self, ctx: Any) -> Any:
        return _without_values(super().get_params(ctx))


class Group(TyperGroup):
    """The commands of an app, for `typer.Typer(cls=Group)`."""

    def get_params(self, ctx: Any) -> Any:
        return _without_values(super().get_params(ctx))


def _without_values(params: Any) -> Any:
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return params
