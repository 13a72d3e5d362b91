"""What people are told of how full a store is and what its jobs do, by the command and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prepcache.protocol import inspection
from prepcache.protocol.units import count_text, size_text

FULL_SHARE = 0.95
"""Of the limit; the daemon keeps a fiftieth of it free for what comes next."""


def declined(stats: Mapping[str, Any]) -> str:
    """What there was no room for: items before they were made, writes of what was made, recipes of jobs."""
    items, writes, recipes = (
        int(stats.get(name, 0)) for name in ("declined_items", "declined", "declined_recipes")
    )
    parts = [
        f"{count_text(items, 'item', 'items')}, which jobs preprocess on each access" if items else "",
        f"{count_text(writes, 'commit or upload', 'commits and uploads')} of what was made" if writes else "",
        f"{count_text(recipes, 'recipe', 'recipes')} of jobs, of which nothing is kept" if recipes else "",
    ]
    told = "; ".join(part for part in parts if part)
    return f"for want of room: {told}" if told else "nothing since the daemon started"


def room(stats: Mapping[str, Any]) -> dict[str, str]:
    """What the store takes of what it may take, what the disk must keep free, and whether that is all."""
    limit, disk = stats.get("effective_limit_bytes", 0), stats.get("disk_bytes", 0)
    budget, min_free = stats.get("max_bytes", 0), stats.get("min_free_bytes", 0)
    share = f"{100 * disk / limit:.0f} % of " if limit else "of "
    rows = {
        "on disk": f"{size_text(disk)} ({share}{size_text(limit)})",
        "beside it": f"{size_text(stats.get('index_bytes', 0))} of index, "
        f"{size_text(stats.get('recipes_bytes', 0))} of recipes",
        "disk": f"{size_text(stats.get('free_bytes', 0))} free, {size_text(min_free)} stay free (--min-free)",
    }
    if not limit:
        rows["on disk"] = f"{size_text(disk)}, of a budget of {size_text(budget)}: nothing more is kept"
        free = size_text(stats.get("free_bytes", 0))
        rows["disk"] = f"{free} free, where {size_text(min_free)} stay free (--min-free)"
    elif limit < budget:
        rows["on disk"] += f"; the budget is {size_text(budget)}, and the disk has no more"
    if not limit or fixed_bytes(stats) >= FULL_SHARE * limit:
        rows["saturated"] = "nothing more is kept: all is pinned or held by jobs, or the disk is too full"
    elif disk >= FULL_SHARE * limit:
        rate = stats.get("evictions_per_s", 0.0) * 60
        rows["full"] = f"the coldest make room for new ones: {rate:,.0f} evicted in the last minute"
    return rows


def fixed_bytes(stats: Mapping[str, Any]) -> int:
    """What cannot go for anything new: what is both pinned and held counts once."""
    disk = int(stats.get("disk_bytes", 0))
    return disk - int(stats.get("yielding_bytes", disk))


def kept_back(stats: Mapping[str, Any]) -> str:
    """What is not evicted, as it lies on disk: pinned, held by jobs, and removed where jobs have it open."""
    pinned, held = stats.get("pinned_bytes", 0), stats.get("held_bytes", 0)
    removed = stats.get("unlinked_bytes", 0)
    more = f", and {size_text(removed)} that were removed while jobs read them" if removed else ""
    return f"{size_text(pinned)}, {size_text(held)} on disk{more}"


def doing(one: inspection.SessionSeen) -> str:
    """What a session does, and how far it is."""
    told = ", ".join(f"{p.name} {p.done:,}/{p.total:,}" for p in one.progress)
    if not told:  # told every few seconds, and not before the first of them
        told = "preprocessing" if one.leases else "reading" if one.holds else "connected"
    return f"{told}, no room for {one.declined_items:,}" if one.declined_items else told
