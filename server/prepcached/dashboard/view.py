"""The templates of the dashboard, and what they need to be computed.

Invariants:
    1. Each table is bounded; how many rows there are beyond is said.
    2. Whatever came from a stranger (names of recipes, jobs and hosts) is escaped by the templates, and shown
       without characters that cannot be printed or that turn the text around it (`printable`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from prepcache.protocol import status_text
from prepcache.protocol.inspection import NameSums
from prepcache.protocol.units import age_text, count_text, size_text, span_text
from prepcached.dashboard.history import HEIGHT, WIDTH, Chart, History, Sample

MAX_SESSIONS = 30
MAX_NAMES = 40
MAX_ENTRIES = 20
MAX_MISSES = 10
MAX_USERS = 20
REFRESH_S = 10
"""Where scripts are off; else the page follows every second (dashboard.js)."""
SORTS: Mapping[str, str] = {
    "name": "name",
    "recipes": "recipes",
    "entries": "entries",
    "items": "items",
    "size": "size_bytes",
    "work": "cost_s",
    "used": "used_at",
}
"""Columns of the room by name, and the members that they sort by."""
SPANS = (("last hour", 3600.0, 60), ("last day", 86400.0, 96))
"""Of the charts: name, seconds, bars."""


def printable(value: Any) -> Any:
    """A text in which every character can be printed; what is no text, or safe already, as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in value)


def environment() -> jinja2.Environment:
    """Jinja with autoescape; every text that is shown passes `printable`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=printable,
    )
    made.filters |= {"size": size_text, "span": span_text, "age": age_text, "count": count_text}
    made.filters |= {
        "whole": lambda text: Markup(escape(text)),  # exactly this text: for form fields
        "schema": lambda value: Markup(escape(json.dumps(value, indent=2, ensure_ascii=False))),
        "capfirst": lambda text: text[:1].upper() + text[1:],
    }
    made.globals |= {
        "status_text": status_text,
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "refresh_s": REFRESH_S,
    }
    return made


def shares(names: Iterable[NameSums], stats: Mapping[str, Any]) -> Sequence[tuple[str, float]]:
    """The largest names and their shares of the room, in percent; then what is left of what is used."""
    limit = max(1, stats["effective_limit_bytes"])
    largest = sorted(names, key=lambda one: one.size_bytes, reverse=True)[:6]
    shown = [(one.name, 100 * one.size_bytes / limit) for one in largest]
    rest = 100 * stats["disk_bytes"] / limit - sum(share for _, share in shown)
    return [*shown, ("other", max(0.0, rest))]


def charts(history: History, now: Sample) -> Sequence[tuple[str, str, Chart]]:
    """(title, value at the peak, chart)"""
    kinds: Sequence[tuple[str, Callable[..., Chart], Callable[[float], str]]] = (
        ("hit rate", history.hit_rate, lambda one: f"{100 * one:.0f} %"),
        ("time saved", history.saved, span_text),
        ("on disk", history.disk, size_text),
    )
    made = []
    for label, span_s, bars in SPANS:
        for kind, draw, told in kinds:
            chart = draw(now, span_s, bars)
            peak = "nothing yet" if chart.peak is None else f"up to {told(chart.peak)}"
            made.append((f"{kind}, {label}", peak, chart))
    return made


def sorted_names(names: Iterable[NameSums], sort: str) -> list[NameSums]:
    """By a column of the table, largest first, names from A on."""
    found = sorted(names, key=lambda one: one.name)
    if sort != "name":
        found.sort(key=lambda one: getattr(one, SORTS[sort]), reverse=True)
    return found
