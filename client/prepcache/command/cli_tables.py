"""What the `prepcache` command shows to people: tables and short lists. Programs get `--json` instead.

Text that came from the daemon or a store is shown as text: rich markup in a recipe's name is not obeyed,
and control characters were refused when it was read (members.py).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from prepcache import __version__
from prepcache.command.cli_names import user_name
from prepcache.protocol import inspection
from prepcache.protocol.observed import RANDOM, draws_in, draws_text
from prepcache.protocol.status_text import doing, helping, kept_back, room, warnings
from prepcache.protocol.units import age_text, count_text, middle_cut, size_text, span_text

INPUTS_SHOWN = 20
"""Of the inputs of each kind that an entry observed; there may be a hundred thousand."""
KEY_DIGITS = 12
"""Enough to tell entries apart; commands take any such beginning."""
GAP = 2


def console() -> Console:
    """Standard output; nothing is wrapped or cut by it."""
    return Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        is_right: numbers stand below each other.
        least: characters to which its texts may be shortened, in the middle; 0: never.
        is_spare: left out, in order, where a terminal is too narrow for all.
    """

    name: str
    is_right: bool = False
    least: int = 0
    is_spare: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows below their headings."""
    for line in _table_lines(columns, rows):
        console().print(line)


def _table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Text]:
    """Rows below their headings; on a terminal each fits into one line.

    A column in which no row has anything is left out.
    """
    out, shown = console(), []
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    widths = [max(len(row[i]) for row in [[c.name for c in columns], *rows]) for i in range(len(columns))]
    if out.is_terminal:
        least = [min(width, one.least or width) for width, one in zip(widths, columns, strict=True)]
        while _total(least, kept) > out.width and any(columns[i].is_spare for i in kept):
            kept.remove(min(i for i in kept if columns[i].is_spare))
        for i in kept:
            widths[i] = max(least[i], widths[i] - max(0, _total(widths, kept) - out.width))
    lines = [[one.name for one in columns], *rows]
    for number, line in enumerate(lines):
        cells = [_cell(middle_cut(line[i], widths[i]), widths[i], columns[i].is_right) for i in kept]
        shown.append(Text((" " * GAP).join(cells).rstrip(), style="bold" if number == 0 else ""))
    return shown


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + GAP * (len(kept) - 1)


def _cell(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - len(text))
    return space + text if is_right else text + space


_ENTRIES = (
    Column("KEY"),
    Column("NAME", least=14),
    Column("WITH", least=14),
    Column("OWNER", is_spare=True),
    Column("ITEMS", is_right=True),
    Column("SIZE", is_right=True),
    Column("COST", is_right=True, is_spare=True),
    Column("USED", is_right=True),
    Column("KEPT", is_spare=True),
)
_NAMES = (
    Column("NAME", least=14),
    Column("ENTRIES", is_right=True),
    Column("ITEMS", is_right=True),
    Column("SIZE", is_right=True),
    Column("COST", is_right=True, is_spare=True),
    Column("USED", is_right=True),
)
NAMES_SHOWN = 5
_SESSIONS = (
    Column("JOB", least=16),
    Column("PID", is_right=True),
    Column("HOST", least=8),
    Column("SINCE", is_right=True),
    Column("HOLDS", is_right=True, is_spare=True),
    Column("DOING", least=24),
)


def entries(found: Sequence[inspection.Entry], more: bool, apart: Mapping[str, str] | None = None) -> None:
    """A row for each entry, and the sum.

    Args:
        apart: what recipes have that others of their name do not have, by their digests.
    """
    rows_of(found, apart)
    size_bytes = sum(one.size_bytes for one in found)
    total = f"{count_text(len(found), 'entry', 'entries')}, {size_text(size_bytes)}"
    console().print(Text(f"{total}; there are more: --limit 0 shows all" if more else total, style="dim"))


def rows_of(found: Sequence[inspection.Entry], apart: Mapping[str, str] | None = None) -> None:
    """A row for each entry, with its owner where not all are this user's or the token's; as `entries`."""
    now = time.time()
    is_owner_told = {one.owner for one in found} not in ({os.getuid()}, {None})
    rows = [
        [
            one.key[:KEY_DIGITS],
            one.name,
            (apart or {}).get(one.recipe, ""),
            user_name(one.owner) if is_owner_told else "",
            f"{one.items:,}",
            size_text(one.size_bytes),
            span_text(one.cost_s),
            age_text(one.used_at, now),
            _kept(one),
        ]
        for one in found
    ]
    if rows:
        table(_ENTRIES, rows)


def _kept(one: inspection.Entry) -> str:
    """Why an entry is not evicted."""
    return ", ".join(["pinned"] * one.is_pinned + [f"held by {one.holds}"] * bool(one.holds))


def entry(one: inspection.Entry, recipe: inspection.Recipe | None) -> None:
    """One entry and what it was made by."""
    now = time.time()
    rows = {
        "key": one.key,
        "name": one.name,
        "owner": user_name(one.owner),
        "items": f"{one.items:,} ({one.rows:,} samples)",
        "size": f"{size_text(one.size_bytes)} ({one.size_bytes:,} bytes)",
        "cost": f"{span_text(one.cost_s)} of preprocessing",
        "used": age_text(one.used_at, now),
        "made": age_text(one.created_at, now),
        "kept": _kept(one) or "until it is the least recently used",
        "recipe": one.recipe,
        "digest": one.digest,
    }
    rows |= {f"producer {name}": _value(value) for name, value in one.producer.items() if name != "at"}
    rows |= _observed(one.observed)
    fields(rows)
    if recipe is not None and recipe.parts:
        console().print()
        parts(recipe.parts)


def _observed(inputs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Some names of each kind, in one field."""
    names: dict[str, list[str]] = {}
    rows = list(inputs)
    random = {"random": draws_text(drawn)} if (drawn := draws_in(rows)) else {}
    for one in rows:
        if one.get("kind") == RANDOM:
            continue
        names.setdefault(f"observed {one.get('kind', '')}", []).append(_value(one.get("name", one)))
    more = {kind: len(some) - INPUTS_SHOWN for kind, some in names.items()}
    return random | {
        kind: ", ".join(some[:INPUTS_SHOWN]) + (f" and {more[kind]:,} more" if more[kind] > 0 else "")
        for kind, some in names.items()
    }


