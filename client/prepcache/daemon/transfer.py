"""Artifacts' bytes, to the daemon and from it: by path where its folder is shared, else over HTTP.

Invariants:
    1. What honestly takes long does not count as waiting: a thread commits on its own time, so long as a slow
       disk may take, and a transfer has time for what it moved.
    2. A daemon that hangs costs the job no more than what is left of the wait budget.
    3. A file that the daemon was asked to take, and has not answered for, is left to it: it may be at it
       still. What it does not take goes with the session.

Not here: what the folder and its files are (folder.py), sessions and leases (session.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prepcache.daemon import waits
from prepcache.daemon.client import Client
from prepcache.daemon.folder import Downloads, SharedFolder, Staged
from prepcache.daemon.wait_budget import own_time
from prepcache.errors import DaemonUnreachable, PrepcacheError
from prepcache.protocol import wire
from prepcache.protocol.places import cache_folder

UPLOAD_BYTES = 1 << 20


def commit_limit_s(nbytes: int) -> float:
    """How long a commit of so many bytes may take."""
    return waits.COMMIT_LIMIT_S + nbytes / waits.SLOWEST_COMMIT


class Handover:
    """How one session hands artifacts over and gets at them.

    Args:
        client: for its transport and settings.
        run: `Session.run`, which keeps to the process's wait budget.
    """

    def __init__(self, client: Client, run: Callable[..., Any]) -> None:
        self._client = client
        self._run = run
        self._shared: SharedFolder | None = None
        self._scratch = cache_folder(os.environ)
        self._downloads = Downloads(self._scratch / "downloads-v1")

    def look_for_folder(self, answer: wire.SessionAnswer) -> None:
        """Finds out whether the store that the daemon names is here."""
        override = self._client.settings.folder
        self._shared = SharedFolder.find(override, answer.root, answer.staging, answer.instance)

    def stage(self, header: str) -> Staged:
        """See `Session.stage`; the file's name begins with the session's id, so that it is swept with it."""
        shared = self._shared if self._is_known() else None
        return Staged.new(shared, self._scratch / "staging-v1", header.partition(".")[0])

    def _is_known(self) -> bool:
        """Whether the daemon takes a file of ours: over TCP it cannot tell whose we are, and takes its own
        user's alone."""
        if self._client.endpoint.address.socket is not None:
            return True
        with contextlib.suppress(OSError):
            return self._shared is not None and Path(self._shared.staging).stat().st_uid == os.geteuid()
        return False

    def path_of(self, ref: wire.ArtifactRef) -> Path:
        """See `Session.path_of`."""
        if self._shared is not None:
            return self._shared.path_of(ref.digest)
        return self._downloads.path_of(ref.digest, ref.size_bytes, lambda fd: self._fetch(ref, fd))

    def commit(
        self, header: str, leases: Sequence[wire.Lease], staged: Sequence[Staged], limit_s: float | None
    ) -> wire.Committed:
        """See `Session.commit`."""
        first = leases[0].id
        asked_leases = tuple(wire.LeaseToken(lease.id, lease.token) for lease in leases)
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        files = tuple(self._named(one, first, header, until) for one in staged)
        asked = wire.CommitRequest(asked_leases, files)
        if limit_s is None:
            limit_s = commit_limit_s(sum(file.size_bytes for file in files))
            until = time.monotonic() + limit_s

        def attempt(left_s: float) -> wire.Committed:
            try:
                answer = self._client.transport.call(
                    "POST",
                    f"/v1/leases/{first}/commit",
                    asked.to_json(),
                    limit_s=min(left_s, _left_s(until)),
                    session=header,
                )
            except DaemonUnreachable as error:
                if error.data.get("why") == "broken" and time.monotonic() >= until:
                    told = f"the daemon at {self._client.url} did not store the samples"
                    raise DaemonUnreachable(f"{told} within {limit_s:.1f} s", **error.data) from error
                raise
            return self._client.transport.read(wire.Committed, answer)

        is_theirs = True
        try:
            committed: wire.Committed = self._run(attempt, wait_s=limit_s if own_time() else 0.0)
            return committed
        except PrepcacheError as error:
            is_theirs = isinstance(error, DaemonUnreachable)  # else this is its answer
            raise
        finally:
            if is_theirs:
                for one in staged:
                    one.taken()

    def _named(self, staged: Staged, lease: str, header: str, until: float) -> wire.StagedFile:
        """The staged file as a commit names it; uploads it where no folder is shared."""
        size_bytes = staged.size_bytes
        if staged.name is not None:
            return wire.StagedFile(staged.name, size_bytes)

        def attempt(left_s: float) -> wire.StagedFile:
            answer = self._client.transport.upload(
                f"/v1/leases/{lease}/data",
                _pieces(staged.fd),
                size_bytes,
                limit_s=min(_silence_s(left_s - waits.TRANSFER_LIMIT_S), _left_s(until)),
                until=until,
                session=header,
            )
            return self._client.transport.read(wire.StagedFile, answer)

        uploaded: wire.StagedFile = self._run(attempt, wait_s=waits.TRANSFER_LIMIT_S)
        return uploaded

    def _fetch(self, ref: wire.ArtifactRef, fd: int) -> None:
        """Downloads an artifact; once more where the connection breaks, within the budget."""

        def attempt(left_s: float) -> None:
            self._client.transport.download(
                f"/v1/entries/{ref.key}/data",
                fd,
                etag=f'"{ref.digest}"',
                max_bytes=ref.size_bytes,
                limit_s=_silence_s(left_s - waits.TRANSFER_LIMIT_S),
            )

        self._run(attempt, wait_s=waits.TRANSFER_LIMIT_S)


def _silence_s(left_s: float) -> float:
    """How long to bear silence, of what is left of the budget."""
    return max(0.1, min(waits.SILENCE_S, left_s))


def _left_s(until: float) -> float:
    """What is left until then; a moment in any case."""
    return max(0.1, until - time.monotonic())


def _pieces(fd: int) -> Iterator[bytes]:
    offset = 0
    while piece := os.pread(fd, UPLOAD_BYTES, offset):
        offset += len(piece)
        yield piece
