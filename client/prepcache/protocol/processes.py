"""Processes by what is never used again: their number, and when they started."""

from __future__ import annotations

from pathlib import Path

_STATE_FIELD, _START_TICKS_FIELD = 0, 19
"""Of /proc/PID/stat, behind the name; see proc_pid_stat(5)."""


def start_ticks(pid: int) -> int:
    """When a process started, in ticks since boot; 0 if that cannot be read. (pid, this) is never reused."""
    try:
        return int(_fields(pid)[_START_TICKS_FIELD])
    except (OSError, ValueError, IndexError):
        return 0


def is_alive(pid: int, ticks: int) -> bool:
    """Whether the process that had this pid and start time still runs (a zombie does not)."""
    try:
        fields = _fields(pid)
        return int(fields[_START_TICKS_FIELD]) == ticks and fields[_STATE_FIELD] not in "ZX"
    except (OSError, ValueError, IndexError):
        return False


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
