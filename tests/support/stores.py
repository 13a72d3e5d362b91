"""Small artifacts and a store to put them in."""

import contextlib
import ctypes
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from blake3 import blake3

from prepcache import artifact
from prepcache.artifact.writer import Writer
from prepcache.digests import RecipeDigest
from prepcache.errors import Declined
from prepcache.protocol.wire import Committed, StagedFile
from prepcached.store import commit, eviction, queries
from prepcached.store.db import artifacts
from prepcached.store.records import Limits
from prepcached.store.store import Store

RECIPE = RecipeDigest(blake3(b"recipe").hexdigest())
OTHER_RECIPE = RecipeDigest(blake3(b"other recipe").hexdigest())
BLOCK = 8192
"""Bytes on disk of an artifact of one small item."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where nothing is cut short, the many fsyncs may go to memory; tests/crash has the disks."""
ROOMY = Limits(max_bytes=1 << 30, min_free_bytes=0)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def item(name: object) -> bytes:
    """A made-up item's digest."""
    return blake3(repr(name).encode()).digest()


def write_artifact(
    fd: int,
    items: Iterable[object],
    *,
    recipe: RecipeDigest = RECIPE,
    size_bytes: int = 100,
    cost_s: float = 0.5,
    observed: Any = (),
    seed: int = 0,
    edition: int = 0,
) -> artifact.Document:
    """An artifact with one sample of about `size_bytes` for each item."""
    writer = Writer(recipe, edition)
    for name in items:
        digest = item(name)
        values = np.random.default_rng([seed, *digest]).integers(0, 256, size_bytes, np.uint8)
        writer.add(digest, [{"x": values}], cost_s)
    producer = {"recipe": "tests.recipe", "script": "train.py", "seed": seed}
    return writer.write(fd, producer=producer, observed=observed)


def stage(place: Store | str, items: Iterable[object], *, session: str = "s", **kinds: Any) -> StagedFile:
    """An artifact in the staging folder, as a client would leave it."""
    folder = place if isinstance(place, str) else place.staging
    name = f"{session}.{secrets.token_hex(8)}"
    fd = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        write_artifact(fd, items, **kinds)
        return StagedFile(name, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def put(
    store: Store,
    *names: object,
    recipe: RecipeDigest = RECIPE,
    scope: str = "",
    holder: str | None = None,
    owner_uid: int | None = None,
    in_transaction: Callable[[Any], None] | None = None,
    parts: Any = None,
    **kinds: Any,
) -> Committed:
    """Registers, stages and commits one artifact."""
    store.register(recipe + scope, "tests.recipe", parts or {"format": 1})
    staged = stage(store, names, recipe=recipe, **kinds)
    owner = os.getuid() if owner_uid is None else owner_uid
    scoped = recipe + scope
    with contextlib.ExitStack() as seams:
        if in_transaction is not None:  # at the end of the commit's transaction
            patch = mock.patch.object(commit, "_check_observed", lambda conn, *_: in_transaction(conn))
            seams.enter_context(patch)
        return store.commit(scoped, staged, owner_uid=owner, holder=holder)


def failing(
    patch: pytest.MonkeyPatch, owner: Any, name: str, error: OSError, when: Callable[[str], bool]
) -> None:
    """Calls of a function fail whose path is such a one."""
    call = getattr(owner, name)

    def fail(path: Any, *given: Any, **named: Any) -> Any:
        if when(str(path)):
            raise error
        return call(path, *given, **named)

    patch.setattr(owner, name, fail)


def evict_to_fit(store: Store, size_bytes: int) -> bool:
    """Makes room for so many bytes, as a commit does; False (and nothing evicted) when it cannot be made."""
    try:
        with eviction.room(store, size_bytes, os.getuid()):
            return True
    except Declined:
        return False


def digests_on_disk(store: Store) -> set[str]:
    """What lies in the objects folder."""
    return {path.name for path in Path(store.objects).glob("*/*")}


def disk_use(store: Store) -> int:
    """Bytes on disk of all artifacts, by their blocks."""
    return sum(path.lstat().st_blocks * 512 for path in Path(store.objects).glob("*/*"))


def hold(store: Store, session: str, digest: str) -> None:
    """A hold on one artifact alone, used just now."""
    core = store
    [row] = eviction.rows_of(core, artifacts.c.digest, [bytes.fromhex(digest)])
    core.holds.take(session, [(row.digest, row.disk_bytes, row.is_pinned)], core.monotonic())
    core.used[row.digest] = core.clock()


def sums_agree(store: Store) -> bool:
    """Whether the running counters are what the index comes to."""
    with store.index.read() as conn:
        totals = queries.totals(conn)
    counted, ledger = store.counters, store.ledger
    return totals[:4] == (counted.entries, counted.size_bytes, ledger.live_bytes, counted.pinned_bytes)


def content(store: Store, digest: str) -> bytes:
    return (Path(store.objects) / digest[:2] / digest).read_bytes()


def items_of(store: Store, recipe: str = RECIPE) -> list[bytes]:
    """All item digests that `resolve` leads to, after each artifact's bytes were checked."""
    found = []
    for ref in store.resolve(recipe).artifacts:
        assert blake3(content(store, ref.digest)).hexdigest() == ref.digest
        opened = artifact.open(Path(store.objects) / ref.digest[:2] / ref.digest, size_bytes=ref.size_bytes)
        found += [row.tobytes() for row in opened.item_digests]
    return sorted(found)


def sync(path: Path) -> None:
    """Makes everything on the path's filesystem durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)
