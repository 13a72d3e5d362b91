"""Daemons on demand, forked: loading what one needs takes most of its start, and hundreds of tests have one.

Run as a program it is a fork server, which loads that once, then forks a daemon for every line
`{"environ", "socket", "root"}` on stdin, and says whether it `{"listens"}`. Such a daemon differs from one
that a job starts (test_on_demand.py) in nothing but whose child it is.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path

from prepcache.daemon import launcher
from prepcached import cli
from support.fork_server import hear, say
from support.serving import wait_until


def _serve(environ: dict[str, str], socket: str, root: str) -> None:
    """Becomes the daemon; the test's pipes are not its own."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    for folder in (Path(socket).parent, Path(root)):
        folder.mkdir(parents=True, exist_ok=True)
    log = os.open(Path(root) / launcher.LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for mine, inherited in ((null, 0), (log, 1), (log, 2)):
        os.dup2(mine, inherited)
    os.closerange(3, 64)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)
    idle_exit = str(launcher.IDLE_EXIT_S)
    sys.argv = ["prepcached", "serve", "--uds", socket, "--root", root, "--idle-exit", idle_exit]
    cli.main()


def _fork_daemons() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to reap them
    while line := hear():
        order = json.loads(line)
        if os.fork() == 0:
            try:
                _serve(**order)
            finally:
                os._exit(70)
        say({"listens": wait_until(lambda socket=Path(order["socket"]): launcher.listens(socket))})


if __name__ == "__main__":
    gc.freeze()
    _fork_daemons()
