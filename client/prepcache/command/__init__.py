"""The `prepcache` command; here is what its parts have in common: `--json`, and beginnings of keys."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from prepcache.errors import BadRequest

MIN_PREFIX_DIGITS = 4

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Prints a value as one JSON text, of characters that every encoding has."""
    typer.echo(json.dumps(value, indent=2))


def digits_of(text: str, what: str, otherwise: str = "") -> str:
    """The hex digits of a key or recipe, or the first of them.

    Args:
        what: the text is to be; otherwise: what to give instead.

    Raises:
        BadRequest: it is none.
    """
    digits = text.lower()
    if set(digits) - set("0123456789abcdef") or not MIN_PREFIX_DIGITS <= len(digits) <= 64:
        raise BadRequest(
            f"{text!r} is not {what}: give {MIN_PREFIX_DIGITS} to 64 hex digits{otherwise}", key=text
        )
    return digits
