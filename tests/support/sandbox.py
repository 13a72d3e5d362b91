"""A cache of a test's own: environment variables that lead jobs and commands to it, and its daemon's end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOM = {"PREPCACHED_MIN_FREE": "0", "PREPCACHED_MAX_BYTES": "1GiB"}
"""What daemons of tests may keep, however full the disk is that tests run on."""


@dataclass(frozen=True)
class Sandbox:
    """A short folder (socket paths hold 107 bytes) and the environment that keeps its daemon in it."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PREPCACHE")}
        return (
            kept | ROOM | {"XDG_CACHE_HOME": str(self.folder / "cache"), "XDG_RUNTIME_DIR": str(self.folder)}
        )

    def start_daemon(self, environ: Mapping[str, str] | None = None) -> None:
        """On a crowded machine it may take longer to start than a job would wait for it."""
        self.python(
            "-c",
            "from prepcache.control.patience import PROCESS; PROCESS.__init__(60.0); "
            "import prepcache; prepcache.CachedDataset(['started'], len, progress=False)",
            environ=environ,
        )

    def python(
        self, *arguments: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs this Python to its end; a job that fails fails the test, with what it said."""
        result = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environ | dict(environ or {}),
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, (
            f"{arguments}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        )
        return result


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """A sandbox, whose daemon is stopped and whose folder is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pc-"))
    box = Sandbox(folder)
    try:
        yield box
    finally:
        subprocess.run(
            [sys.executable, "-m", "prepcached", "stop"],
            env=box.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        shutil.rmtree(folder)
