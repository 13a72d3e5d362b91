"""The page for people: how full the store is, who is connected and how far, what is kept; as HTML.

Invariants:
    1. It is whole in itself: no script, and nothing is loaded from elsewhere (`HEADERS` forbids it).
    2. Whatever came from a stranger (names of recipes, jobs and hosts) is escaped, and without characters
       that cannot be printed or that turn the text around it (`_text`).
    3. It changes nothing: no form, no link with an effect. A purge is a command. All that it asks for is
       itself, again every `REFRESH_S`; a browser stays where it was scrolled to, as the address is the same.
    4. It is bounded: `MAX_ROWS` of each table, and how many there are beyond.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from prepcache.protocol import fullness, inspection
from prepcache.protocol.units import age_text, count_text, size_text, span_text
from prepcached.store.records import NameSums

MAX_ROWS = 100
REFRESH_S = 10
MAX_CHARS = 200
"""Of one text; a recipe's name may be longer."""
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_ENDPOINTS = ("/v1/stats", "/v1/sessions", "/v1/entries", "/v1/recipes", "/v1/info", "/metrics", "/docs")
_STYLE = """
:root{color-scheme:light dark;--text:#1c2330;--dim:#586173;--line:#d5dae3;--back:#fff;--box:#f3f5f9}
:root{--used:#2f6fb7;--held:#173f70;--warn:#9a4b00}
@media(prefers-color-scheme:dark){:root{--text:#d8dee9;--dim:#98a2b3;--line:#323b4a;--back:#12161d}
:root{--box:#1b212b;--used:#4d8fd9;--held:#a9cdf5;--warn:#f0a35e}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:1.5rem auto;padding:0 1rem}
body{color:var(--text);background:var(--back)}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}p{margin:.4rem 0}
.dim,caption{color:var(--dim)}.warn{color:var(--warn);font-weight:600}
code{font:13px/1.45 ui-monospace,monospace;background:var(--box);padding:.1rem .3rem;overflow-wrap:anywhere}
a{color:inherit}nav a{margin-right:1rem;white-space:nowrap}
.bar{height:1rem;background:var(--box);border:1px solid var(--line);border-radius:4px;margin:.6rem 0}
.bar i{display:block;height:100%;background:var(--used);border-radius:3px}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;vertical-align:-.05rem}
.key,.bar i i{background:var(--held)}
.row .bar{height:.5rem;margin:.2rem 0 .4rem;max-width:16rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.6rem 1.5rem;margin:.8rem 0}
dt{color:var(--dim);font-size:.85rem}dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}caption{text-align:left;caption-side:bottom;padding:.4rem 0}
th,td{text-align:left;padding:.35rem 1.8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th:last-child,td:last-child{padding-right:0}.whole{white-space:nowrap}
td{overflow-wrap:anywhere}th{font-weight:600;font-size:.85rem;color:var(--dim)}
td:first-child{min-width:8rem}td.t{min-width:5.5rem}
th.n,td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
@media(max-width:40rem){thead{display:none}tbody,tr,td,caption{display:block}
table{display:flex;flex-direction:column}caption{order:1}
tr{border-bottom:1px solid var(--line);padding:.5rem 0}td,td.n{border:0;padding:.05rem 0;text-align:left}
td.n,td.t{display:inline-block;margin-right:1rem}td[data-n]:before{content:attr(data-n) " ";color:var(--dim)}}
"""


@dataclass(frozen=True, slots=True)
class View:
    """What the page shows.

    Args:
        stats: as GET /v1/stats answers.
        sessions: those to be listed, of `connected` in all.
        names: the names to be listed, and one more where there are more.
        users: names of uids, where they have one.
        now: seconds since the epoch.
    """

    info: inspection.Info
    host: str
    stats: Mapping[str, Any]
    sessions: Sequence[inspection.SessionSeen]
    connected: int
    names: Sequence[NameSums]
    users: Mapping[int, str]
    now: float


def page(view: View) -> str:
    """The page as HTML."""
    title = f"prepcache on {_text(view.host)}"
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(view.now))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>' + title + "</title>"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        f"<style>{_STYLE}</style><h1>{title}</h1>"
        f'<p class="dim">prepcached {_text(view.info.version)}, pid {view.info.pid}, up for '
        f"{span_text(view.stats['uptime_s'])}, root <code>{_text(view.info.root)}</code>; "
        f'as of <span class="whole">{since}</span>, '
        f"anew every {REFRESH_S} s</p>"
        f"{_room(view.stats)}{_sessions(view)}{_names(view)}{_counters(view.stats)}{_more()}</html>"
    )


def _room(stats: Mapping[str, Any]) -> str:
    limit, used = stats["effective_limit_bytes"], stats["disk_bytes"]
    fixed = fullness.fixed_bytes(stats)
    told = fullness.room(stats)
    warnings = "".join(
        f'<p class="warn">{_text(name.capitalize())}: {_text(told.pop(name))}</p>'
        for name in ("saturated", "full")
        if name in told
    )
    told["entries"] = f"{stats['entries']:,}"
    told["pinned, held"] = fullness.kept_back(stats)
    told["work kept"] = f"{span_text(stats['cost_s'])} of preprocessing"
    if stats["coldest_age_s"] is not None:
        told["coldest entry"] = f"unused for {span_text(stats['coldest_age_s'])}"
    if stats["staged_bytes"]:
        told["staged by jobs"] = size_text(stats["staged_bytes"])
    if stats["quarantine_bytes"]:
        told["in quarantine"] = size_text(stats["quarantine_bytes"])
    inner = f'<i style="width:{_percent(fixed, used)}%"></i>'
    bar = f'<div class="bar"><i style="width:{_percent(used, limit)}%">{inner}</i></div>'
    held = f'<span class="key"></span> {size_text(fixed)} of that in use by jobs, or pinned'
    use = f"<p>On disk {_text(told.pop('on disk'))}; {held}</p>"
    return f"<h2>Room</h2>{bar}{use}{warnings}{_facts(told)}"


