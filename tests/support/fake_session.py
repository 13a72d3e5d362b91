"""A daemon and its sessions in one process: the real lease table, artifacts as files in a folder.

It stands where a test must make the daemon misbehave at one exact step; whole paths are tested with the
real one.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from blake3 import blake3

from prepcache import artifact
from prepcache.daemon import waits
from prepcache.digests import Digest
from prepcache.errors import Declined, StagedFileRefused
from prepcache.protocol import wire
from prepcached.leases import LeaseTable


@dataclass
class FakeStaged:
    path: Path
    fd: int

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        os.close(self.fd)
        self.path.unlink(missing_ok=True)


@dataclass
class FakeDaemon:
    """What all sessions share. `room` is how many bytes still fit."""

    folder: Path
    clock: Callable[[], float] = time.monotonic
    room: float = float("inf")
    lock: threading.Lock = field(default_factory=threading.Lock)
    vain_s: float = 0.0

    def __post_init__(self) -> None:
        self.table = LeaseTable(self.clock)
        self.artifacts: dict[str, list[tuple[int, wire.ArtifactRef]]] = {}

    def generation(self, recipe: str) -> int:
        return max((generation for generation, _ in self.artifacts.get(recipe, [])), default=0)

    def resolved(self, recipe: str, since: int) -> wire.Resolved:
        refs = tuple(ref for generation, ref in self.artifacts.get(recipe, []) if generation > since)
        return wire.Resolved(self.generation(recipe), since == 0, refs)


class FakeSession:
    """As session.py. `fail` is called with the name of each method first, and may raise."""

    is_gone = False
    is_away = False
    order = 0

    def __init__(self, daemon: FakeDaemon, name: str = "job") -> None:
        self.daemon = daemon
        self.name = name
        self.fail: Callable[[str], None] = lambda method: None
        self.header = "session.token"
        self.calls: list[str] = []
        self.dropped: list[wire.ArtifactRef] = []
        self.heartbeat = SimpleNamespace(look=lambda: None, note_lost=self._note_lost)
        self._staged = 0

    def _called(self, method: str) -> None:
        self.calls.append(method)
        self.fail(method)

    def resolve(self, recipe: Any, generation: int = 0, hold: bool = True, register: bool = False) -> Any:
        self._called("resolve")
        with self.daemon.lock:
            return self.daemon.resolved(recipe.digest, generation)

    def lease(
        self,
        recipe: str,
        generation: int,
        items: Any,
        *,
        want: int,
        cost_s: float,
        nbytes: int,
        wait_s: float,
        left: int = 0,
    ) -> wire.LeaseAnswer:
        self._called("lease")
        daemon = self.daemon
        with daemon.lock:
            if nbytes > daemon.room:
                return wire.LeaseAnswer(is_declined=True, reason="no room")
            daemon.table.raise_generation(recipe, daemon.generation(recipe))
            answer = daemon.table.grant(
                self.name, self.name, recipe, generation, np.ascontiguousarray(items).tobytes(),
                lease_id=os.urandom(16).hex(), want=want, cost_s=cost_s,
            )  # fmt: skip
            if answer.is_behind:
                return wire.LeaseAnswer(look_again=daemon.resolved(recipe, generation))
            lease = answer.lease and wire.Lease(answer.lease.id, answer.lease.token, answer.lease.span_s)
            held = tuple(wire.Holder(who, count) for who, count in answer.held.items())
            waited_for = {(one.session, one.recipe) for one in daemon.table.waited_for()}
            is_waited_for = (self.name, recipe) in waited_for
            return wire.LeaseAnswer(None, lease, tuple(answer.granted), held, is_waited_for=is_waited_for)

    def stage(self) -> FakeStaged:
        self._called("stage")
        self._staged += 1
        path = self.daemon.folder / f"{self.name}.{self._staged}"
        return FakeStaged(path, os.open(path, os.O_RDWR | os.O_CREAT))

    def give_up_for_now(self, why: str) -> None:
        """There is nobody who would come back."""

    def waited_in_vain(self, seconds: float) -> None:
        self.daemon.vain_s += max(0.0, seconds)

    @property
    def spare_s(self) -> float:
        return max(0.0, waits.SPARE_S - self.daemon.vain_s)

    def wait_for_return(self, seconds: float) -> bool:
        """Nothing more may be spent."""
        return False

    def look_at_end(self) -> None:
        """Nothing has come back."""

    def at_return(self, callback: Callable[[], None]) -> None:
        """Nothing comes back."""

    def at_close(self, callback: Callable[[], None]) -> None:
        self._called("at_close")

    def commit(
        self, leases: Sequence[wire.Lease], staged: Sequence[FakeStaged], *, limit_s: float | None = None
    ) -> wire.Committed:
        self._called("commit")
        daemon = self.daemon
        size = sum(os.fstat(file.fd).st_size for file in staged)
        with daemon.lock:
            if size > daemon.room:
                raise Declined("no room can be made")
            commit = daemon.table.begin_commit(self.name, [(lease.id, lease.token) for lease in leases])
            refs, items = [], []
            if not all(file.path.exists() for file in staged):
                daemon.table.abort_commit(commit)
                raise StagedFileRefused("it was taken already")
            for file in staged:
                header = artifact.check(file.fd)
                items += [bytes(digest) for digest in header.item_digests]
                digest = Digest(blake3(file.path.read_bytes()).hexdigest())
                file.path.rename(daemon.folder / digest)
                refs.append(
                    wire.ArtifactRef(
                        header.key, digest, header.size_bytes, header.items, header.rows, header.cost_s
                    )
                )
            if not commit.items.issuperset(items):
                daemon.table.abort_commit(commit)
                raise StagedFileRefused("it holds items that its leases do not name")
            daemon.room -= size
            generation = daemon.generation(commit.recipe) + 1
            daemon.artifacts.setdefault(commit.recipe, []).extend((generation, ref) for ref in refs)
            daemon.table.finish_commit(commit, items, generation)
            return wire.Committed(generation, tuple(refs))

    def _note_lost(self, lease: str) -> None:
        self.calls.append("lost")
        with self.daemon.lock:
            self.daemon.table.forsake(self.name, [lease])

    def path_of(self, ref: wire.ArtifactRef) -> str:
        return str(self.daemon.folder / ref.digest)
