"""Python programs of a test's own, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 240.0
"""What takes so long waits for what does not come; a crowded machine may take many seconds for a start."""


def python(
    *arguments: str | Path, code: int = 0, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs this Python to its end, without input; it must end with that exit code.

    Args:
        env: the whole environment; by default that of the tests.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ if env is None else env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
