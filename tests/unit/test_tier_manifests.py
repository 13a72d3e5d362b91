"""Manifests of the shared tier: bad input, and daemons that write and compact at the same time."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import obstore
import pytest
from blake3 import blake3
from obstore.store import MemoryStore

from prepcache.digests import Digest
from prepcached.tier import manifests as manifest
from prepcached.tier.bucket import STALL_S, Bucket, Damaged
from prepcached.tier.manifests import Manifests, Row

RECIPE = "ab" * 32


def row(number: int, items: int = 2, edition: int = 0, observed: tuple[str, ...] = ()) -> Row:
    digests = [blake3(f"{number} {at}".encode()).digest() for at in range(items)]
    name = Digest(blake3(f"{number} {edition} {observed}".encode()).hexdigest())
    return Row(name, 100 + number, b"".join(digests), 0.5, edition, observed)


@pytest.mark.parametrize(("count", "items"), [(5, 200_000), (manifest.MAX_ROWS + 1, 1)])
def test_many_rows_are_split_into_objects_that_can_be_read(count, items):
    rows = [row(number, items) for number in range(count)]
    objects = list(manifest.encode(rows))
    assert len(objects) > 1
    assert all(len(data) <= manifest.MAX_OBJECT_BYTES for data in objects)
    assert [one for data in objects for one in manifest.decode(data)] == rows


def told(**members: Any) -> bytes:
    good = {
        "digest": "0" * 64,
        "size_bytes": 10,
        "cost_s": 1.0,
        "edition": 0,
        "observed": [],
        "items": base64.b64encode(b"i" * 32).decode(),
    }
    return json.dumps({"version": 1, "artifacts": [{**good, **members}]}).encode()


@pytest.mark.parametrize("data", [
    b"", b"{}", b'{"version": 2, "artifacts": []}', b'{"version": 1, "artifacts": 7}',
    b'{"version": 1, "artifacts": [[]]}', b"[" * 100_000, told(digest="../../etc/passwd"),
    told(size_bytes=-1), told(size_bytes=(64 << 30) + 1), told(cost_s=float("nan")), told(items=""),
    told(edition=-1), told(observed="abc"), told(observed=["x" * 129]),
    told(observed=["x"] * (manifest.MAX_OBSERVED + 1)), told(items="not base64"),
    told(items=base64.b64encode(b"short").decode()),
])  # fmt: skip
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(Damaged):
        manifest.decode(data)


def test_what_was_refreshed_or_read_other_inputs_is_new():
    old = row(1, items=3)
    told = manifest.index([old, row(2, observed=("a",)), row(3, observed=("b",))])
    assert manifest.brings_nothing(old, told)
    assert not manifest.brings_nothing(row(1, items=4), told), "one item more"
    assert not manifest.brings_nothing(row(1, items=3, edition=1), told), "refreshed"
    assert not manifest.brings_nothing(row(2, observed=("c",)), told), "an observed input has changed"
    parts = [row(2, observed=("a",)), row(3, observed=("b",))]
    merged = Row(Digest("f" * 64), 9, parts[0].items + parts[1].items, 1.0, 0, ("a", "b"))
    assert manifest.brings_nothing(merged, told), "a merged artifact brings nothing new"


def test_of_an_item_the_highest_edition_is_read():
    new = row(1, edition=2)
    told = manifest.index([row(1), new, row(1, edition=1)])
    assert set(told.values()) == {(new,)}
    both = manifest.index([row(1, observed=("a",)), row(1, observed=("b",))])
    assert all(len(rows) == 2 for rows in both.values())


@pytest.mark.anyio
async def test_garbage_beside_a_manifest_is_ignored():
    bucket = Bucket(MemoryStore(), "memory:///")
    manifests = Manifests(bucket)
    await manifests.add(RECIPE, [row(1)])
    await bucket.put(f"manifests/v1/{RECIPE}/shared/garbage.json", b"\0garbage")
    assert (await manifests.of(RECIPE, max_age_s=0)).rows.keys() == {row(1).digest}


@pytest.mark.anyio
async def test_what_is_known_of_the_bucket_is_bounded(monkeypatch):
    """Of one recipe, however many objects its manifest has, and of all."""
    bucket = Bucket(MemoryStore(), "memory:///")
    for number in range(3 * manifest.AT_ONCE):
        await bucket.put(f"manifests/v1/{RECIPE}/shared/{number}.json", manifest.encode([row(number)])[0])
    manifests = Manifests(bucket)
    monkeypatch.setattr(manifest, "READ_BYTES", 1)
    known = await manifests.of(RECIPE)
    assert len(known.objects) == len(known.rows) == manifest.AT_ONCE
    monkeypatch.setattr(manifest, "KEPT_ITEMS", 1)
    assert await manifests.of(RECIPE) is known
    await manifests.of("cd" * 32)
    assert await manifests.of(RECIPE) is not known


@pytest.mark.anyio
async def test_what_the_bucket_lost_is_named_no_longer():
    """Until it is copied again."""
    store = Bucket(MemoryStore(), "memory:///")
    manifests = Manifests(store)
    for number in range(2):
        await manifests.add(RECIPE, [row(number)])
    known = await manifests.of(RECIPE)
    known.lost.add(row(1).digest)
    first, second = row(0).digest, row(1).digest
    assert (await manifests.of(RECIPE, max_age_s=0)).rows.keys() == {first}
    assert not known.offered(row(1).items, 0.0) and known.offered(row(0).items, 0.0)
    await manifests.compact(RECIPE)
    assert (await Manifests(store).of(RECIPE)).rows.keys() == {first}
    await Manifests(store).add(RECIPE, [row(1)])
    assert (await manifests.of(RECIPE, max_age_s=0)).rows.keys() == {first, second}


@pytest.mark.anyio
async def test_each_piece_of_a_manifest_has_the_time_out(monkeypatch):
    loop, past_s = asyncio.get_running_loop(), 0.0
    time = loop.time

    async def pieces(**_: Any) -> AsyncIterator[bytes]:
        nonlocal past_s
        for step in range(8):
            past_s += STALL_S / 3
            await asyncio.sleep(0)  # a time-out comes due now, and cancels at the next
            if step % 2:
                yield b"x"

    monkeypatch.setattr(loop, "time", lambda: time() + past_s)
    answer = SimpleNamespace(meta={"size": 4}, stream=pieces)
    monkeypatch.setattr(obstore, "get_async", mock.AsyncMock(return_value=answer))
    assert await Bucket(None, "").get("manifest", 4) == b"xxxx"


class Racing(Bucket):
    """A bucket in which other daemons act between any two steps of one."""

    def __init__(self, store: MemoryStore, seed: int) -> None:
        super().__init__(store, "memory:///")
        self._random = random.Random(seed)

    async def _let_others(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)

    async def get(self, name: str, limit: int) -> bytes:
        await self._let_others()
        return await super().get(name, limit)

    async def put(self, name: str, data: Any, **options: Any) -> None:
        await self._let_others()
        await super().put(name, data, **options)

    async def delete(self, names: list[str]) -> None:
        for name in names:
            await self._let_others()
            await super().delete([name])


@pytest.mark.anyio
async def test_daemons_that_compact_at_once_lose_nothing():
    """Two daemons add and compact one manifest 200 times, in many orders."""

    async def write(daemon: Manifests, at: int) -> None:
        for number in range(4):
            await daemon.add(RECIPE, [row(10 * at + number)])
            await daemon.compact(RECIPE)

    written = {row(10 * at + number).digest for at in range(2) for number in range(4)}
    for seed in range(50):  # 4 compactions by 2 daemons each
        store = MemoryStore()
        await asyncio.gather(*(write(Manifests(Racing(store, seed * 2 + at)), at) for at in range(2)))
        assert (await Manifests(Bucket(store, "")).of(RECIPE)).rows.keys() == written
