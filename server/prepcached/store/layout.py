"""Where things are under a root. Pure: names in, paths out, nothing is read or written here.

    <root>/
      CACHEDIR.TAG  README        for backup tools and for people
      lock                        flock of the one daemon; holds its pid
      instance                    names this root; a client looks for it before it trusts a folder
      budget                      the default budget, remembered from the first start
      prepcached.sock             of a user's own daemon, unless another place was chosen
      v1/                         everything of layout version 1
        index.sqlite (-wal -shm)  disposable: made again from the rest
        objects/<2 hex>/<digest>  artifacts, never changed in place
        staging/<session>.<name>  what clients write before they commit
        tmp/                      the daemon's own half-written files; emptied at every start

Invariants:
    1. `tmp`, `staging` and `objects` are on one filesystem, so that a rename between them is atomic.
    2. A name from outside becomes a path only through `object_path` or `staged_name`, which take 64 hex
       digits or one harmless path component and refuse the rest.
    3. An incompatible layout gets a new `VERSION`, hence a new folder. A root that holds the folder of
       another version is refused (root.py): what lies there would take room that nobody counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from prepcache import errors
from prepcache.digests import is_hex64

VERSION = 1
OBJECT_FOLDERS = 256
CACHEDIR_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder is a cache of prepcached; backup programs may leave it out.\n"
)
README = (
    "This folder belongs to prepcached, which keeps preprocessed tensors for training jobs.\n"
    "Do not change files in it. To free space use `prepcache purge`; with the daemon stopped the whole\n"
    "folder may be deleted, and everything in it is recomputed when it is needed.\n"
)

_STAGED = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}\.[0-9A-Za-z][0-9A-Za-z_.-]{0,99}\Z")


def staged_name(name: str) -> str:
    """`name` if it may name a staged file: `<session id>.<anything>`, one path component."""
    if not is_staged_name(name):
        raise errors.StagedFileRefused(
            f"{name[:120]!r} cannot name a staged file; it must be <session id>.<name> of letters, "
            "digits, '-', '_' and '.', at most 100 each",
            name=name[:120],
        )
    return name


def is_staged_name(name: str) -> bool:
    return _STAGED.match(name) is not None


def session_of(staged: str) -> str:
    return staged.partition(".")[0]


class Layout:
    """The paths of one root (`root` absolute)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.lock = os.path.join(root, "lock")
        self.instance = os.path.join(root, "instance")
        self.budget = os.path.join(root, "budget")
        self.versioned = os.path.join(root, f"v{VERSION}")
        self.index = os.path.join(self.versioned, "index.sqlite")
        self.objects = os.path.join(self.versioned, "objects")
        self.staging = os.path.join(self.versioned, "staging")
        self.tmp = os.path.join(self.versioned, "tmp")

    def object_folder(self, digest: str) -> str:
        return os.path.join(self.objects, _checked(digest)[:2])

    def object_path(self, digest: str) -> str:
        return os.path.join(self.object_folder(digest), digest)

    def object_folders(self) -> Iterator[tuple[str, str]]:
        for n in range(OBJECT_FOLDERS):
            yield f"{n:02x}", os.path.join(self.objects, f"{n:02x}")


def _checked(digest: str) -> str:
    if not is_hex64(digest):
        raise errors.BadRequest(f"{digest[:80]!r} is not 64 lower-case hex digits", value=digest[:80])
    return digest
