"""Parse results kept per user, so that an unchanged project is neither read nor parsed again.

    $XDG_CACHE_HOME/prepcache/code-v<PARSE_VERSION>-<python>-O<level>/<digest of the entry's path>.json

One shard for each entry file holds what was parsed for it: a checksum, a line end, and JSON.

Invariants:
    1. A result is used only under the very stamp it was made under, taken before and after the read.
    2. A stamp younger than the racy limit when it was read is used in this process only, never kept.
    3. A damaged or foreign shard is an empty one. Shards are replaced whole, by rename.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.parsed import PARSE_VERSION, Parsed, parse
from prepcache.protocol.places import cache_folder

RACY_S = 2.0
"""Seconds. A file changed this shortly before it was read may change again under the same stamp."""

Stamp = tuple[int, int, int, int, int]


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells one state of a file from another: device, inode, size, mtime and ctime in ns."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_stamped(path: str) -> tuple[bytes, Stamp]:
    """The bytes of a file and the stamp they were read under.

    Raises:
        OSError: if it cannot be read.
        UnkeyableError: if it keeps changing while it is read.
    """
    for _ in range(3):
        with open(path, "rb", opener=_quiet_open) as file:
            before = stamp_of(os.fstat(file.fileno()))
            data = file.read()
            if stamp_of(os.fstat(file.fileno())) == before:
                return data, before
    raise UnkeyableError(f"{path} is being written: it changed each time while it was read")


def _quiet_open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def cache_home() -> str:
    """The user's cache folder for prepcache."""
    return os.fspath(cache_folder(os.environ))


class Memory:
    """Parse results of one project, in this process and on disk."""

    def __init__(self, shard: str | None = None, *, clock: Any = time.time) -> None:
        self._clock = clock
        self._parsed: dict[str, tuple[Stamp, Parsed]] = {}
        self._kept: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        self._is_stale = False
        self._path = None if shard is None else _shard_path(shard)
        self._codes: dict[str, tuple[Stamp, Any]] = {}
        if self._path is not None:
            self._load(self._path)

    def _load(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                check, _, body = file.read().partition(b"\n")
            if blake3(body).hexdigest().encode() != check:
                return
            self._kept = dict(json.loads(body))
        except (OSError, ValueError, TypeError):
            self._kept = {}

    def parsed(self, path: str, name: str) -> Parsed:
        """What the file at `path` says.

        Raises:
            UnkeyableError: if it cannot be read or parsed; the message names it and the ways out.
        """
        try:
            stamp = stamp_of(os.stat(path))
        except OSError as error:
            raise _unreadable(path, name, error) from error
        known = self._parsed.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        row = self._kept.get(path)
        if row is not None and tuple(row[0]) == stamp:
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
                parsed = Parsed.from_json(row[1])
                if row[2] is not None:
                    codes = {
                        name: [(line, digest) for line, digest in found] for name, found in row[2].items()
                    }
                    self._codes[path] = (stamp, codes)
                self._parsed[path] = (stamp, parsed)
                self._used[path] = row
                return parsed
        try:
            data, stamp = read_stamped(path)
            parsed = parse(data, name)
        except OSError as error:
            raise _unreadable(path, name, error) from error
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise UnkeyableError(
                f"{name} cannot be parsed ({error}), so what it imports is unknown; mend it, or name the "
                f"files that count with code=[paths], or count by hand with code=None and version=",
                path=path,
            ) from error
        self._parsed[path] = (stamp, parsed)
        if self._clock() - max(stamp[3], stamp[4]) / 1e9 > RACY_S:
            self._used[path] = [list(stamp), parsed.to_json(), None]
            self._is_stale = True
        return parsed

    def stamp(self, path: str) -> Stamp | None:
        """The stamp of the state of a file that was parsed; None if it was not."""
        return self._parsed[path][0] if path in self._parsed else None

    def compiled(self, path: str, codes_in: Callable[[bytes, str], Any]) -> tuple[Parsed, Any]:
        """What the file at `path` says, and what `codes_in(bytes, path)` makes of it, of one state of it.

        Raises:
            UnkeyableError: as `parsed`.
        """
        for _ in range(3):
            parsed = self.parsed(path, path)
            stamp = self._parsed[path][0]
            known = self._codes.get(path)
            if known is not None and known[0] == stamp:
                return parsed, known[1]
            try:
                data, read_at = read_stamped(path)
            except OSError as error:
                raise _unreadable(path, path, error) from error
            if read_at == stamp:
                codes = codes_in(data, path)
                self._codes[path] = (stamp, codes)
                if path in self._used:
                    self._used[path][2] = codes
                    self._is_stale = True
                return parsed, codes
        raise UnkeyableError(f"{path} is being written: it changed each time while it was read", path=path)

    def save(self) -> None:
        """Writes the shard if it changed. A cache that cannot be written is none: errors are let go."""
        if self._path is None or not self._is_stale:
            return
        self._is_stale = False
        body = json.dumps(self._used, separators=(",", ":")).encode()
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                dir=os.path.dirname(self._path), prefix=".tmp-", delete=False
            ) as file:
                try:
                    file.write(blake3(body).hexdigest().encode() + b"\n" + body)
                    file.close()
                    os.replace(file.name, self._path)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(file.name)
                    raise


def _shard_path(shard: str) -> str:
    name = blake3(os.fsencode(shard)).hexdigest()[:24]
    version = f"code-v{PARSE_VERSION}-{sys.implementation.cache_tag}-O{sys.flags.optimize}"
    return os.path.join(cache_home(), version, f"{name}.json")


def _unreadable(path: str, name: str, error: OSError) -> UnkeyableError:
    return UnkeyableError(
        f"{name}: its source cannot be read ({error.strerror or error}: {path}); restore it, or count by "
        f"hand with code=None and version=",
        path=path,
    )
