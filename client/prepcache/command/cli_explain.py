"""`prepcache explain`: which recipe is meant, and how its explanation looks to people."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from prepcache.command import cli_names, cli_tables
from prepcache.errors import BadRequest, NotFound
from prepcache.protocol import inspection
from prepcache.protocol.observed import draws_text
from prepcache.protocol.units import age_text, count_text, size_text, span_text

if TYPE_CHECKING:
    from prepcache.daemon.client import Client

MIN_PREFIX_DIGITS = 4
_HEADINGS = {
    "config": "config",
    "definition": "code",
    "file": "code",
    "value": "values that the code reads",
    "variable": "environment variables",
    "distribution": "installed distributions",
    "setting": "settings",
}


def explained(client: Client, target: str | None, name: str | None) -> inspection.Explanation:
    """The daemon's explanation of a key or recipe, given whole or by its beginning, or of a last miss.

    Raises:
        NotFound: nothing begins so, or nothing missed.
        BadRequest: it is no key, or several begin so.
    """
    if target is None:
        try:
            return client.explain(name=name)
        except NotFound as error:
            line = "" if name is None else cli_names.hint(name, {one.name for one in client.recipes()})
            raise NotFound(line or error.message, name=name) from None
    digits = target.lower()
    if set(digits) - set("0123456789abcdef") or not MIN_PREFIX_DIGITS <= len(digits) <= 64:
        raise BadRequest(
            f"{target!r} is no key or recipe: these have {MIN_PREFIX_DIGITS} to 64 hex digits; "
            "--name explains the last miss of a name"
        )
    recipes = _beginning_with(digits, (one.digest for one in client.recipes()))
    keys = _beginning_with(digits, (one.key for one in client.entries()))
    if len(recipes) + len(keys) > 1:
        raise BadRequest(f"{len(recipes) + len(keys)} keys and recipes begin with {digits}; give more digits")
    if recipes:
        return client.explain(recipes[0])
    if keys:
        return client.explain(key=keys[0])
    raise NotFound(f"no key or recipe begins with {digits}; `prepcache ls` shows the entries", key=target)


def _beginning_with(digits: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(digits)]


def show(told: inspection.Explanation) -> None:
    """What differs, section by section; nothing is cut off."""
    near = told.nearest
    now = time.time()
    rows = {"name": told.name}
    if told.recipe is not None:
        rows["recipe"] = told.recipe
    rows["entries now"] = f"{told.entries:,}"
    if near is not None:
        rows["nearest"] = f"{near.name} {near.recipe[: cli_tables.KEY_DIGITS]}"
        rows["it had"] = (
            f"{count_text(near.items, 'item', 'items')}, {size_text(near.size_bytes)}, "
            f"{span_text(near.cost_s)} of work, used {age_text(near.used_at, now)}"
        )
    if told.was_there or near is None:
        rows["why"] = told.summary
    if told.draws:
        rows["random"] = draws_text(told.draws)
    cli_tables.fields(rows)
    out = cli_tables.console()
    heading = None
    for one in told.differences:
        section = _HEADINGS.get(one.section, one.section)
        if section != heading:
            out.print()
            out.print(Text(section, style="bold"))
            heading = section
        out.print(Text(f"  {one.line}"), soft_wrap=True)
    if told.more:
        out.print(Text(f"  and {told.more:,} more", style="dim"))
    if told.is_unreached_only:
        out.print()
        out.print(
            Text('Only lines changed that the function does not reach: code="function" would have hit.'),
            soft_wrap=True,
        )
    if told.earlier:
        out.print()
        out.print(Text("the same job missed before", style="bold"))
    for miss in told.earlier:
        out.print(
            Text(f"  {miss.name} {miss.recipe[: cli_tables.KEY_DIGITS]}: {miss.summary}"), soft_wrap=True
        )
