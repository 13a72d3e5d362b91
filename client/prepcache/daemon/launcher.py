"""A client of one daemon, as sessions use it: which daemon, and how the user's own one is started on demand.

Invariants:
    1. Of K first jobs exactly one starts a daemon: under a lock in the root, whose file names the process.
    2. The daemon inherits nothing: a session of its own, cwd `/`, no descriptors (else `python job.py | tee`
       never ends), output to a log in its root; it is no child.
    3. Starting never waits for the daemon: a request that needs it waits, on its own budget.
    4. A client is safe to share between threads and across fork, and pickles as what it was made from
       and what is left of its budget.

NOTE [ Which daemon is asked ]: PREPCACHE_URL, if set, alone. Else the system service's socket, if we may use
it and a process listens. Else the user's own daemon, started when it is needed, gone when it is idle.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import math
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from prepcache.daemon import waits
from prepcache.daemon.waits import PROCESS, OwnTime, WaitBudget
from prepcache.errors import DaemonUnreachable
from prepcache.forks import kept
from prepcache.protocol.places import MAX_SOCKET_PATH_BYTES, SYSTEM_SOCKET, own_root, own_socket
from prepcache.protocol.units import shortened, span_text
from prepcache.settings import Address, Mode, Settings, check_token

if TYPE_CHECKING:
    from prepcache.daemon.http import Transport
    from prepcache.protocol.wire import Message

M = TypeVar("M")

IDLE_EXIT_S = 600  # the daemon on demand stops when nobody did more than look for so long
NEVER = -math.inf
SERVER_MODULES = ("fastapi", "uvicorn", "sqlalchemy")
LOG_NAME = "prepcached.log"
LOCK_NAME = "start.lock"
MAX_LOG_BYTES = 1 << 20  # a longer log is renamed at the next start, in place of the one renamed before
SHORTER = "set PREPCACHED_ROOT to a folder with a shorter one"

# The shell's `&` makes the daemon an orphan: the job neither reaps it nor shows it among its children. Its
# redirections keep the pipe that carries the process id back from being inherited.
_SHELL = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'


class Endpoint:
    """A daemon that others run: it is not ours to start."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.answered_at = NEVER  # seconds since the epoch, when it answered this process last

    @property
    def is_listening(self) -> bool:
        """Whether a process that lives has the daemon's socket; over TCP that is not known without asking."""
        return self.address.socket is None or listens(Path(self.address.socket))

    @property
    def is_starting(self) -> bool:
        """Whether it was started on demand so shortly ago that it may not be ready yet."""
        return False

    def who(self) -> str:  # its process and log, where they are known
        return ""

    def start(self, *, is_reading: bool = False) -> bool:
        """Starts the daemon where it is ours to start; whether it is worth waiting for."""
        return False


def find(settings: Settings, environ: Mapping[str, str] | None = None) -> Endpoint:
    """The daemon that NOTE [ Which daemon is asked ] chooses. Touches nothing, starts nothing."""
    if settings.address is not None:
        return Endpoint(settings.address)
    if listens(SYSTEM_SOCKET):
        return Endpoint(Address(socket=str(SYSTEM_SOCKET)))
    environ = os.environ if environ is None else environ
    return Launcher(own_root(environ), environ)


def open_to(socket: Path) -> str:
    """Who may connect, for one who may not."""
    import grp

    with contextlib.suppress(OSError):
        status = socket.stat()
        if not status.st_mode & stat.S_IWGRP:
            return f"only user {status.st_uid} may connect"
        try:
            group = grp.getgrgid(gid := status.st_gid).gr_name
        except KeyError:  # as in a container
            return f"only the group {gid} may connect: run the container with --group-add {gid}"
        return f"only the group {group} may connect: `sudo usermod -aG {group} $USER`, then log in again"
    return "only the group that may enter its folder may connect"


