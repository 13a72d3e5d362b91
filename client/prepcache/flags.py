"""For both commands, whose help shows flags as flags: newer versions of typer write `--json <bool>`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


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