def _sessions(view: View) -> str:
    if not view.connected:
        return '<h2>Connected</h2><p class="dim">nobody is connected</p>'
    rows = [
        (
            _bdi(one.name),
            _bdi(_user(one.owner, view.users)),
            f"{one.pid} on {_bdi(one.host)}",
            age_text(one.opened_at, view.now),
            f"{one.holds:,}",
            _doing(one),
        )
        for one in view.sessions
    ]
    columns = (("job", ""), ("user", "t"), ("pid", "t"), ("since", "t"), ("holds", "n"), ("doing", "row"))
    told = _table(columns, rows, _beyond(view.connected - len(rows), "/v1/sessions"))
    return f"<h2>Connected: {count_text(view.connected, 'session', 'sessions')}</h2>{told}"


def _doing(one: inspection.SessionSeen) -> str:
    if not one.progress:
        return _text(fullness.doing(one))
    bars = "".join(
        f"{_bdi(p.name)} {p.done:,} of {p.total:,} items"
        f'<div class="bar"><i style="width:{_percent(p.done, p.total)}%"></i></div>'
        for p in one.progress
    )
    return bars + (f"no room for {one.declined_items:,} items" if one.declined_items else "")


def _names(view: View) -> str:
    if not view.names:
        return '<h2>Kept</h2><p class="dim">nothing yet: a job that opens a data set fills it</p>'
    shown = view.names[:MAX_ROWS]
    rows = [
        (
            _bdi(one.name),
            f"{one.recipes:,}",
            f"{one.entries:,}",
            f"{one.items:,}",
            size_text(one.size_bytes),
            span_text(one.cost_s),
            age_text(one.used_at, view.now),
        )
        for one in shown
    ]
    columns = [("name", ""), *((n, "n") for n in ("recipes", "entries", "items", "size", "work", "used"))]
    is_more = len(view.names) > len(shown)
    return f"<h2>Kept, by name</h2>{_table(columns, rows, 'there are more: /v1/recipes' if is_more else '')}"


def _counters(stats: Mapping[str, Any]) -> str:
    told = {
        "look-ups": f"{stats['resolves']:,.0f}, of which {stats['misses']:,.0f} found nothing",
        "hits": f"{count_text(int(stats['found_items']), 'item was', 'items were')} there already",
        "misses": f"{count_text(int(stats['leased_items']), 'item', 'items')} given to jobs to make",
        "time saved": f"{span_text(stats['seconds_saved'])} of preprocessing",
        "declined": fullness.declined(stats),
        "evicted": count_text(stats["evictions"], "entry", "entries")
        + f", {size_text(stats['evicted_bytes'])}",
        "commits": f"{stats['commits']:,}; a job commits what it made every 30 s or so, and at its end",
        "merges": f"{stats['merges']:,}",
        "found damaged": f"{stats['quarantined']:,}",
    }
    return f"<h2>Since the daemon started</h2>{_facts(told)}"


def _more() -> str:
    links = " ".join(f'<a href="{one}">{one}</a>' for one in _ENDPOINTS)
    return (
        f"<h2>More</h2><nav>{links}</nav>"
        "<p>Removing is done by a command: <code>prepcache purge --name NAME --dry-run</code> says what "
        "would go; without <code>--dry-run</code> it asks and removes. "
        "<code>prepcache explain --name NAME</code> says why a job missed.</p>"
    )


def _facts(told: Mapping[str, str]) -> str:
    return (
        "<dl>"
        + "".join(f"<div><dt>{_text(n)}</dt><dd>{_unbroken(_text(v))}</dd></div>" for n, v in told.items())
        + "</dl>"
    )


def _unbroken(text: str) -> str:
    """HTML in which no option is broken at a hyphen of its own."""
    return re.sub(r"\(?--[a-z-]+\)?", r'<span class="whole">\g<0></span>', text)


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], below: str) -> str:
    """A table of cells that are HTML already; `columns` are (heading, class).

    On a narrow screen a row is a block, where cells of numbers ("n") and short texts ("t") are headed.
    """
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in columns)
    body = "".join(
        "<tr>" + "".join(_cell(cell, *one) for cell, one in zip(row, columns, strict=True)) + "</tr>"
        for row in rows
    )
    caption = f"<caption>{_text(below)}</caption>" if below else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(cell: str, name: str, kind: str) -> str:
    label = f' data-n="{name}"' if kind in ("n", "t") else ""
    return f'<td class="{kind}"{label}>{cell}</td>'


def _beyond(count: int, where: str) -> str:
    return f"and {count:,} more: {where}" if count > 0 else ""


def _user(uid: int | None, users: Mapping[int, str]) -> str:
    return "by token" if uid is None else users.get(uid, f"uid {uid}")


def _percent(part: float, whole: float) -> str:
    return f"{min(100.0, 100 * part / whole if whole else 0.0):.1f}"


def _bdi(text: str) -> str:
    """A stranger's text, which may be of another direction than ours."""
    return f"<bdi>{_text(text)}</bdi>"


def _text(text: str) -> str:
    cut = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    return escape("".join(c if c.isprintable() else "?" for c in cut))
