"""Where the user's own daemon keeps its store and listens, and what else lies in the user's cache folder.

Invariants:
    1. Both sides, and every job of a user, come to the same places from the same environment. So the socket
       is in the root, and not in `$XDG_RUNTIME_DIR`, which a job of cron, a container or ssh has not.
    2. Both sides refuse a root in which the socket's path would not fit into `sun_path`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 107  # `sun_path` holds 108 bytes with its closing zero (unix(7))
SYSTEM_SOCKET = Path("/run/prepcache/prepcached.sock")  # of the system service (deploy/)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/prepcache`. A relative value is ignored, as the XDG specification says."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = environ.get("HOME") or os.path.expanduser("~")
        cache = os.path.join(home if os.path.isabs(home) else "/", ".cache")  # the box may not know the user
    return Path(cache) / "prepcache"


def own_root(environ: Mapping[str, str]) -> Path:
    """The root of the user's own daemon: `$PREPCACHED_ROOT`, else his cache folder."""
    chosen = environ.get("PREPCACHED_ROOT")
    return Path(os.path.abspath(chosen)) if chosen else cache_folder(environ)


def own_socket(environ: Mapping[str, str], root: Path | None = None) -> Path:
    """The socket of the user's own daemon."""
    return (root or own_root(environ)) / "prepcached.sock"
