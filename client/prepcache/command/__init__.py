"""The `prepcache` command; here is what its parts have in common: `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def emit(value: Any, as_json: bool, show: Callable[[], None]) -> None:
    """Prints a value as one JSON text, of characters that every encoding has, or shows it to people."""
    if as_json:
        typer.echo(json.dumps(value, indent=2))
    else:
        show()
