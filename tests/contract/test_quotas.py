"""Quotas of users: who exceeds his loses his own coldest entries first, and is declined last."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import prepcache
from prepcache.daemon.client import Client
from prepcache.daemon.session import Session
from prepcache.errors import ConfigError, DaemonUnreachable, Declined
from prepcache.fill.share import Share
from prepcache.index.artifact_set import ArtifactSet
from prepcached import config as settings
from prepcached.store.records import Filter, Limits, UserBytes
from prepcached.store.store import Store
from support.serving import serving
from support.stores import BLOCK, Clock, item, items_of, put

ME, OTHER = 1001, 1002
QUOTA = Limits(max_bytes=100 * BLOCK, min_free_bytes=0, user_quota_bytes=3 * BLOCK, quotas={OTHER: 5 * BLOCK})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    found = Store(tmp_path / "root", limits=QUOTA, clock=clock)
    yield found
    found.sweep_staging("s".__ne__)
    assert found.check() == []
    found.close()


def fill(store: Store, clock: Clock, owner: int, names: str, holder: str | None = None) -> None:
    for name in names:
        clock.now += 1
        put(store, name, owner_uid=owner, holder=holder)


def test_a_user_over_his_quota_loses_his_own_coldest(store, clock):
    fill(store, clock, OTHER, "xyz")
    fill(store, clock, ME, "abcde")
    assert items_of(store) == sorted(map(item, "xyzcde"))
    assert store.stats().users == (
        UserBytes(OTHER, 3 * BLOCK, 5 * BLOCK),
        UserBytes(ME, 3 * BLOCK, 3 * BLOCK),
    )


def test_he_is_declined_when_what_he_has_is_held(store, clock):
    fill(store, clock, ME, "abc", holder="job")
    with pytest.raises(Declined, match="user_quota"):
        put(store, "d", owner_uid=ME)
    fill(store, clock, OTHER, "x")
    assert items_of(store) == sorted(map(item, "abcx"))
    assert store.stats().reserved_bytes == 0
    store.release("job")
    put(store, "d", owner_uid=ME)
    assert len(items_of(store)) == 4


def test_nothing_of_his_goes_for_a_write_that_will_not_fit(store, clock):
    fill(store, clock, OTHER, "xyz")
    fill(store, clock, ME, "ab", holder="job")
    fill(store, clock, ME, "c")
    with pytest.raises(Declined, match="user_quota"):
        put(store, "d", owner_uid=ME, size_bytes=BLOCK)
    assert items_of(store) == sorted(map(item, "xyzabc"))


def test_a_lowered_quota_is_kept_in_the_background(store, clock):
    fill(store, clock, OTHER, "vwxyz")
    fill(store, clock, ME, "abc")
    store.set_limits(Limits(max_bytes=100 * BLOCK, min_free_bytes=0, quotas={OTHER: 2 * BLOCK}))
    store.maintain()
    assert items_of(store) == sorted(map(item, "yzabc"))
    fill(store, clock, ME, "defg")
    assert len(items_of(store)) == 9, "who has no quota has none"


def test_sums_by_user_survive_restarts_and_removals(store, clock, tmp_path):
    fill(store, clock, ME, "abc")
    fill(store, clock, OTHER, "x")
    store.purge(Filter(keys=(store.entries(Filter(owner=OTHER)).entries[0].key,)))
    assert store.stats().users == (UserBytes(ME, 3 * BLOCK, 3 * BLOCK),)
    store.close()
    again = Store(tmp_path / "root", limits=QUOTA, clock=clock)
    assert again.stats().users == (UserBytes(ME, 3 * BLOCK, 3 * BLOCK),)
    again.close()


def test_isolated_users_see_their_own_sums_alone(tmp_path, monkeypatch):
    with serving(tmp_path, isolation="user", user_quota=10 * BLOCK) as served:
        put(served.store, "a", owner_uid=OTHER)
        put(served.store, "b", owner_uid=os.getuid())
        told = served.http().get("/v1/stats").json()["users"]
        assert {one["owner"] for one in told} == {OTHER, os.getuid()}, "the daemon's own user sees all"
        assert {one["quota_bytes"] for one in told} == {10 * BLOCK}
        monkeypatch.setattr(served.daemon.auth, "_trusted", set())
        told = served.http().get("/v1/stats").json()["users"]
        assert [one["owner"] for one in told] == [os.getuid()]


@pytest.mark.parametrize(
    "text", ['quotas = "nobody-of-this-name=1GiB"', "[quotas]\nroot = 'much'", "quotas = 3"]
)
def test_wrong_quotas_are_refused_by_name(tmp_path, text):
    config = tmp_path / "config.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match="quotas"):
        settings.load({}, {"HOME": "/home/x"}, config)


def test_batches_follow_what_the_disk_leaves_of_the_budget(tmp_path, monkeypatch):
    with serving(tmp_path) as served, Client(f"unix://{served.uds}") as client:
        monkeypatch.setattr(served.store.disk, "free_bytes", lambda: 64 << 20)
        artifacts = ArtifactSet(prepcache.recipe(os.path.basename), client, root=None, trust="stat")
        Share.suit_cache(share := Mock(_artifacts=artifacts))
        assert share.pace.commit_bytes == 2 << 20


def test_no_room_is_said_once_though_the_disk_fills_up(tmp_path, monkeypatch, capsys):
    with serving(tmp_path, min_free=1 << 50) as served, Client(f"unix://{served.uds}") as client:
        left = itertools.count(1 << 39, -(1 << 33))
        monkeypatch.setattr(served.store.disk, "free_bytes", lambda: next(left))
        prepcache.CachedDataset(range(5), abs, client=client)
        Session.current(client).close()
    assert capsys.readouterr().err.count("no room for new samples") == 1


def test_no_room_is_said_where_the_opening_said_something_else(tmp_path, monkeypatch, capsys):
    away = iter([DaemonUnreachable("it was away")])
    resolve = Session.resolve

    def resolve_later(self, *given, **named):
        for error in away:
            raise error
        return resolve(self, *given, **named)

    monkeypatch.setattr(Session, "resolve", resolve_later)
    with serving(tmp_path, min_free=1 << 50) as served, Client(f"unix://{served.uds}") as client:
        prepcache.CachedDataset(range(5), abs, client=client)
        Session.current(client).close()
    assert "not stored: no room for new samples" in capsys.readouterr().err
