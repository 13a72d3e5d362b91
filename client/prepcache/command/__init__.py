"""The `prepcache` command; here is what its parts have in common: `--json`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Prints a value as one JSON text, of characters that every encoding has."""
    typer.echo(json.dumps(value, indent=2))
