"""A cache of a test's own: environment variables that lead jobs and commands to it, and its daemon's end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prepcache.protocol.places import own_root
from support import programs

if TYPE_CHECKING:
    from support.forked import Daemons

NO_TORCH = Path(__file__).parent / "no_torch"

ROOM = {"PREPCACHED_MIN_FREE": "0", "PREPCACHED_MAX_BYTES": "1GiB"}
"""What daemons of tests may keep, however full the disk is that tests run on."""


@dataclass(frozen=True)
class Sandbox:
    """A short folder (socket paths hold 107 bytes) and the environment that keeps its daemon in it.

    Args:
        folder: of everything.
        daemons: who starts its daemon before a job would, for less.
    """

    folder: Path
    daemons: Daemons | None = None

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PREPCACHE")}
        return (
            kept | ROOM | {"XDG_CACHE_HOME": str(self.folder / "cache"), "XDG_RUNTIME_DIR": str(self.folder)}
        )

    def environ_of(self, *script: str | Path) -> dict[str, str]:
        """The environment of a job, without torch where no script of it names torch."""
        texts = [*map(str, script), *(path.read_text() for path in self.folder.rglob("*.py"))]
        texts += [Path(self.folder, one).read_text() for one in script if str(one).endswith(".py")]
        if any("torch" in text for text in texts):
            return self.environ
        before = [self.environ["PYTHONPATH"]] if self.environ.get("PYTHONPATH") else []
        return self.environ | {"PYTHONPATH": os.pathsep.join([str(NO_TORCH), *before])}

    def start_daemon(self, environ: Mapping[str, str] | None = None) -> None:
        """On a crowded machine it may take longer to start than a job would wait for it."""
        if self.daemons is not None:
            self.daemons.start(self.environ | dict(environ or {}))
            return
        self.python(
            "-c",
            "from prepcache.daemon import waits; "
            "waits.PROCESS.__init__(120.0); "
            "import prepcache; prepcache.CachedDataset(['started'], len, progress=False)",
            environ=environ,
        )

    def python(
        self, *arguments: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs this Python to its end; a job that fails fails the test, with what it said."""
        env = self.environ_of(*arguments) | dict(environ or {})
        return programs.python(*arguments, env=env, cwd=cwd or self.folder)


@contextmanager
def sandbox(daemons: Daemons | None = None) -> Iterator[Sandbox]:
    """A sandbox, whose daemon is ended and whose folder is removed at the end."""
    box = Sandbox(Path(tempfile.mkdtemp(prefix="pc-")), daemons)
    try:
        yield box
    finally:
        _end_daemon(own_root(box.environ))
        shutil.rmtree(box.folder)


def _end_daemon(root: Path) -> None:
    """Kills the daemon that has the root, if one has: what it would finish is looked at no more."""
    with contextlib.suppress(FileNotFoundError), open(root / "lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.kill(int(lock.read()), signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)  # it is gone
