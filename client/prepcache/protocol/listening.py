"""Where a running daemon listens, noted in its root, and what one does whose start takes long.

The first is for those whose environment leads to another socket.
A job of cron, a container or an ssh command has no `$XDG_RUNTIME_DIR`: it looks for its user's daemon in the
root, while the one that a login session started listens in the runtime folder, and has the root's lock.

Invariants:
    1. A note is believed only where it is a plain file of this user that nobody else can write to, and
       names a socket of this user: whoever listens there decides what a job reads.
    2. A note without a daemon (it was killed) is harmless: whoever follows it finds that nobody listens, or
       that the process which it names, by its number and its start, is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from prepcache.protocol.places import MAX_SOCKET_PATH_BYTES
from prepcache.protocol.units import printable

NAME = "listening"
STARTING_NAME = "starting"
MAX_TOLD_BYTES = 4096
_SCHEME = "unix://"
_STATE_FIELD, _START_TICKS_FIELD = 0, 19
"""Of /proc/PID/stat, behind the name; see proc_pid_stat(5)."""


def note(root: str | os.PathLike[str], socket: str) -> None:
    """Notes the socket of the daemon that has this root."""
    _write(Path(root) / NAME, os.fsencode(f"{_SCHEME}{socket}\n"))


def forget(root: str | os.PathLike[str]) -> None:
    """Takes the note away; only the daemon that has the root may."""
    with contextlib.suppress(OSError):
        (Path(root) / NAME).unlink()


def noted(root: str | os.PathLike[str]) -> Path | None:
    """The noted socket, if the note may be believed and names one that is there, listened to or not."""
    try:
        fd = os.open(Path(root) / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return None
            text = os.fsdecode(file.read(len(_SCHEME) + MAX_SOCKET_PATH_BYTES + 2))
        path = text.removeprefix(_SCHEME).removesuffix("\n")
        is_path = text == f"{_SCHEME}{path}\n" and os.path.isabs(path) and path.isprintable()
        if not is_path or len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            return None
        there = os.lstat(path)
    except OSError:
        return None
    return Path(path) if stat.S_ISSOCK(there.st_mode) and there.st_uid == os.geteuid() else None


def note_starting(root: str | os.PathLike[str], does: str) -> None:
    """Notes that this process, which has the root, does not serve yet, and what it does; nothing: it does."""
    path = Path(root) / STARTING_NAME
    with contextlib.suppress(OSError):
        if does:
            _write(path, f"{os.getpid()} {start_ticks(os.getpid())} {does}".encode()[:MAX_TOLD_BYTES])
        else:
            path.unlink()


def starting(root: str | os.PathLike[str]) -> tuple[int, str] | None:
    """The process whose start takes long, and what it does."""
    try:
        path = Path(root) / STARTING_NAME
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            pid, ticks, does = file.read(MAX_TOLD_BYTES).decode("utf-8", "replace").split(" ", 2)
        return (int(pid), printable(does)) if is_alive(int(pid), int(ticks)) else None
    except (OSError, ValueError):
        return None


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


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
