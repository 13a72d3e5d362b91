"""Where the user's own daemon keeps its store and listens, and what else lies in the user's cache folder.

Invariants:
    1. Both sides, and every job of a user, come to the same places from the same environment: else a
       second daemon would be started beside the first.
    2. A socket's path fits into `sun_path`; where the natural one does not, a short one is derived from it
       under /tmp, in a folder that only its owner can enter.

Pure: paths are computed here, not touched.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 107
"""`sun_path` holds 108 bytes with its closing zero (unix(7))."""

SYSTEM_SOCKET = Path("/run/prepcache/prepcached.sock")
"""Of the system service (deploy/)."""


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
    """The socket of the user's own daemon: in `$XDG_RUNTIME_DIR`, else in its root; under /tmp where that
    is too long a path for one.

    The name tells roots apart, since one runtime folder serves all of a user's cache folders.

    Args:
        root: of the daemon, where it is not `own_root`.
    """
    root = root or own_root(environ)
    tag = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    natural = root / "prepcached.sock"
    if os.path.isabs(runtime):
        natural = Path(runtime) / "prepcache" / f"{tag}.sock"
    if len(os.fsencode(natural)) <= MAX_SOCKET_PATH_BYTES:
        return natural
    return _short_folder() / f"{tag}.sock"


def is_public(socket: Path) -> bool:
    """Whether a socket lies where another user could have been first: in the short folder under /tmp."""
    return socket.parent == _short_folder()


def _short_folder() -> Path:
    return Path(f"/tmp/prepcache-{os.getuid()}")
