"""Filesystems: how old a file's stamp must be before it can be trusted to change with the file.

Not here: whether a filesystem may hold the store (the daemon decides that for itself).
"""

from __future__ import annotations

import os

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, mtime_ns, ctime_ns, each as a signed 64-bit number."""

LOCAL_WINDOW_NS = 2_000_000_000
"""A younger stamp may hide a later write: the kernel's clock goes in ticks, some filesystems' in seconds."""
REMOTE_WINDOW_NS = 60_000_000_000
"""On network and FUSE filesystems times come from another clock, and attributes are cached up to 60 s."""
ENDLESS_WINDOW_NS = 1 << 62
"""No stamp tells: the file is read whenever it is looked up."""

_LOCAL = frozenset(
    {
        "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "bcachefs", "f2fs", "jfs", "reiserfs", "tmpfs",
        "ramfs", "overlay", "aufs", "ntfs3", "udf", "nilfs2", "ubifs", "rootfs", "devtmpfs", "hugetlbfs",
    }
)  # fmt: skip
_WITHOUT_CHANGE_TIME = frozenset(
    ["vfat", "msdos", "exfat", "squashfs", "erofs", "iso9660", "fuse.squashfuse", "fuse.squashfuse_ll"]
)
"""A change time there is that of the modification, which anyone may set, or of a whole image, which may be
made anew with all its times as before."""

_windows: dict[int, int] = {}


def racy_window_ns(device: int) -> int:
    """How old a stamp on this device must be before it can be trusted.

    Args:
        device: `st_dev`. One that the mount table does not name (a btrfs subvolume) is taken for remote:
            that costs a second reading of young files, the other way round could cost a stale sample.
    """
    window = _windows.get(device)
    if window is None:
        for known, kind in _mounted():
            _windows[known] = _window_of(kind)
        window = _windows.setdefault(device, REMOTE_WINDOW_NS)
    return window


def _window_of(kind: str) -> int:
    if kind in _WITHOUT_CHANGE_TIME:
        return ENDLESS_WINDOW_NS
    return LOCAL_WINDOW_NS if kind in _LOCAL else REMOTE_WINDOW_NS


def is_racy(stamp: Stamp, read_at_ns: int, window_ns: int) -> bool:
    """Whether a write after `read_at_ns` could leave a file's stamp as it is: the racy rule.

    A change time in the future is racy; a modification time there says nothing (anyone may set it).
    """
    return read_at_ns - stamp[4] < window_ns or -window_ns < read_at_ns - stamp[3] < window_ns


def _mounted() -> list[tuple[int, str]]:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return []
    found = []
    for row in rows:
        major, minor = row[2].split(":")
        found.append((os.makedev(int(major), int(minor)), row[row.index("-") + 1]))
    return found
