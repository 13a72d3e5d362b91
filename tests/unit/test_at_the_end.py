"""At its end the interpreter takes modules apart: what a job does then does not meet what is left of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

JOB = """
import builtins, contextlib, json, sys
import prepcache
from prepcache.keys.observation import audit, context

class Last:
    '''Opens a file when it is collected, as temporary files and loggers of libraries do.'''
    def __del__(self, open=open, write=sys.stdout.write):
        try:
            open("/dev/null").close()
        except BaseException as error:
            write(f"failed: {error!r}\\n")
        write("tried\\n")

prepcache.CachedDataset([1], str, progress=False)
for module in (prepcache, audit, context, builtins, contextlib, json, sys):
    module.last_of_all = Last()
"""


def test_what_opens_files_at_the_end_does_not_fail(tmp_path: Path) -> None:
    environ = os.environ | {"PREPCACHE": "off", "XDG_CACHE_HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tried" in done.stdout and "failed" not in done.stdout, done.stdout
    assert not done.stderr, done.stderr
