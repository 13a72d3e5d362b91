"""One screen of `prepcache top`, or one line of it where there is no terminal; from looks to text. Pure.

Invariants:
    1. No line is wider than the screen, and there are no more of them than it has: what does not fit is
       shortened, or counted ("and 3 more").
    2. Text that is not ours is shown as text: no markup is obeyed, and what cannot be printed is a `?`.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from prepcache.command.cli_rates import History, Look, Rates, left_s
from prepcache.protocol import inspection, wire
from prepcache.protocol.fullness import fixed_bytes, room
from prepcache.protocol.units import count_text, middle_cut, size_text, span_text

RECIPES_SHOWN = 4
"""Of one job; it may have told of 64."""
WIDE = 100
"""Columns from which on what is nice to know is shown."""
MAX_WRAPPED = 3
"""Lines of one alarm."""
RATES_HEIGHT = 11
"""Lines left from which on there is room for the table of rates: six of them stay for the jobs."""
BAR_WIDTH, WIDE_BAR_WIDTH = 10, 30
KEY_DIGITS = 12
"""Of a recipe; `prepcache explain` takes such a beginning."""
GAP = "  "
_RATES = (
    ("hits", "found_items"),
    ("given out", "leased_items"),
    ("kept", "committed_items"),
    ("written", "committed_bytes"),
    ("evicted", "evictions"),
)
_ALARMS = (("saturated", "bold red"), ("full", "yellow"))
_ORDER = ("preprocessing", "waiting", "reading", "connected")
_STYLES = {"preprocessing": "green", "waiting": "yellow", "reading": "", "connected": "dim"}


@dataclass(frozen=True, slots=True)
class View:
    """What there is to show.

    Args:
        look: the last one that succeeded.
        interval_s: between two looks.
        user: the name of a uid.
        age_s: since that look.
        trouble: why the daemon cannot be looked at just now; empty while it can.
    """

    look: Look
    history: History
    interval_s: float
    user: Callable[[int | None], str]
    age_s: float = 0.0
    trouble: str = ""


def screen(view: View, width: int, height: int) -> list[Text]:
    """The lines of a screen of that size."""
    lines = [*_head(view, width), Text(), *_store(view.look.stats, width), Text()]
    if height - len(lines) >= RATES_HEIGHT:
        lines += [*_rates(view.look.stats, view.history.rates(), width), Text()]
    lines += _jobs(view, width, max(3, height - len(lines)))
    return [_fitted(line, width) for line in lines[:height]]


def line(view: View) -> str:
    """All of it on one line, for a log; of the jobs those that make something or wait."""
    look = view.look
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(look.now + view.age_s))
    if view.trouble:
        return f"{when} {printable(view.trouble)}"
    told = room(look.stats)
    rates = view.history.rates().now
    moved = ", ".join(f"{what} {_rate(rates, name)}" for what, name in _RATES)
    parts = [f"{when} on disk {told['on disk']}", moved]
    parts += [f"{name}: {told[name]}" for name in ("saturated", "full") if name in told]
    parts.append(count_text(len(look.sessions), "job", "jobs"))
    names = _names(look)
    for one in look.sessions:
        doing = [_progress_line(view, one, progress) for progress in one.progress]
        doing += [_wait_line(look, wait, names) for wait in one.waits]
        if doing:
            parts.append(f"{names[one.session]}: {', '.join(doing)}")
    return "; ".join(parts)


def printable(text: str) -> str:
    """A stranger's text as one line that a terminal survives."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _head(view: View, width: int) -> list[Text]:
    look = view.look
    clock = time.strftime("%H:%M:%S", time.localtime(look.now + view.age_s))
    right = f"{clock}{GAP}every {view.interval_s:g} s, q ends"
    uptime = span_text(look.stats.get("uptime_s", 0.0))
    left = f"prepcached {look.info.version}, pid {look.info.pid}, up for {uptime}"
    first = Text.assemble((_cell(left, max(0, width - len(right) - len(GAP))), "bold"), GAP, (right, "dim"))
    lines = [first, Text(_cut(printable(f"{look.info.root} at {look.url}"), width), style="dim")]
    if view.trouble:
        lines += _wrapped(printable(view.trouble), width, "", "bold red")
        since = f"looking again every {view.interval_s:g} s; what follows is of {span_text(view.age_s)} ago"
        lines.append(Text(since, style="red"))
    return lines


