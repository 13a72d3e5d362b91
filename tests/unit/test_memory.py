"""How much memory there is for files, of the machine and of its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from prepcache.data.memory import has_room_for

AVAILABLE = 1000 * 1024
ABOVE = 1 << 62
"""A limit that is none, as version 1 writes it."""


def system(
    folder: Path, membership: str, limits: dict[str, str], meminfo: str | None = None
) -> tuple[Path, Path]:
    proc, groups = folder / "proc", folder / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(meminfo or "MemTotal: 9000 kB\nMemAvailable:     1000 kB\n")
    (proc / "self" / "cgroup").write_text(membership)
    groups.mkdir()
    for name, limit in limits.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(limit)
    return proc, groups


@pytest.mark.parametrize(
    ("membership", "limits", "room"),
    [
        ("", {}, AVAILABLE),
        ("0::/\n", {"memory.max": "max\n"}, AVAILABLE),
        ("0::/\n", {"memory.max": "2000\n"}, 2000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "4000\n"}, 4000),
        ("0::/a/b\n", {"a/b/memory.max": "3000\n", "a/memory.max": "4000\n"}, 3000),
        ("0::/a:b\n", {"a:b/memory.max": "3000\n"}, 3000),
        ("5:cpu,memory:/a\n4:pids:/\n", {"memory/a/memory.limit_in_bytes": "3000\n"}, 3000),
        ("5:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{ABOVE}\n"}, AVAILABLE),
        ("5:cpu:/a\n", {"a/memory.max": "3000\n", "memory/a/memory.limit_in_bytes": "3000\n"}, AVAILABLE),
    ],
)
def test_half_of_what_is_available_is_room(
    tmp_path: Path, membership: str, limits: dict[str, str], room: int
) -> None:
    proc, groups = system(tmp_path, membership, limits)
    assert has_room_for(room // 2, proc, groups)
    assert not has_room_for(room // 2 + 1, proc, groups)


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 9000 kB\n", "MemAvailable:\n", "MemAvailable: much\n"])
def test_where_the_system_does_not_tell_there_is_none(tmp_path: Path, meminfo: str) -> None:
    proc, groups = system(tmp_path, "", {}, meminfo or "\n")
    assert not has_room_for(1, proc, groups)
    assert not has_room_for(1, tmp_path / "nowhere", groups)


def test_this_machine_tells() -> None:
    assert has_room_for(4096)
    assert not has_room_for(1 << 60)
