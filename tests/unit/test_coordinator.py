"""The coordinator by itself: clients that hang up, and sessions that end, at the worst moment."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from prepcache.errors import StoreError, UnknownSession
from prepcache.protocol import wire
from prepcached.auth import Caller, Peer
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon, Session
from prepcached.store import eviction
from prepcached.store.compaction import FANOUT
from prepcached.store.store import Store
from support.serving import READY_S
from support.stores import RECIPE, ROOMY, item, items_of, put, stage

pytestmark = pytest.mark.anyio


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon without a server, whose store knows the recipe."""
    store = Store(tmp_path / "root", limits=ROOMY)
    daemon = Daemon(store)
    await daemon.start()
    store.register(RECIPE, "tests.recipe", {})
    yield daemon
    await daemon.stop()


@pytest.fixture
async def session(daemon: Daemon) -> Session:
    return daemon.open_session(Caller(os.getuid(), Peer(1, 0)), "job", 1, "here")


@pytest.fixture
async def found(daemon: Daemon) -> Coordinator:
    return Coordinator(daemon)


async def leased(found: Coordinator, session: Session) -> wire.LeaseToken:
    request = wire.LeaseRequest(lease="l", recipe=RECIPE, generation=0, items=item("a"), want=1)
    lease = (await found.lease(session, request)).lease
    assert lease is not None
    return wire.LeaseToken(lease.id, lease.token)


def staged(daemon: Daemon, session: Session) -> wire.StagedFile:
    file = stage(daemon.store, ["a"], session=session.id)
    return wire.StagedFile(file.name, file.size_bytes)


async def test_a_lease_after_a_merge_looks_again(found, daemon, session):
    """A job that looked up while its parts were merged finds them gone; their items are made already."""
    generation = [put(daemon.store, name) for name in range(FANOUT)][-1].generation
    daemon.leases.raise_generation(RECIPE, generation)
    request = wire.LeaseRequest(lease="l", recipe=RECIPE, generation=generation, items=item(0), want=1)
    loop, unlink = asyncio.get_running_loop(), eviction.finish
    answers: list[wire.LeaseAnswer] = []

    def lease_then_unlink(*given: Any) -> None:
        asking = asyncio.run_coroutine_threadsafe(found.lease(session, request), loop)
        answers.append(asking.result(READY_S))
        unlink(*given)

    with mock.patch.object(eviction, "finish", lease_then_unlink):
        assert await asyncio.to_thread(daemon.store.merge_some)
    [answer] = answers
    assert answer.lease is None and answer.look_again is not None
    assert [ref.items for ref in answer.look_again.artifacts] == [FANOUT]


async def test_a_repeated_commit_waits_for_the_first(found, daemon, session, monkeypatch):
    begun, may_go_on = threading.Event(), threading.Event()
    commit = daemon.store.commit

    def slow(*given: Any, **kinds: Any) -> Any:
        begun.set()
        assert may_go_on.wait(60)
        return commit(*given, **kinds)

    monkeypatch.setattr(daemon.store, "commit", slow)
    file = staged(daemon, session)
    found.stage(session, file.name, file.size_bytes)  # as one that was uploaded
    request = wire.CommitRequest((await leased(found, session),), file)
    first = asyncio.create_task(found.commit(session, request))
    assert await asyncio.to_thread(begun.wait, 60)
    again = asyncio.create_task(found.commit(session, request))
    asyncio.get_running_loop().call_soon(may_go_on.set)
    assert await again == await first, "and what it has in hand is not deleted as refused"
    assert items_of(daemon.store) == [item("a")]


async def test_a_failed_commit_keeps_its_lease_and_no_file(found, daemon, session, monkeypatch):
    leases = (await leased(found, session),)
    with monkeypatch.context() as patch, pytest.raises(StoreError):
        patch.setattr(daemon.store, "commit", mock.Mock(side_effect=StoreError("the disk says no")))
        await found.commit(session, wire.CommitRequest(leases, staged(daemon, session)))
    assert os.listdir(daemon.store.staging) == []
    assert (await found.commit(session, wire.CommitRequest(leases, staged(daemon, session)))).artifact


async def test_a_commit_that_failed_at_its_end_is_looked_up(found, daemon, session, monkeypatch):
    commit = daemon.store.commit

    def fail(*given: Any, **kinds: Any) -> Any:
        commit(*given, **kinds)
        raise StoreError("the disk says no")

    token = await leased(found, session)
    request = wire.CommitRequest((token,), staged(daemon, session))
    other = daemon.open_session(Caller(os.getuid(), Peer(1, 0)), "other", 2, "here")
    asked = wire.LeaseRequest("m", RECIPE, 0, item("a"), want=1, wait_s=2.0)
    waiting = asyncio.create_task(found.lease(other, asked))
    monkeypatch.setattr(daemon.store, "commit", fail)
    with pytest.raises(StoreError):
        await found.commit(session, request)
    daemon.leases.release(session.id, token.id, token.token)
    again = (await waiting).look_again
    assert again is not None and len(again.artifacts) == 1, "and is not made once more"


async def test_what_is_committed_while_the_lead_is_asked_is_looked_up(found, daemon, session):
    """Also where the lease table was told to ask the store: another commit had failed at its end."""

    async def share(*_: object) -> tuple[None, tuple[()]]:
        await asyncio.to_thread(put, daemon.store, "a")
        daemon.leases.forget_generation(RECIPE)
        return None, ()

    found.tier = mock.AsyncMock(upstream=mock.Mock(share=share))
    found.tier.hurried = mock.Mock(return_value=set())  # type: ignore[method-assign]
    request = wire.LeaseRequest("l", RECIPE, 0, item("a"), want=1)
    answer = await found.lease(session, request)
    assert answer.lease is None and answer.look_again is not None


async def test_holds_of_a_session_that_just_ended_are_given_back(found, daemon, session, monkeypatch):
    ref = put(daemon.store, "a").artifact
    resolve, loop = daemon.store.resolve, asyncio.get_running_loop()

    def resolve_then_end(*given: Any, **kinds: Any) -> Any:
        answer = resolve(*given, **kinds)
        loop.call_soon_threadsafe(daemon.end_session, session.id, "it did")
        return answer

    monkeypatch.setattr(daemon.store, "resolve", resolve_then_end)
    with pytest.raises(UnknownSession):
        await found.resolve(session, wire.ResolveRequest(RECIPE, hold=True))
    assert daemon.store.entry(ref.key).holds == 0