def _store(stats: Mapping[str, float], width: int) -> list[Text]:
    told = room(stats)
    disk, limit = stats.get("disk_bytes", 0), stats.get("effective_limit_bytes", 0)
    fixed = fixed_bytes(stats)
    bar_width = min(60, max(BAR_WIDTH, width - 40))
    used_cells, fixed_cells = _share(disk, limit, bar_width), _share(fixed, limit, bar_width)
    bar = Text.assemble(
        ("store  ", "bold"),
        ("█" * fixed_cells, "blue"),
        ("▓" * (used_cells - fixed_cells), "cyan"),
        ("░" * (bar_width - used_cells), "dim"),
        GAP,
    )
    short, _, beyond = told["on disk"].partition("; ")
    bar.append(short)
    facts = [
        count_text(int(stats.get("entries", 0)), "entry", "entries"),
        f"{size_text(fixed)} in use or pinned",
        f"{span_text(stats.get('cost_s', 0.0))} of work",
    ]
    if "coldest_age_s" in stats:
        facts.append(f"coldest used {span_text(stats['coldest_age_s'])} ago")
    lines = [bar, Text(f"       {_joined(facts, width - 7)}")]
    alarms = [(f"{name}: {told[name]}", style) for name, style in _ALARMS if name in told]
    if beyond:
        alarms.append((beyond, "yellow"))
    if stats.get("quarantine_bytes"):
        alarms.append((f"in quarantine: {size_text(stats['quarantine_bytes'])}", "yellow"))
    return lines + [line for text, style in alarms for line in _wrapped(text, width, " " * 7, style)]


