"""What `prepcache status` and the daemon's page say about the store and its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prepcache.protocol import inspection
from prepcache.protocol.units import count_text, size_text, span_text

PAGE_PORT = 8080  # of the own machine, in the command that brings the page there

FULL_SHARE = 0.95  # of the limit; the daemon keeps a fiftieth of it free for new entries


def room(stats: Mapping[str, Any]) -> str:
    limit, disk = stats.get("effective_limit_bytes", 0), stats.get("disk_bytes", 0)
    budget = stats.get("max_bytes", 0)
    if not limit:
        return f"{size_text(disk)} on disk, budget {size_text(budget)}"
    used = f"{size_text(disk)} of {size_text(limit)} on disk ({100 * disk / limit:.0f} %)"
    return used if limit >= budget else f"{used}; the budget is {size_text(budget)}, the disk is too small"


def page(socket: str, host: str) -> str:
    """How a browser reaches the page of a daemon that listens on a unix socket of that machine."""
    return f"ssh -N -L {PAGE_PORT}:{socket} {host}, then http://localhost:{PAGE_PORT}/"


def free(left: int, reserved: int) -> str:
    setting = "set PREPCACHED_MIN_FREE, then run `prepcached stop`"
    return f"{size_text(left)} free, of which {size_text(reserved)} must stay free ({setting})"


def warnings(stats: Mapping[str, Any]) -> list[str]:
    """What is out of the ordinary, a sentence each; nothing on a good day."""
    limit, disk = stats.get("effective_limit_bytes", 0), stats.get("disk_bytes", 0)
    said = []
    fixed = disk - stats.get("yielding_bytes", disk)  # cannot make room for new entries
    if not limit or fixed >= FULL_SHARE * limit:
        disk_space = free(stats.get("free_bytes", 0), stats.get("min_free_bytes", 0))
        why = "all entries are pinned or in use" if limit else f"the disk has {disk_space}"
        said.append(f"saturated: new samples are not stored; {why}")
    elif disk >= FULL_SHARE * limit:
        rate = stats.get("evictions_per_s", 0.0) * 60
        said.append(f"full: {rate:,.0f} least recently used entries evicted in the last minute")
    items, writes = (int(stats.get(name, 0)) for name in ("declined_items", "declined"))
    declined = [
        *([count_text(items, "item", "items")] if items else []),
        *([count_text(writes, "finished file", "finished files")] if writes else []),
    ]
    if declined:
        said.append(f"not stored for lack of room, since the start: {', '.join(declined)}")
    if staged := stats.get("staged_bytes"):
        said.append(f"{size_text(staged)} written by jobs but not committed yet")
    return said


def helping(stats: Mapping[str, Any]) -> str:
    up = span_text(stats.get("uptime_s", 0.0))
    percent = hit_percent(stats)
    if percent is None:
        return f"no job has asked for items since the daemon started {up} ago"
    found = count_text(int(stats.get("found_items", 0)), "item", "items")
    saved = span_text(stats.get("seconds_saved", 0.0))
    return f"hit rate {percent:.0f} % ({found} found), {saved} of preprocessing saved in {up}"


def hit_percent(stats: Mapping[str, Any]) -> float | None:
    """Items that jobs found, of those that they asked for; None before the first."""
    hits = stats.get("found_items", 0)
    asked = hits + stats.get("leased_items", 0) + stats.get("declined_items", 0)
    return 100 * hits / asked if asked else None


def kept_back(stats: Mapping[str, Any]) -> str:
    """What is never evicted now: pinned, held by jobs, or removed while jobs still have it open."""
    pinned, held = stats.get("pinned_bytes", 0), stats.get("held_bytes", 0)
    removed = stats.get("unlinked_bytes", 0)
    more = f"; {size_text(removed)} of removed entries, freed when their jobs end" if removed else ""
    return f"pinned {size_text(pinned)}, in use by jobs {size_text(held)}: these stay{more}"


def doing(one: inspection.SessionSeen) -> str:
    told = ", ".join(f"{p.name} {p.done:,}/{p.total:,}" for p in one.progress)
    if not told:  # the first progress comes after a few seconds
        told = "preprocessing" if one.leases else "reading" if one.holds else "connected"
    return f"{told}, no room for {one.declined_items:,}" if one.declined_items else told


def tier(found: inspection.TierStatus) -> list[tuple[str, str]]:
    answers = "yes" if not found.is_paused else f"no, jobs do without it: {found.last_failure}"
    away = f", which does not answer: {found.last_upstream_failure}" if found.is_upstream_away else ""
    return [
        ("bucket", f"{found.url} ({found.mode})"),
        ("answers", answers),
        ("fetched", f"{artifacts(found.hits)}, {size_text(found.hit_bytes)}"),
        ("not there", count_text(found.misses, "request for work", "requests for work")),
        ("could not tell", count_text(found.could_not_tell, "time", "times")),
        ("damaged", artifacts(found.bad)),
        ("copied", f"{artifacts(found.written)}, {size_text(found.written_bytes)}"),
        ("waiting", f"{count_text(found.waiting, 'recipe', 'recipes')}, {found.dropped} dropped"),
        *([("leases from", found.upstream + away)] if found.upstream else []),
    ]


def artifacts(count: int) -> str:
    return count_text(count, "artifact", "artifacts")
