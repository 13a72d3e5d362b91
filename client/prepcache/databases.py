"""Databases: which files `sqlite3.connect` reads, that SQLite opens in C, and which LMDB does.

What a writer has committed lies in the write-ahead log beside the file until somebody moves it over; so the
log counts, also that there is none. An empty log is none: readers make one, and remove it. A rollback journal
counts where there is one: a reader puts the file back by it.
"""

from __future__ import annotations

import os
from typing import Any

CONNECTS = "sqlite3.connect"
"""The audit event; its first argument is the file, or a URI."""
_LOG, _JOURNAL = "-wal", "-journal"
_IN_MEMORY = ("", ":memory:")
_OF_LMDB = "data.mdb"


def files_of(database: Any) -> list[str]:
    """The files of a database, its own first; alone for one that is made anew, none for one in memory.

    Args:
        database: as it was given to `sqlite3.connect`.
    """
    path = _path(os.fsdecode(database))
    if path in _IN_MEMORY:
        return []
    if not os.path.exists(path):
        return [path]
    return [path, path + _LOG, *([path + _JOURNAL] if os.path.exists(path + _JOURNAL) else [])]


def file_under(path: str) -> str | None:
    """The file that a library in C opens that is handed a path; None if no regular file is there.

    LMDB is handed a folder. Its lock file says who reads, and nothing of what there is to be read.
    """
    if os.path.isfile(path):
        return path
    inner = os.path.join(path, _OF_LMDB)
    return inner if os.path.isfile(inner) else None


def is_empty_log(path: str, size_bytes: int) -> bool:
    """Whether a file says as much as if it were not there."""
    return not size_bytes and path.endswith((_LOG, _JOURNAL))


def without_suffix(path: str) -> str:
    """The database beside which a log or journal lies."""
    return path.removesuffix(_LOG).removesuffix(_JOURNAL)


def _path(name: str) -> str:
    """What a name leads to, be it a URI; that it may be one is not told to who hears of the event.

    Source: https://www.sqlite.org/uri.html
    """
    if not name.startswith("file:") or os.path.exists(name):
        return name
    from urllib.parse import unquote

    rest, _, query = name.removeprefix("file:").partition("#")[0].partition("?")
    if "mode=memory" in query.split("&"):
        return ""
    if rest.startswith("//"):  # an authority: none, or this host
        rest = "/" + rest.removeprefix("//").partition("/")[2]
    return unquote(rest)
