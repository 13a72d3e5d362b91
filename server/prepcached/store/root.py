"""Opening a root: may a store live here, is it free, what was remembered.

Invariants:
    1. While a `Root` is open, its flock keeps every other daemon out.
    2. The root's filesystem is local: SQLite's WAL and shared maps do not work over a network.
    3. The default budget is decided once, at the first start, and remembered: a store that filled
       the disk must not shrink its own budget at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable
from os import PathLike

from prepcache import errors
from prepcached.store import durable
from prepcached.store.layout import CACHEDIR_TAG, README, Layout
from prepcached.store.records import Limits

GIB = 1 << 30
NETWORK_FILESYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "afs", "kafs", "9p", "coda", "gfs2"),
        *("ocfs2", "beegfs", "gpfs", "panfs", "fuse.sshfs", "fuse.s3fs", "fuse.goofys", "fuse.geesefs"),
        *("fuse.mount-s3", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2", "fuse.rclone"),
        *("fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.mfs", "fuse.juicefs", "fuse.seaweedfs"),
        *("fuse.davfs", "fuse.curlftpfs"),
    )
)
"""Those that other machines write to, as /proc/self/mountinfo calls them. Source: proc_pid_mountinfo(5)."""


def network_filesystem(path: str) -> str | None:
    """The filesystem's name, if other machines may write to it."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        for fields in map(bytes.split, mounts):
            if fields[2] == number:
                name = os.fsdecode(fields[fields.index(b"-") + 1])
                return name if name in NETWORK_FILESYSTEMS else None
    return None


