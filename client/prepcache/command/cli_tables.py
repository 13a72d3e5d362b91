"""What the `prepcache` command shows to people: tables and short lists. Programs get `--json` instead.

Text that came from the daemon or a store is shown as text: rich markup in a recipe's name is not obeyed,
and control characters were refused when it was read (members.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prepcache.protocol import wire
from prepcache.protocol.units import age_text, count_text, size_text, span_text

KEY_DIGITS = 12
"""Enough to tell entries apart; commands take any such beginning."""
PIPE_WIDTH = 160
"""Where no terminal tells its width, a table is not squeezed into 80 columns."""


def console() -> Console:
    """Standard output; full rows where nobody wraps them."""
    shown = Console(highlight=False, soft_wrap=False)
    return shown if shown.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=True, overflow="ellipsis"
        )
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))


def entries(found: Sequence[wire.Entry], more: bool) -> None:
    """A row each, and the sum."""
    now = time.time()
    table = _table(
        "KEY", "NAME", "ITEMS", "SIZE", "COST", "USED", "KEPT", right=("ITEMS", "SIZE", "COST", "USED")
    )
    for one in found:
        kept = ", ".join(["pinned"] * one.is_pinned + [f"held by {one.holds}"] * bool(one.holds))
        _row(
            table,
            one.key[:KEY_DIGITS],
            one.name,
            f"{one.items:,}",
            size_text(one.size_bytes),
            span_text(one.cost_s),
            age_text(one.used_at, now),
            kept,
        )
    shown = console()
    if found:
        shown.print(table)
    size_bytes = sum(one.size_bytes for one in found)
    total = f"{count_text(len(found), 'entry', 'entries')}, {size_text(size_bytes)}"
    shown.print(Text(f"{total}; there are more: --limit 0 shows all" if more else total, style="dim"))


def entry(one: wire.Entry, recipe: wire.Recipe | None) -> None:
    """One entry and what it was made by."""
    now = time.time()
    rows = {
        "key": one.key,
        "digest": one.digest,
        "name": one.name,
        "recipe": one.recipe,
        "items": f"{one.items:,} ({one.rows:,} samples)",
        "size": f"{size_text(one.size_bytes)} ({one.size_bytes:,} bytes)",
        "cost": f"{span_text(one.cost_s)} of preprocessing",
        "owner": "a holder of the TCP token" if one.owner is None else f"uid {one.owner}",
        "made": age_text(one.created_at, now),
        "used": age_text(one.used_at, now),
        "pinned": "yes" if one.is_pinned else "no",
        "held by": count_text(one.holds, "session", "sessions"),
    }
    rows |= {f"producer {name}": _value(value) for name, value in one.producer.items() if name != "at"}
    rows |= {f"observed {o.get('kind', '')}": _value(o.get("name", o)) for o in one.observed}
    fields(rows)
    if recipe is not None and recipe.parts:
        console().print()
        parts(recipe.parts)


def parts(of: Mapping[str, Any]) -> None:
    """The readable parts of a recipe or a static key."""
    fields(dict(_flat("", of)))


def fields(rows: Mapping[str, str]) -> None:
    """Names and values, one a line; nothing is cut off."""
    width = max((len(name) for name in rows), default=0)
    shown = console()
    for name, value in rows.items():
        shown.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", value), soft_wrap=True)


def _flat(path: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), inner)
    else:
        yield path, _value(value)


def _value(value: Any) -> str:
    line = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return "".join(c if c.isprintable() else "?" for c in line)


def status(info: wire.Info, stats: Mapping[str, Any], sessions: Sequence[wire.SessionSeen], url: str) -> None:
    """The daemon, its store, and who is connected."""
    limit = stats.get("effective_limit_bytes") or stats.get("max_bytes") or 0
    disk = stats.get("disk_bytes", 0)
    share = f" ({100 * disk / limit:.0f} % of {size_text(limit)})" if limit else ""
    rows = {
        "daemon": f"{info.version} at {url} (pid {info.pid}, protocol {info.protocol})",
        "up for": span_text(stats.get("uptime_s", 0.0)),
        "root": info.root,
        "entries": f"{stats.get('entries', 0):,}",
        "on disk": size_text(disk) + share,
        "pinned, held": f"{size_text(stats.get('pinned_bytes', 0))}, {size_text(stats.get('held_bytes', 0))}",
        "work kept": f"{span_text(stats.get('cost_s', 0.0))} of preprocessing",
        "time saved": f"{span_text(stats.get('seconds_saved', 0.0))} since the daemon started",
        "evicted": f"{stats.get('evictions', 0):,} entries, {size_text(stats.get('evicted_bytes', 0))}",
        "declined": f"{stats.get('declined', 0):,} writes",
    }
    coldest_s = stats.get("coldest_age_s")
    if coldest_s is not None:
        rows["coldest entry"] = f"unused for {span_text(coldest_s)}"
    if stats.get("quarantined"):
        rows["damaged"] = f"{stats['quarantined']:,} entries in quarantine"
    fields(rows)
    shown = console()
    shown.print()
    if not sessions:
        shown.print(Text("nobody is connected", style="dim"))
        return
    table = _table("JOB", "PID", "HOST", "SINCE", "HOLDS", "DOING", right=("PID", "SINCE", "HOLDS"))
    now = time.time()
    for one in sessions:
        doing = ", ".join(f"{p.name} {p.done:,}/{p.total:,}" for p in one.progress) or "reading"
        since = age_text(one.opened_at, now)
        _row(table, one.name, str(one.pid), one.host, since, f"{one.holds:,}", doing)
    shown.print(table)