def _rates(stats: Mapping[str, float], rates: Rates, width: int) -> list[Text]:
    each = max(10, min(14, (width - 8) // len(_RATES)))
    sums = {name: stats.get(name, 0.0) for _, name in _RATES}
    rows = [
        ("", [what for what, _ in _RATES], "bold"),
        ("now", [_rate(rates.now, name) for _, name in _RATES], ""),
        ("1 min", [_rate(rates.minute, name) for _, name in _RATES], ""),
        ("in all", [_amount(name, sums[name]) for _, name in _RATES], "dim"),
    ]
    return [
        Text(f"{label:<7}" + "".join(_cell(text, each, is_right=True) for text in texts), style=style)
        for label, texts, style in rows
    ]


def _jobs(view: View, width: int, height: int) -> list[Text]:
    sessions = sorted(view.look.sessions, key=lambda one: (_ORDER.index(_doing(one)), one.opened_at))
    if not sessions:
        return [Text("nobody is connected", style="dim")]
    names = _names(view.look)
    head, rows = _job_rows(view, sessions, width)
    told = _progress_rows(view, sessions, width)
    blocks = [[row, *_below(view, one, names, told)] for one, row in zip(sessions, rows, strict=True)]
    left = height - 1
    if sum(map(len, blocks)) <= left:
        return [head, *(line for block in blocks for line in block)]
    shown: list[Text] = []
    count = 0
    for block in blocks:
        if len(shown) + len(block) > left - 1 and count:
            break
        shown += block[: left - 1]
        count += 1
    more = len(blocks) - count
    return [head, *shown, *([Text(f"and {more:,} more", style="dim")] if more else [])]


def _job_rows(view: View, sessions: Sequence[inspection.SessionSeen], width: int) -> tuple[Text, list[Text]]:
    """The heading, and a line for each session."""
    table = [
        [
            printable(one.name),
            str(one.pid),
            printable(view.user(one.owner)),
            printable(one.host),
            span_text(view.look.now - one.opened_at),
            f"{one.leased_items:,}",
            f"{one.holds:,} of {size_text(one.held_bytes)}" if one.holds else "nothing",
            _doing(one),
        ]
        for one in sessions
    ]
    heads = ["JOB", "PID", "USER", "HOST", "SINCE", "LEASED", "HOLDS", "DOING"]
    is_right = (False, True, False, False, True, True, True, False)
    most = (width, 10, 12, 16, 9, 11, 20, 14)
    kept = [i for i, head in enumerate(heads) if width >= WIDE or head not in ("HOST", "LEASED")]
    sizes = [min(most[i], max(cell_len(row[i]) for row in [heads, *table])) for i in range(len(heads))]
    others = sum(sizes[i] + len(GAP) for i in kept if i)
    sizes[0] = max(8, min(sizes[0], width - others))

    def told(row: Sequence[str]) -> list[str]:
        return [_cell(row[i], sizes[i], is_right=is_right[i]) for i in kept]

    rows = [
        Text.assemble(GAP.join(told(row)[:-1]), GAP, (told(row)[-1].rstrip(), _STYLES[row[-1]]))
        for row in table
    ]
    return Text(GAP.join(told(heads)), style="bold"), rows


def _below(
    view: View,
    one: inspection.SessionSeen,
    names: Mapping[str, str],
    rows: Mapping[tuple[str, str], Text],
) -> list[Text]:
    """What a job makes, for whom it waits, and what there was no room for: a line each."""
    lines = [rows[one.session, some.recipe] for some in one.progress[:RECIPES_SHOWN]]
    if len(one.progress) > RECIPES_SHOWN:
        lines.append(Text(f"  and {len(one.progress) - RECIPES_SHOWN} more recipes", style="dim"))
    waits = [_wait_line(view.look, wait, names) for wait in one.waits[:RECIPES_SHOWN]]
    lines += [Text(f"  {told}", style="yellow") for told in waits]
    if one.declined_items:
        told = f"  no room for {count_text(one.declined_items, 'item', 'items')}: made on each access"
        lines.append(Text(told, style="yellow"))
    return lines


def _progress_rows(
    view: View, sessions: Sequence[inspection.SessionSeen], width: int
) -> dict[tuple[str, str], Text]:
    """How far each session is with each recipe: name, bar and numbers, in columns."""
    told = {(one.session, some.recipe): (one, some) for one in sessions for some in one.progress}
    cells = {
        key: (_recipe(some, width), f"{some.done:,}/{some.total:,}", *_pace(view, one, some))
        for key, (one, some) in told.items()
    }
    widths = [max((cell_len(row[i]) for row in cells.values()), default=0) for i in range(4)]
    left = width - 2 - sum(widths[1:]) - 4 * len(GAP)
    bar_width = max(BAR_WIDTH, min(WIDE_BAR_WIDTH, left - widths[0]))
    widths[0] = max(8, min(widths[0], left - bar_width))
    rows: dict[tuple[str, str], Text] = {}
    for key, (name, *numbers) in cells.items():
        some = told[key][1]
        done = _share(some.done, some.total, bar_width)
        columns = [_cell(text, size, is_right=True) for text, size in zip(numbers, widths[1:], strict=True)]
        rows[key] = Text.assemble(
            f"  {_cell(name, widths[0])}{GAP}",
            ("█" * done, "green"),
            ("░" * (bar_width - done), "dim"),
            GAP + GAP.join(columns),
        )
    return rows


def _recipe(some: wire.Progress, width: int) -> str:
    name = printable(some.name)
    return f"{name} {some.recipe[:KEY_DIGITS]}" if width >= WIDE else name


def _progress_line(view: View, one: inspection.SessionSeen, progress: wire.Progress) -> str:
    told = f"{printable(progress.name)} {progress.done:,}/{progress.total:,}"
    return " ".join([told, *(part for part in _pace(view, one, progress) if part)])


def _pace(view: View, one: inspection.SessionSeen, progress: wire.Progress) -> tuple[str, str]:
    """Items a second, and what that leaves; or for how long nothing was heard."""
    silent_s = view.look.now - one.seen_at
    if silent_s > wire.LAPSE_S:
        return "", f"silent {span_text(silent_s)}"
    items_per_s = view.history.items_per_s(one.session, progress.recipe)
    eta_s = left_s(progress, items_per_s)
    return _per_s(items_per_s), "" if eta_s is None else f"{span_text(eta_s)} left"


def _wait_line(look: Look, wait: inspection.Wait, names: Mapping[str, str]) -> str:
    told = [names.get(one, "one that has ended") for one in wait.sessions]
    who = ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")
    recipes = {one.recipe: one.name for session in look.sessions for one in session.progress}
    return f"waits for {who} to make {printable(recipes.get(wait.recipe, wait.recipe[:12]))}"


def _names(look: Look) -> dict[str, str]:
    """What sessions are called where one speaks of them."""
    return {one.session: f"{printable(one.name)} (pid {one.pid})" for one in look.sessions}


def _doing(one: inspection.SessionSeen) -> str:
    if one.waits:
        return "waiting"
    if one.progress or one.leases:
        return "preprocessing"
    return "reading" if one.holds else "connected"


def _amount(name: str, value: float) -> str:
    return size_text(value) if name.endswith("_bytes") else f"{value:,.0f}"


def _rate(rates: Mapping[str, float] | None, name: str) -> str:
    if rates is not None and name.endswith("_bytes"):
        return f"{size_text(rates[name])}/s"
    return _per_s(None if rates is None else rates[name])


def _per_s(value: float | None) -> str:
    if value is None:
        return "…"
    if 0 < value < 0.05:
        return "<0.1/s"
    return f"{value:,.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"


def _share(part: float, whole: float, cells: int) -> int:
    """How many of the cells of a bar are full."""
    return min(cells, round(cells * part / whole)) if whole > 0 else 0


def _wrapped(text: str, width: int, indent: str, style: str) -> list[Text]:
    """What must be readable: on several lines where one is too narrow for it."""
    told = textwrap.wrap(text, max(width - len(indent), 10), max_lines=MAX_WRAPPED, placeholder=" …")
    return [Text(indent + one, style=style) for one in told]


def _joined(parts: Sequence[str], width: int) -> str:
    """As many of them as fit."""
    kept = list(parts)
    while len(kept) > 1 and cell_len(", ".join(kept)) > width:
        kept.pop()
    return ", ".join(kept)


def _cut(text: str, width: int) -> str:
    """At most so many cells; the middle goes, or the end where characters differ in width."""
    if cell_len(text) <= width:
        return text
    return middle_cut(text, width) if cell_len(text) == len(text) else set_cell_size(text, width)


def _cell(text: str, width: int, *, is_right: bool = False) -> str:
    """Exactly so many cells."""
    cut = _cut(text, width)
    space = " " * (width - cell_len(cut))
    return space + cut if is_right else cut + space


def _fitted(one: Text, width: int) -> Text:
    one.truncate(width, overflow="ellipsis")
    return one
