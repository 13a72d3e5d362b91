"""What the `prepcache` command shows to people: tables and short lists. Programs get `--json` instead.

Text that came from the daemon is shown as text: rich markup in a recipe's name is not obeyed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prepcache import __version__
from prepcache.protocol import inspection
from prepcache.protocol.explain import cues, hint
from prepcache.protocol.status_text import doing, helping, kept_back, page, room, warnings
from prepcache.protocol.units import age_text, count_text, printable, size_text, span_text, user_name
from prepcache.protocol.wire import RANDOM, Message, draws_in, draws_text

INPUTS_SHOWN = 20  # of the inputs of each kind that an entry observed; there may be a hundred thousand
KEY_DIGITS = 12  # as jobs print; commands take any such beginning
MOST_WIDTH = 10_000
UPDATE_S = 1.0

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def console() -> Console:
    """Standard output; where it is no terminal, nothing is wrapped or cut."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, soft_wrap=True, width=MOST_WIDTH)


def emit(value: Any, as_json: bool, show: Callable[[], None]) -> None:
    """Prints a value as one JSON text, of characters that every encoding has, or shows it to people."""
    if as_json:
        print(json.dumps(value, indent=2))
    else:
        show()


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows below their headings, without empty columns. Where a terminal is too narrow, names are cut and
    sentences go on in the next line."""
    shown = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    cells = {name: column for name, *column in zip(columns, *rows, strict=True)}
    used = {name: cells[name] for name in columns if any(cells[name])}
    for name in used:
        shown.add_column(
            name,
            justify="right" if name in _NUMBERS else "left",
            no_wrap=name in (*_NUMBERS, "KEY"),
            overflow="fold" if name in _SENTENCES else "ellipsis",
        )
    for row in zip(*used.values(), strict=True):
        cells_of = zip(used, row, strict=True)
        shown.add_row(*(Text(cell, no_wrap=name not in _SENTENCES or None) for name, cell in cells_of))
    return shown


def show(*lines: RenderableType) -> None:
    """Prints lines and tables, without blanks at the ends of lines."""
    out = console()
    with out.capture() as drawn:
        for line in lines:
            out.print(line, crop=not isinstance(line, Text))
    out.file.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


_NUMBERS = ("ENTRIES", "ITEMS", "SIZE", "COST", "IDLE", "PID", "SINCE", "READS")
_SENTENCES = ("WHAT", "DOING")
NAMES_SHOWN = 5


def entries(found: Sequence[inspection.Entry], more: bool) -> None:
    rows_of(found, len(found))
    size_bytes = sum(one.size_bytes for one in found)
    total = f"{count_text(len(found), 'entry', 'entries')}, {size_text(size_bytes)}"
    show(Text(f"{total}; there are more: --limit 0 shows all" if more else total, style="dim"))


def rows_of(found: Sequence[inspection.Entry], count: int) -> None:
    """A row for each entry, and how many of `count` more there are."""
    now, is_shared = time.time(), any(one.owner != os.getuid() for one in found)
    rows = [
        [one.key[:KEY_DIGITS], one.name, user_name(one.owner) * is_shared, *_sums(one, now), _kept(one)]
        for one in found
    ]
    if rows:
        show(table(["KEY", "NAME", "OWNER", "ITEMS", "SIZE", "COST", "IDLE", "KEPT"], rows))
        show(*_and_more(count - len(found)))


def purged(gone: inspection.Purged, is_dry: bool) -> None:
    rows_of(gone.listed, gone.entries)
    told = f"{'would remove' if is_dry else 'removed'} {amount(gone)}"
    show(Text(told if gone.entries else "nothing to remove: no entry that you may remove matches"))


def amount(gone: inspection.Purged) -> str:
    are_pinned = f" ({gone.pinned:,} of them pinned)" if gone.pinned else ""
    return f"{count_text(gone.entries, 'entry', 'entries')}, {size_text(gone.size_bytes)}{are_pinned}"


def verified(found: inspection.Verified) -> None:
    read = f"{count_text(found.checked, 'entry', 'entries')}, {size_text(found.read_bytes)}"
    show(Text(f"read {read}: {len(found.bad)} damaged"))
    for key in found.bad:
        show(Text(f"damaged and removed: {key[:KEY_DIGITS]}"))
    if found.bad:
        show(Text("the next job that needs their samples recomputes them"))
    for key in found.unreadable:
        show(Text(f"could not be read (see the daemon's log): {key[:KEY_DIGITS]}"))


def pinned(found: Sequence[inspection.Entry], is_pinned: bool) -> None:
    for one in found:
        what = f"{'pinned' if is_pinned else 'unpinned'} {one.key[:KEY_DIGITS]}"
        show(Text(f"{what} ({one.name}, {size_text(one.disk_bytes)} on disk)"))


def _sums(one: inspection.Entry | inspection.NameSums, now: float) -> list[str]:
    """Items, size, cost, and for how long it was not used."""
    return [
        f"{one.items:,}", size_text(one.size_bytes), span_text(one.cost_s), span_text(now - one.used_at)
    ]  # fmt: skip


def _kept(one: inspection.Entry) -> str:
    return ", ".join(["pinned"] * one.is_pinned + ["in use"] * bool(one.holds))


def entry(one: inspection.Entry, recipe: inspection.Recipe | None) -> None:
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
        "kept": _kept(one) or "until it is the least recently used entry",
        "recipe": one.recipe,
        "digest": one.digest,
    }
    made_by = {name: value for name, value in one.producer.items() if name not in ("at", "recipe")}
    rows |= {f"made by {name}": _value(value) for name, value in made_by.items()}
    rows |= _observed(one.observed)
    fields({name: value for name, value in rows.items() if value})
    if recipe is not None and recipe.parts:
        show("")
        parts(recipe.parts)


def _observed(inputs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names: dict[str, list[str]] = {}
    for one in inputs:
        names.setdefault(f"observed {one.get('kind', '')}", []).append(_value(one.get("name", one)))
    names.pop(f"observed {RANDOM}", None)
    told = {"random": draws_text(drawn)} if (drawn := draws_in(inputs)) else {}
    for kind, some in names.items():
        more = f" and {len(some) - INPUTS_SHOWN:,} more" if len(some) > INPUTS_SHOWN else ""
        told[kind] = ", ".join(some[:INPUTS_SHOWN]) + more
    return told


def parts(of: Mapping[str, Any]) -> None:
    fields(dict(_flat("", of)))


def fields(rows: Mapping[str, str]) -> None:
    """Prints names and values. A value that is wider than the terminal goes on below itself."""
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in rows.items():
        shown.add_row(name, Text(value))
    show(shown)


def _flat(path: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), inner)
    else:
        yield path, _value(value)


def _value(value: Any) -> str:
    line = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return printable(line)


def explanation_json(told: inspection.Explanation) -> dict[str, Any]:
    rows = [{"cue": one.name, "state": one.state, "lines": list(one.lines)} for one in cues(told)]
    return {**told.to_json(), "cues": rows}


def explanation(told: inspection.Explanation) -> None:
    """The recipe, the nearest one, and a row for each cue; nothing is cut off."""
    near = told.nearest
    rows = {
        "name": told.name,
        "missed": age_text(told.missed_at, time.time()) if told.missed_at else "",
        "recipe": told.recipe or "",
        "entries": f"{told.entries:,}",
        "why": told.summary,
        "hint": hint(told.differences),
    }
    if near is not None:
        rows["nearest"] = (
            f"{near.recipe[:KEY_DIGITS]}: {count_text(near.items, 'item', 'items')}, "
            f"size {size_text(near.size_bytes)}, cost {span_text(near.cost_s)}, "
            f"used {age_text(near.used_at, time.time())}"
        )
    fields({name: value for name, value in rows.items() if value})
    rows_of_cues = [[one.name, one.state, "\n".join(one.lines)] for one in cues(told)]
    show("", table(["INPUT", "STATE", "WHAT"], rows_of_cues))
    show(*_and_more(told.more))


class Status(Message, frozen=True):
    info: inspection.Info
    stats: Mapping[str, Any]
    sessions: Sequence[inspection.SessionSeen]
    url: str
    names: inspection.Names
    miss: inspection.Explanation | None


def status_lines(look: Status) -> list[RenderableType]:
    miss = "no job has missed since the daemon started"
    if look.miss is not None:
        at = f"{age_text(look.miss.missed_at, time.time())}, " if look.miss.missed_at else ""
        miss = f"{at}{_value(look.miss.name)}: {_value(look.miss.summary)}"
    coldest_s = look.stats.get("coldest_age_s")
    coldest = "" if coldest_s is None else f"; least recently used entry: {span_text(coldest_s)} ago"
    free = [f"prepcache purge --free 50GB --dry-run{coldest}", kept_back(look.stats)]
    info = look.info
    lines = [
        f"prepcached {info.version}, pid {info.pid}, up {span_text(look.stats.get('uptime_s', 0.0))}",
        f"at {look.url}, root {_value(info.root)}",
    ]
    if look.url.startswith("unix://"):
        lines.append(f"page {page(look.url.removeprefix('unix://'), socket.gethostname())}")
    if info.version != __version__:
        lines.append(f"installed: {__version__}; run `prepcached stop` or restart the service to use it")
    if info.isolation == "user":
        lines.append("isolation by user: only admins and trusted users see the entries of others")
    sections: dict[str, Sequence[RenderableType]] = {
        "What is cached?": _cached(look),
        "Who is connected?": _connected(look.sessions),
        "Is it helping?": [Text(helping(look.stats))],
        "What was the last miss, and why?": [Text(miss)],
        "How do I free 50 GB?": [Text(line) for line in free],
    }
    shown: list[RenderableType] = [*map(Text, lines)]
    for question, answer in sections.items():
        shown += [Text(), Text(question, style="bold"), *answer]
    return shown


def _cached(look: Status) -> list[RenderableType]:
    stats, now = look.stats, time.time()
    said = [f"{count_text(stats.get('entries', 0), 'entry', 'entries')}, {room(stats)}", *warnings(stats)]
    if "new index" in stats.get("recovered", {}):
        said.append("index rebuilt when the daemon started: pins are lost (see the daemon's log)")
    lines: list[RenderableType] = [Text(line) for line in said]
    if rows := [[one.name, f"{one.entries:,}", *_sums(one, now)] for one in look.names.names]:
        lines.append(table(["NAME", "ENTRIES", "ITEMS", "SIZE", "COST", "IDLE"], rows))
    return lines + _and_more(look.names.more, "more name", "more names")


def _connected(sessions: Sequence[inspection.SessionSeen]) -> list[RenderableType]:
    now = time.time()
    jobs = [
        [one.name, str(one.pid), one.host, age_text(one.opened_at, now), f"{one.holds:,}", doing(one)]
        for one in sessions
    ]
    if not jobs:
        return [Text("no job", style="dim")]
    return [table(["JOB", "PID", "HOST", "SINCE", "READS", "DOING"], jobs)]


def _and_more(count: int, one: str = "more", many: str = "more") -> list[RenderableType]:
    return [Text(f"and {count_text(count, one, many)}", style="dim")] if count > 0 else []


def watch(look: Callable[[], Status], as_json: bool) -> None:
    """Shows one look after the other, on a terminal in the same place, until Ctrl-C or the daemon's end."""
    status, is_drawn = look(), not as_json and sys.stdout.isatty()
    live = Live(console=Console(highlight=False), screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), live if is_drawn else contextlib.nullcontext():
        while True:
            if as_json:
                print(json.dumps({"at": time.time(), **status.to_json()}), flush=True)
            elif is_drawn:
                live.update(Group(*status_lines(status)), refresh=True)
            else:
                show(*status_lines(status), "")
                sys.stdout.flush()
            time.sleep(UPDATE_S)
            status = look()