def parts(of: Mapping[str, Any]) -> None:
    """The readable parts of a recipe or a static key."""
    fields(dict(_flat("", of)))


def fields(rows: Mapping[str, str]) -> None:
    """Prints names and values, one a line; nothing is cut off."""
    for line in _field_lines(rows):
        console().print(line)


def _field_lines(rows: Mapping[str, str]) -> list[Text]:
    width = max((len(name) for name in rows), default=0)
    return [Text.assemble((f"{name:<{width}}", "bold"), "  ", value) for name, value in rows.items()]


def _flat(path: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), inner)
    else:
        yield path, _value(value)


def _value(value: Any) -> str:
    line = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return "".join(c if c.isprintable() else "?" for c in line)


_RESTART = "run `prepcached stop` or restart the service to use it"
_REBUILT = "rebuilt when the daemon started, because it was damaged: pins are lost (see the daemon's log)"
_ISOLATED = "by user: each user sees only his own entries; admins and trusted users see all"


@dataclass(frozen=True, slots=True)
class Status:
    """What a daemon says of itself."""

    info: inspection.Info
    stats: Mapping[str, Any]
    sessions: Sequence[inspection.SessionSeen]
    url: str
    names: inspection.Names
    miss: inspection.Explanation | None


def status_json(look: Status) -> dict[str, Any]:
    """The same for programs."""
    return {
        "url": look.url,
        "info": look.info.to_json(),
        "stats": dict(look.stats),
        "names": look.names.to_json(),
        "miss": None if look.miss is None else look.miss.to_json(),
        "sessions": [one.to_json() for one in look.sessions],
    }


def status(look: Status) -> None:
    """Prints the answers to the questions that people have, and who is connected."""
    for line in status_lines(look):
        console().print(line)


def status_lines(look: Status) -> list[Text]:
    """The daemon, then the answers to the questions that people have."""
    sections = (
        ("What is cached?", _cached(look)),
        ("Is it helping?", [Text(helping(look.stats))]),
        ("Why did the last job miss?", [Text(_last_miss(look.miss))]),
        ("How do I free 50 GB?", [Text(line) for line in _freeing(look.stats)]),
        ("Who is connected?", _connected(look.sessions)),
    )
    lines = [Text(line) for line in _daemon(look)]
    for question, answer in sections:
        lines += [Text(), Text(question, style="bold"), *answer]
    return lines


def _daemon(look: Status) -> list[str]:
    info, stats = look.info, look.stats
    up = span_text(stats.get("uptime_s", 0.0))
    lines = [
        f"prepcached {info.version}, pid {info.pid}, up {up}, at {look.url}",
        f"root {_value(info.root)}",
    ]
    if info.version != __version__:
        lines.append(f"installed: {__version__}; {_RESTART}")
    if info.isolation == "user":
        lines.append(f"isolation {_ISOLATED}")
    return lines


def _cached(look: Status) -> list[Text]:
    stats, now = look.stats, time.time()
    rows = [
        [
            one.name,
            f"{one.entries:,}",
            f"{one.items:,}",
            size_text(one.size_bytes),
            span_text(one.cost_s),
            age_text(one.used_at, now),
        ]
        for one in look.names.names
    ]
    entries = count_text(stats.get("entries", 0), "entry", "entries")
    lines = [Text(f"{entries}, {room(stats)}")]
    lines += [Text(line) for line in warnings(stats)]
    if "damaged index" in stats.get("recovered", {}):
        lines.append(Text(f"index {_REBUILT}"))
    lines += _table_lines(_NAMES, rows) if rows else []
    if look.names.more:
        lines.append(Text(f"and {count_text(look.names.more, 'more name', 'more names')}", style="dim"))
    return lines


def _last_miss(miss: inspection.Explanation | None) -> str:
    if miss is None:
        return "no job has missed since the daemon started"
    return f"{_value(miss.name)}: {_value(miss.summary)}"


def _freeing(stats: Mapping[str, Any]) -> list[str]:
    coldest_s = stats.get("coldest_age_s")
    coldest = "" if coldest_s is None else f"; the coldest was used {span_text(coldest_s)} ago"
    return [f"prepcache purge --free 50GB --dry-run{coldest}", kept_back(stats)]


def _connected(sessions: Sequence[inspection.SessionSeen]) -> list[Text]:
    if not sessions:
        return [Text("nobody", style="dim")]
    now = time.time()
    jobs = [
        [one.name, str(one.pid), one.host, age_text(one.opened_at, now), f"{one.holds:,}", doing(one)]
        for one in sessions
    ]
    return _table_lines(_SESSIONS, jobs)