class Root:
    """A root that this process has for itself, made if absent.

    Raises:
        RootUnusable: not writable, or on a network filesystem.
        RootInUse: another daemon has it; the message names its pid.
    """

    def __init__(self, path: str) -> None:
        self.layout = Layout(os.path.abspath(path))
        try:
            os.makedirs(self.layout.root, mode=0o2750, exist_ok=True)
            network = network_filesystem(self.layout.root)
            if network is not None:
                raise _unusable(
                    self.layout,
                    f"is on a network filesystem ({network}), where SQLite and shared maps are unsafe; "
                    "choose a root on a local disk (--root, PREPCACHED_ROOT)",
                )
            with contextlib.ExitStack() as undo:
                self._lock = self._take_lock()
                undo.callback(self.close)
                self._check_no_other_layout()
                self._make_folders()
                self._objects = os.stat(self.layout.objects)
                self.is_new = not durable.is_there(self.layout.instance)
                self.instance = self._remember(self.layout.instance, lambda: secrets.token_hex(16))
                undo.pop_all()
        except OSError as error:
            mend = "it must be a folder that the daemon can write to"
            if error.errno == errno.EROFS:  # so ProtectSystem=strict of the unit looks to the daemon
                mend += f"; under systemd its unit must name it: ReadWritePaths={self.layout.root}"
            elif error.errno in (errno.ENOSPC, errno.EDQUOT):
                mend = "free some space on its disk, or choose another root (--root)"
            what = f"cannot hold a store: {error.strerror} ({error.filename or 'root'}); {mend}"
            raise _unusable(self.layout, what) from error

    @classmethod
    def existing(cls, path: str | PathLike[str]) -> Root:
        """The root of a store that no daemon has open. What is no store stays as it is; another user's root
        is refused: its daemon could not write what is made here."""
        layout, mend = Layout(os.path.abspath(path)), "run this as the user of its daemon (sudo -u USER ...)"
        try:
            owner = os.stat(layout.versioned).st_uid
        except (FileNotFoundError, NotADirectoryError):
            raise _unusable(layout, "is not a store: give --root, or its daemon's --config") from None
        except OSError as error:
            raise _unusable(layout, f"cannot be read ({error.strerror}): {mend}") from None
        if os.geteuid() != owner:
            raise _unusable(
                layout,
                f"belongs to uid {owner}: {mend}, or its daemon cannot write the files that this creates",
            )
        return cls(layout.root)

    def is_there(self) -> bool:
        """Whether the root still lies where it was opened; OSError where that cannot be told."""
        try:
            lock, objects = os.stat(self.layout.lock), os.stat(self.layout.objects)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(lock, os.fstat(self._lock)) and os.path.samestat(objects, self._objects)

    @property
    def is_open(self) -> bool:
        return self._lock >= 0

    def close(self) -> None:
        """Lets the root go. The lock file stays: unlinking it would let two daemons lock two files."""
        if self.is_open:
            os.close(self._lock)
            self._lock = -1

    def filled_in(self, limits: Limits) -> tuple[int, int]:
        """(max_bytes, min_free_bytes), with the defaults for what `limits` leaves open."""
        fs = os.statvfs(self.layout.versioned)
        first = str(min(200 * GIB, fs.f_bavail * fs.f_frsize // 4))
        max_bytes, min_free = limits.max_bytes, limits.min_free_bytes
        if max_bytes is None:
            try:
                max_bytes = int(self._remember(self.layout.budget, lambda: first))
            except ValueError:
                raise errors.RootUnusable(
                    f"{self.layout.budget} is damaged: it must hold a number, the budget in bytes; delete it "
                    "(the next start chooses one), or set PREPCACHED_MAX_BYTES",
                    root=self.layout.root,
                ) from None
        return max_bytes, max(fs.f_blocks * fs.f_frsize // 20, 10 * GIB) if min_free is None else min_free

    def free_bytes(self) -> int:
        """What the filesystem would still give to this process."""
        fs = os.statvfs(self.layout.versioned)
        return fs.f_bavail * fs.f_frsize

    def _check_no_other_layout(self) -> None:
        for name in os.listdir(self.layout.root):
            path = os.path.join(self.layout.root, name)
            is_other = re.fullmatch(r"v\d+", name) and path != self.layout.versioned
            if is_other and os.path.isdir(path):
                raise _unusable(
                    self.layout,
                    f"has a folder {name} of another version of prepcached, which this one cannot use: "
                    f"remove it (`rm -rf {shlex.quote(path)}`; its entries are preprocessed again), or "
                    "choose another root (--root)",
                )

    def _take_lock(self) -> int:
        fd = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise errors.RootInUse(
                f"{self.layout.root} is in use by another prepcached (pid {pid}): give jobs its URL "
                "(PREPCACHE_URL), stop it (`prepcached stop`), or choose another root (--root)",
                root=self.layout.root,
                pid=pid,
            ) from None
        except BaseException:
            os.close(fd)
            raise
        text = f"{os.getpid()}\n".encode()
        os.pwrite(fd, text, 0)  # before the rest is cut off: a full disk has no other block to give
        os.ftruncate(fd, len(text))
        return fd

    def _make_folders(self) -> None:
        layout = self.layout
        _folder(layout.versioned, 0o2710)  # the group finds in it what it was told of
        _folder(layout.objects, 0o2711)
        _folder(layout.staging, 0o3730)  # setgid: files get the group; sticky: only owners unlink
        _folder(layout.tmp, 0o2700)
        for _, path in layout.object_folders():
            _folder(path, 0o2711)  # searchable, not listable: who knows a digest may read it
        for path in (layout.objects, layout.versioned, layout.root):
            durable.fsync_folder(path)
        self._remember(os.path.join(layout.root, "CACHEDIR.TAG"), lambda: CACHEDIR_TAG)
        self._remember(os.path.join(layout.root, "README"), lambda: README)

    def _remember(self, path: str, first: Callable[[], str]) -> str:
        """The text of a small file, written at the first call ever."""
        with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            if text := file.read():
                return text
        text = first()
        durable.write_file(self.layout.root, os.path.basename(path), text.encode(), tmp=self.layout.tmp)
        return text


def _unusable(layout: Layout, what: str) -> errors.RootUnusable:
    return errors.RootUnusable(f"{layout.root} {what}", root=layout.root)


def _folder(path: str, mode: int) -> None:
    """Makes a folder with exactly this mode, whatever the umask; so too one that a crash left of ours."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(20, "Not a directory", path) from None
    status = os.stat(path)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
        os.chmod(path, mode)


def give(layout: Layout, group: int) -> None:
    """Gives a group what jobs read and write by path, as far as this user may.
    Folders hand it on to what is made in them (setgid)."""
    root = os.path.realpath(layout.root)  # a link to it has a group of its own
    for path in (root, layout.instance, layout.versioned, layout.objects, layout.staging, layout.tmp):
        _give(path, group)
    status = os.stat(root)
    if status.st_gid == group:  # else it would be opened to another
        with contextlib.suppress(OSError):
            os.chmod(root, stat.S_IMODE(status.st_mode) | stat.S_IXGRP)
    for _, folder in layout.object_folders():
        if os.stat(folder).st_gid == group:  # it was given last, and so are its files
            continue
        with os.scandir(folder) as artifacts:
            for artifact in artifacts:
                _give(artifact.path, group)
        _give(folder, group)


def _give(path: str, group: int) -> None:
    with contextlib.suppress(OSError):
        if os.lstat(path).st_gid != group:
            os.chown(path, -1, group, follow_symlinks=False)
