"""What the dashboard shows, collected for its templates.

Invariants:
    1. Each table is bounded; how many rows there are beyond is said.
    2. Whatever came from a stranger (names of recipes, jobs and hosts) is escaped by the templates, and shown
       without characters that cannot be printed or that turn the text around it (`printable`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from prepcache.protocol import inspection, status_text
from prepcache.protocol.units import age_text, count_text, size_text, span_text
from prepcached.auth import Caller
from prepcached.dashboard.history import HEIGHT, WIDTH, History, Sample
from prepcached.misses import Miss
from prepcached.store.records import Entry, NameSums

MAX_SESSIONS = 30
MAX_NAMES = 40
MAX_ENTRIES = 20
MAX_MISSES = 10
MAX_USERS = 20
MAX_CHARS = 160
"""Of one text; a recipe's name may be longer."""
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
HOUR_S, DAY_S = 3600.0, 86400.0


def printable(text: str) -> str:
    """A text of bounded length in which every character can be printed."""
    cut = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in cut)


def _finalize(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _whole(text: str) -> Markup:
    """Exactly this text: for links and form fields."""
    return Markup(escape(text))


def _full(text: str) -> Markup:
    """Every character that can be printed, however many there are."""
    return Markup(escape("".join(c if c.isprintable() or c == "\n" else "?" for c in text)))


def _schema(value: Any) -> Markup:
    return Markup(escape(json.dumps(value, indent=2, ensure_ascii=False)))


def environment() -> jinja2.Environment:
    """Jinja with autoescape; every text that is shown passes `printable`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
    )
    made.filters |= {"size": size_text, "span": span_text, "age": age_text, "count": count_text}
    made.filters |= {
        "whole": _whole,
        "full": _full,
        "schema": _schema,
        "capfirst": lambda text: text[:1].upper() + text[1:],
    }
    made.globals |= {
        "status_text": status_text,
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "refresh_s": REFRESH_S,
    }
    return made


@dataclass(frozen=True, slots=True)
class View:
    """Everything on the page.

    Args:
        stats: as GET /v1/stats answers.
        sessions, names, entries: those to be listed, of so many.
        users: names of uids, where they have one.
        shares: of the room, by name, in percent of the limit.
        now: as a sample; its time is that of the page.
        tier: what came from and went into the shared bucket, where there is one.
        token: protects the page's links with an effect from other sites.
    """

    info: inspection.Info
    host: str
    stats: Mapping[str, Any]
    sessions: Sequence[inspection.SessionSeen]
    connected: int
    names: Sequence[NameSums]
    named: int
    sort: str
    entries: Sequence[Entry]
    has_more_entries: bool
    search: str
    misses: Sequence[Miss]
    users: Mapping[int, str]
    caller: Caller
    history: History
    sample: Sample
    tier: Sequence[tuple[str, str]] = ()

    @property
    def now(self) -> float:
        return self.sample.at

    @property
    def hit_percent(self) -> float | None:
        """Items that jobs found, of all that they asked for; None before the first."""
        return status_text.hit_percent(self.stats)

    @property
    def quotas(self) -> Sequence[Mapping[str, Any]]:
        """What the largest users take, where somebody has a quota."""
        users = self.stats["users"][:MAX_USERS]
        return users if any(one["quota_bytes"] is not None for one in users) else ()

    @property
    def shares(self) -> Iterable[tuple[str, float]]:
        """The largest names and their shares of the room, in percent; then what is left of what is used."""
        limit = max(1, self.stats["effective_limit_bytes"])
        largest = sorted(self.names, key=lambda one: one.size_bytes, reverse=True)[:6]
        shown = [(one.name, 100 * one.size_bytes / limit) for one in largest]
        rest = 100 * self.stats["disk_bytes"] / limit - sum(share for _, share in shown)
        return [*shown, ("other", max(0.0, rest))]

    @property
    def charts(self) -> Sequence[tuple[str, str, Any]]:
        """(title, value at the peak, chart)"""
        made = []
        for label, span_s, buckets in (("last hour", HOUR_S, 60), ("last day", DAY_S, 96)):
            rate = self.history.hit_rate(self.sample, span_s, buckets)
            saved = self.history.saved(self.sample, span_s, buckets)
            disk = self.history.disk(self.sample, span_s, buckets)
            made += [
                (f"hit rate, {label}", _peak(rate.peak, lambda one: f"{100 * one:.0f} %"), rate),
                (f"time saved, {label}", _peak(saved.peak, span_text), saved),
                (f"on disk, {label}", _peak(disk.peak, size_text), disk),
            ]
        return made

    def user(self, uid: int | None) -> str:
        return "by token" if uid is None or uid < 0 else self.users.get(uid, f"uid {uid}")

    def may_change(self, owner: int) -> bool:
        return self.caller.is_admin or owner == self.caller.owner_uid


def _peak(value: float | None, told: Any) -> str:
    return "nothing yet" if value is None else f"up to {told(value)}"


def sorted_names(names: Iterable[NameSums], sort: str) -> list[NameSums]:
    """By a column of the table, largest first, names from A on."""
    found = sorted(names, key=lambda one: one.name)
    if sort != "name":
        found.sort(key=lambda one: getattr(one, SORTS[sort]), reverse=True)
    return found
