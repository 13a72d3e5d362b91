"""`--json`, of the commands that have it, and what they print then."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Prints a value as one JSON text, of characters that every encoding has."""
    typer.echo(json.dumps(value, indent=2))
