"""Becomes a daemon on demand, with a socket and a root: what a job's launcher starts (test_on_demand.py).

Forked by `forked.Daemons`, it differs from that in nothing but whose child it is.
"""

import os
import sys
from pathlib import Path

from prepcache.daemon import launcher
from prepcached import cli

if __name__ == "__main__":
    _, socket, root = sys.argv
    os.setsid()
    os.umask(0o077)
    for folder in (Path(socket).parent, Path(root)):
        folder.mkdir(parents=True, exist_ok=True)
    log = os.open(Path(root) / launcher.LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for mine, inherited in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(mine, inherited)
    os.closerange(3, 64)
    idle_exit = str(launcher.IDLE_EXIT_S)
    sys.argv = ["prepcached", "serve", "--uds", socket, "--root", root, "--idle-exit", idle_exit]
    cli.main()
