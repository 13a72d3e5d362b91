"""How much memory there is for the pages of files: of the machine, or of the container if that is less."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.5
"""Of what is available; the rest is for the job, and for other jobs."""


def has_room_for(size_bytes: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether so many bytes of files can stay in memory; False where the system does not tell."""
    available = _available_bytes(proc / "meminfo")
    return size_bytes <= SHARE * min([available, *_limits(proc / "self" / "cgroup", cgroups)])


def _available_bytes(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _limits(membership: Path, cgroups: Path) -> Iterator[int]:
    """The limits of this process's control group and those around it, of either version."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
                yield int((folder / name).read_text())
            if folder == root:
                break
