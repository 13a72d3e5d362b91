"""`prepcache verify`: entries are read a portion at a time, and a terminal shows how far it is.

Invariants:
    1. All that was there at the beginning is read; what went meanwhile is not missed.
    2. What was found before an interrupt, or before the daemon went, is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from prepcache.protocol import inspection
from prepcache.protocol.units import count_text, size_text

if TYPE_CHECKING:
    from prepcache.daemon.client import Client

PORTION_BYTES = 256 << 20
"""What the daemon is asked to read at once: a second or two of a disk."""


def verified(client: Client, chosen: Sequence[inspection.Entry], *, is_told: bool) -> inspection.Verified:
    """Reads entries whole.

    Args:
        chosen: which; all, where none are given.
        is_told: whether standard output gets what was found.

    Raises:
        PrepcacheError: as `Client.verify`.
    """
    total_bytes = sum(one.disk_bytes for one in chosen) if chosen else client.stats()["disk_bytes"]
    # By an order that reading them does not change; what comes later is at its end.
    entries = chosen or client.entries(sort="created_at")
    found = inspection.Verified(0, 0)
    try:
        with _bar(total_bytes) as advance:
            for keys in _portions(entries):
                more = client.verify(keys)
                found = _both(found, more)
                advance(more.read_bytes)
    finally:
        if is_told:
            _tell(found)
    return found


def _portions(entries: Iterable[inspection.Entry]) -> Iterator[list[str]]:
    portion: list[str] = []
    seen: set[str] = set()  # several users may have one key: all of theirs are read by it
    nbytes = 0
    for entry in entries:
        if entry.key in seen:
            continue
        seen.add(entry.key)
        portion.append(entry.key)
        nbytes += entry.disk_bytes
        if nbytes >= PORTION_BYTES or len(portion) == inspection.MAX_PAGE_SIZE:
            yield portion
            portion, nbytes = [], 0
    if portion:
        yield portion


def _both(one: inspection.Verified, other: inspection.Verified) -> inspection.Verified:
    return inspection.Verified(
        one.checked + other.checked,
        one.read_bytes + other.read_bytes,
        one.bad + other.bad,
        one.unreadable + other.unreadable,
    )


def _tell(found: inspection.Verified) -> None:
    entries, read = count_text(found.checked, "entry", "entries"), size_text(found.read_bytes)
    typer.echo(f"read {entries}, {read}: {len(found.bad)} damaged")
    for key in found.bad:
        typer.echo(f"damaged and removed: {key}")
    for key in found.unreadable:
        typer.echo(f"could not be read (see the daemon's log): {key}")


@contextmanager
def _bar(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar at standard error, where that is a terminal; gives who moves it on by so many bytes."""
    columns = (
        BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda nbytes: bar.advance(task, nbytes)
