"""The report of a data set: what was there, what was preprocessed, and what that cost.

Invariants:
    1. `hit + computed + waited + declined <= items`; they are equal once `prepare()` has returned and
       the daemon was there. An item that equals an earlier one of the data set counts as a hit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """Where the samples of a data set came from.

    Args:
        items: items in the data set, equal ones included.
        hit: items that were there when the data set was opened.
        computed: distinct items that this process preprocessed.
        waited: distinct items that other jobs preprocessed while this one was preparing.
        declined: distinct items that the cache had no room for; they are preprocessed on every access.
        bytes: bytes of the artifacts that hold the data set's samples, by its share of their items.
        seconds: seconds spent inside the preprocessing function, over all workers.
        seconds_saved: seconds that the samples found had cost the jobs that made them.
        why: what explains the misses, one line each.
    """

    items: int
    hit: int
    computed: int
    waited: int
    declined: int
    bytes: int
    seconds: float
    seconds_saved: float
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.items:,} items", f"{self.hit:,} hit", f"{self.computed:,} computed"]
        if self.waited:
            parts.append(f"{self.waited:,} computed by other jobs")
        if self.declined:
            parts.append(f"{self.declined:,} declined")
        parts.append(f"{human_bytes(self.bytes)}, {human_seconds(self.seconds)} spent")
        parts.append(f"{human_seconds(self.seconds_saved)} saved")
        return ", ".join(parts)


def human_bytes(count: float) -> str:
    """1234567 -> '1.2 MB' (decimal units)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """75.2 -> '1 min 15 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
