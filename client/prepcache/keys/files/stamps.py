"""Stamps: what tells that a file changed, and how old a stamp must be to tell it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
made again with all its times as before."""
_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15
_FACTOR = 0xD6E8FEB86659FD93
_windows: dict[int, int] = {}


def stamp_of(info: os.stat_result) -> Stamp:
    return (_signed(info.st_dev), _signed(info.st_ino), info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def path_stamp(path: str) -> Stamp | None:
    """The stamp of a file or folder; None where there is none."""
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None


def _signed(number: int) -> int:
    """A 64-bit inode or device number as the signed number with the same bits."""
    return number - (1 << 64) if number >> 63 else number


def is_racy(stamp: Stamp, read_at_ns: int, window_ns: int) -> bool:
    """Whether a write after `read_at_ns` could leave a file's stamp as it is: the racy rule.

    A change time in the future is racy; a modification time there says nothing (anyone may set it).
    """
    return read_at_ns - stamp[4] < window_ns or -window_ns < read_at_ns - stamp[3] < window_ns


def racy_window_ns(device: int) -> int:
    """How old a stamp on this device must be before it can be trusted. A device that the mount table does not
    name (a btrfs subvolume) is taken for remote, which costs a second reading of young files."""
    if device not in _windows:
        for known, kind in _mounted():
            is_endless = kind in _WITHOUT_CHANGE_TIME
            window_ns = LOCAL_WINDOW_NS if kind in _LOCAL else REMOTE_WINDOW_NS
            _windows[known] = ENDLESS_WINDOW_NS if is_endless else window_ns
    return _windows.setdefault(device, REMOTE_WINDOW_NS)


def _mounted() -> list[tuple[int, str]]:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return []
    devices = [map(int, row[2].split(":")) for row in rows]
    kinds = [row[row.index("-") + 1] for row in rows]
    return [(os.makedev(*device), kind) for device, kind in zip(devices, kinds, strict=True)]


def mix(words: Iterable[int]) -> int:
    """A 64-bit hash of 64-bit words. Fast and well spread; not for secrets."""
    h = _SEED
    for word in words:
        h = ((h ^ (word & _MASK)) * _FACTOR) & _MASK
        h ^= h >> 32
    return h


def mix_columns(columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """`mix` of each row of some columns."""
    import numpy as np

    h = np.full(len(columns[0]), _SEED, np.uint64)
    factor, shift = np.uint64(_FACTOR), np.uint64(32)
    for column in columns:
        h ^= np.ascontiguousarray(column).view(np.uint64)
        h *= factor
        h ^= h >> shift
    return h