def listens(path: Path) -> bool:
    """Whether somebody listens at a socket that we may use; a stale one has nobody."""
    import socket

    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        if stat.S_ISSOCK(path.stat().st_mode):
            probe.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # a full backlog: somebody is there, and busy
                probe.connect(str(path))
            return True
    return False


class Launcher(Endpoint):
    """The user's own daemon, which is started on demand, by default by this Python's `-m prepcached`."""

    def __init__(
        self, root: Path, environ: Mapping[str, str], command: tuple[str, ...] | None = None
    ) -> None:
        self.socket = own_socket(environ, root)
        self.root = root
        is_open = False  # where others could have laid out the socket, it must be the user's
        with contextlib.suppress(OSError):
            is_open = bool(root.stat().st_mode & 0o022)
        super().__init__(Address(socket=str(self.socket), owner=os.geteuid() if is_open else None))
        self.log = root / LOG_NAME
        self._environ = environ
        # -P: the daemon must not import a module of the folder that it happens to be started in.
        self._command = command or (sys.executable or "", "-P", "-m", "prepcached")
        self._started_at = NEVER
        self._has_ended = False  # without a word, so soon that it was started once more

    @property
    def has_store(self) -> bool:
        """Whether there is anything that a daemon could serve: a job that only reads starts none without."""
        return (self.root / "v1").is_dir()

    @property
    def pid(self) -> int:
        """Of the daemon that was started and runs, or 0."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.root / LOCK_NAME).read_text(encoding="ascii"))
            # A zombie's is empty; another program may have got its id, or the daemon of another root.
            if os.fsencode(self.socket) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        return 0

    def who(self) -> str:
        return f" (pid {pid}, log {self.log})" if (pid := self.pid) else f" (log {self.log})"

    @property
    def is_starting(self) -> bool:
        with contextlib.suppress(OSError):
            started_at = (self.root / LOCK_NAME).stat().st_mtime
            is_new = started_at > max(self.answered_at, time.time() - waits.STARTING_S)
            return is_new and bool(self.pid)
        return False

    def not_running(self) -> DaemonUnreachable:
        starts = "A job that stores something starts it"
        if why := self._told_error():
            starts = f"The last one ended with an error: {why} (log: {self.log})"
        told = f"no daemon runs for {self.root}. {starts}; to use another daemon, set PREPCACHE_URL"
        return DaemonUnreachable(told, url=self.address.url)

    def start(self, *, is_reading: bool = False) -> bool:
        """Starts the daemon unless somebody else just did; whether it will listen soon, if all is well."""
        if is_reading and not self.has_store:
            raise self.not_running()
        if len(os.fsencode(self.socket)) > MAX_SOCKET_PATH_BYTES:
            raise self._failed(f"its socket {self.socket} has too long a path: {SHORTER}")
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self.root / LOCK_NAME, flags, 0o600)
            try:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:  # another job is starting it
                    return True
                if not listens(self.socket) and not self.pid:
                    self._check_installed()
                    now, why = time.monotonic(), self._told_error()
                    is_early = now - self._started_at < waits.FAILED_START_S
                    if is_early and (why or self._has_ended):
                        told = f"it ended {span_text(now - self._started_at)} after its start"
                        why = why or "it was killed, or gave no reason"
                        raise self._failed(f"{told}: {why} (log: {self.log})")
                    self._started_at, self._has_ended = now, is_early
                    os.pwrite(lock, f"{self._spawn():<20}".encode(), 0)
            finally:
                os.close(lock)
        except OSError as error:
            where = "set XDG_CACHE_HOME or PREPCACHED_ROOT to a writable folder"
            raise self._failed(f"{error.filename or self.root}: {error.strerror}: {where}") from error
        except (subprocess.SubprocessError, ValueError) as error:
            raise self._failed(f"/bin/sh failed ({type(error).__name__})") from error
        return True

    def _check_installed(self) -> None:
        if not self._command[0]:
            why = "this Python is embedded in another program, so its command is unknown"
            raise self._failed(f"{why}: start `prepcached serve` yourself")
        missing = [name for name in SERVER_MODULES if importlib.util.find_spec(name) is None]
        if missing:
            raise self._failed(
                f"its dependencies are not installed ({', '.join(missing)}): "
                'in its checkout, pip install ".[server]", or set PREPCACHE_URL to a running daemon'
            )

    def _spawn(self) -> int:
        # Without the client's settings (not `PREPCACHED_*`); relative paths are made good for cwd `/`.
        environ = {k: v for k, v in self._environ.items() if not f"{k}_".startswith("PREPCACHE_")}
        if path := environ.get("PYTHONPATH"):
            environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
        places = ("--uds", str(self.socket), "--root", str(self.root))
        serve = ("serve", *places, "--idle-exit", str(IDLE_EXIT_S))
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                self.log.replace(f"{self.log}.1")
        os.close(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        done = subprocess.run(
            ["/bin/sh", "-c", _SHELL, "sh", str(self.log), *self._command, *serve],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environ,
            start_new_session=True,
            close_fds=True,
            umask=0o077,
            check=True,
            timeout=5.0,
        )
        return int(done.stdout)

    def _told_error(self) -> str:
        """The last line of the log, if it is the end of a failed start."""
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
            if lines and ("rror" in lines[-1] or "prepcached:" in lines[-1]):
                return shortened(lines[-1], 300)
        return ""

    def _failed(self, why: str) -> DaemonUnreachable:
        return DaemonUnreachable(f"the daemon cannot be started on demand: {why}", why="failed")


class BaseClient:
    """Speaks with one daemon. `prepcache.Client` is one, with the calls of people."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = waits.CALL_S,
        *,
        budget: WaitBudget = PROCESS,
    ) -> None:
        self._made_from = (url, token, timeout)
        self.settings = Settings.from_environ()
        if url is not None:
            self.settings = replace(self.settings, address=Address.parse(url))
        self.token = self.settings.token if token is None else check_token(token)
        self.timeout_s = timeout
        self.budget = budget

    def __reduce__(self) -> Any:
        return type(self), self._made_from, self.budget.left()

    def __setstate__(self, left: dict[str, Any]) -> None:
        self.budget.begin_with(left)

    def __repr__(self) -> str:
        return f"prepcache.Client({self.url!r})"

    @property
    def mode(self) -> Mode:
        return self.settings.mode

    @property
    def url(self) -> str:
        return self.endpoint.address.url

    @kept
    def endpoint(self) -> Endpoint:
        """The daemon that this client speaks with; decided at the first use."""
        return find(self.settings)

    @kept
    def transport(self) -> Transport:
        from prepcache.daemon.http import Transport

        return Transport(self.endpoint.address, self.token, self.endpoint.who)

    def start(self) -> bool:
        """Starts the user's own daemon where it is ours to start; whether it is worth waiting for."""
        return self.endpoint.start(is_reading=not self.mode.is_writing)

    def begin(self) -> None:
        """Starts the user's own daemon if it is not there. What goes wrong is said when it is needed."""
        if self.mode is not Mode.OFF and not self.endpoint.is_listening:
            with contextlib.suppress(DaemonUnreachable):
                self.start()

    def call(
        self,
        gives: type[M],
        method: str,
        path: str,
        body: Message | None = None,
        *,
        params: Mapping[str, str] | None = None,
        limit_s: float | None = None,
    ) -> M:
        """One exchange, within `limit_s` or the client's timeout; repeated while the daemon starts."""
        attempt = functools.partial(self.transport.call, method, path, body, gives=gives, params=params)
        start = functools.partial(self.endpoint.start, is_reading=True)  # an empty store has nothing to tell
        answer: M = OwnTime(limit_s or self.timeout_s).run(self.url, attempt, start=start)
        return answer

    def close(self) -> None:
        if "transport" in vars(self):
            self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
