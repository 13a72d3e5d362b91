"""`prepcache explain`: which recipe is meant, and how its explanation looks to people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.text import Text

from prepcache.command import cli_tables, digits_of
from prepcache.errors import BadRequest, NotFound
from prepcache.protocol import inspection
from prepcache.protocol.explain import COUNTS_FILES, cues
from prepcache.protocol.observed import draws_text
from prepcache.protocol.units import age_text, count_text, size_text, span_text

if TYPE_CHECKING:
    from prepcache.daemon.client import Client


def explained(client: Client, target: str | None, name: str | None) -> inspection.Explanation:
    """The daemon's explanation of a key or recipe, given whole or by its beginning, or of a last miss.

    Raises:
        NotFound: nothing begins so, or nothing missed.
        BadRequest: it is no key, or several begin so.
    """
    if target is None:
        return client.explain(name=name)
    digits = digits_of(target, "a key or recipe", ", or --name NAME")
    recipes = [one.digest for one in client.recipes(digits)]
    keys = [one.key for one in client.entries(key=digits, sort="created_at")]
    if len(recipes) + len(keys) > 1:
        raise BadRequest(f"{len(recipes) + len(keys)} keys and recipes begin with {digits}; give more digits")
    if recipes:
        return client.explain(recipes[0])
    if keys:
        return client.explain(key=keys[0])
    raise NotFound(f"no key or recipe begins with {digits}; `prepcache ls` lists the entries", key=target)


def explanation_json(told: inspection.Explanation) -> dict[str, Any]:
    """The explanation for programs, with its rows by cue."""
    rows = [{"cue": one.name, "state": one.state, "lines": list(one.lines)} for one in cues(told)]
    return {**told.to_json(), "cues": rows}


def show(told: inspection.Explanation) -> None:
    """The recipe, the nearest one, and a row for each cue; nothing is cut off."""
    near = told.nearest
    rows = {"name": told.name}
    if told.recipe is not None:
        rows["recipe"] = told.recipe
    rows["entries"] = f"{told.entries:,}"
    rows["why"] = told.summary
    if any(one.section == "file" for one in told.differences):
        rows["hint"] = COUNTS_FILES
    if near is not None:
        rows["nearest"] = (
            f"{near.recipe[: cli_tables.KEY_DIGITS]}: {count_text(near.items, 'item', 'items')}, "
            f"size {size_text(near.size_bytes)}, cost {span_text(near.cost_s)}, "
            f"used {age_text(near.used_at, time.time())}"
        )
    if told.draws:
        rows["random"] = draws_text(told.draws)
    cli_tables.fields(rows)
    lines = []
    for one in cues(told):
        first, *others = one.lines or [""]
        lines += [[one.name, one.state, first], *(["", "", other] for other in others)]
    cli_tables.show("", cli_tables.table(["CUE", "STATE", "WHAT"], lines))
    if told.more:
        cli_tables.show(Text(f"and {told.more:,} more", style="dim"))
