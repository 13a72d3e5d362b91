"""Leases and commits of a session: given back where an answer was lost, waited for, refused, uploaded."""

import contextlib
import os
import tempfile
from typing import Any

import pytest

from prepcache.daemon.waits import on_own_time
from prepcache.errors import DaemonUnreachable, PrepcacheError, StoreError
from prepcache.protocol import wire
from prepcache.protocol.places import cache_folder
from support.fake_daemon import Request, hang, problem, reply
from support.sessions import RECIPE, Bench, SomeRecipe, bench_fixture, items, ref, wait_until  # noqa: F401


def test_a_lease_names_items_as_one_run_of_digests(bench):
    answer = bench.session.lease(RECIPE, 3, items(5), want=2, cost_s=1.5, nbytes=10, wait_s=60.0)
    assert answer.granted == (0, 1) and answer.lease == wire.Lease("l1", "lt", 15.0)
    sent = bench.sent("POST", "/v1/leases")[0].json
    assert sent["items"] == items(5).tobytes().hex()
    assert (sent["generation"], sent["want"], sent["wait_s"]) == (3, 2, wire.MAX_WAIT_S)


def told_lost(bench: Bench) -> list[tuple[str, list[str]]]:
    """Of each request for a lease: its id, and those that it gives back."""
    return [(sent.json["lease"], sent.json["lost"]) for sent in bench.sent("POST", "/v1/leases")]


def test_a_lease_with_a_lost_answer_is_given_back(bench):
    answers = [None, problem("store-error", 500), None]

    def lose(request: Request) -> Any:
        return answers.pop() if answers else bench.world.on_post_leases(request)

    bench.world.said["POST leases"] = lose
    bench.world.said["POST sessions/beat"] = lambda r: problem("store-error", 500)
    with pytest.raises(StoreError):
        bench.session.lease(RECIPE, 0, items(1), want=1)
    assert bench.session.lease(RECIPE, 0, items(1), want=1).granted == (0,)
    bench.session.lease(RECIPE, 0, items(1), want=1)
    told = told_lost(bench)
    ids = [lease for lease, _ in told]
    assert len(set(ids)) == len(told) == 5, "an id is never used twice"
    assert [set(lost) for _, lost in told] == [
        set(), set(ids[:1]), set(ids[:2]), set(ids[:3]), set()
    ]  # fmt: skip


def test_a_lost_lease_is_given_back_by_a_heartbeat(bench):
    bench.world.said["POST leases"] = lambda r: problem("store-error", 500)
    with pytest.raises(StoreError):
        bench.session.lease(RECIPE, 0, items(1), want=1)
    bench.session.heartbeat.note_lost("kept")
    expected = sorted([told_lost(bench)[0][0], "kept"])
    wait_until(lambda: any(beat.json["lost"] == expected for beat in bench.sent("POST", "/s1/beat")))
    heard = len(bench.sent("POST", "/s1/beat"))
    wait_until(lambda: len(bench.sent("POST", "/s1/beat")) > heard + 1)
    assert bench.sent("POST", "/s1/beat")[-1].json["lost"] == []


def test_a_lease_on_items_that_were_not_asked_for_is_a_lie(bench):
    bench.world.said["POST leases"] = lambda r: reply(
        {"lease": {"id": "l", "token": "t", "deadline_s": 1}, "granted": [5]}
    )
    with pytest.raises(DaemonUnreachable, match="answer is invalid"):
        bench.session.lease(RECIPE, 0, items(2), want=2)
    assert bench.session.is_gone


@pytest.mark.parametrize("answer", ["stored", "declined", "lease-lapsed", "none"])
def test_a_commit_without_an_answer_is_repeated(bench, answer):
    asked: list[Request] = []

    def commit(request: Request) -> Any:
        asked.append(request)
        if len(asked) == 1 or answer == "none":
            return None
        return bench.world.on_post_leases_commit(request) if answer == "stored" else problem(answer, 409)

    bench.world.said["POST leases/commit"] = commit
    with (
        tempfile.TemporaryFile() as file,
        contextlib.nullcontext() if answer == "stored" else pytest.raises(PrepcacheError),
    ):
        bench.session.commit([wire.Lease("l1", "lt", 1.0)], file.fileno())
    assert len(asked) > 1


def test_a_thread_stops_with_a_session_that_was_given_up(bench, monkeypatch):
    """Its leases may be known to nobody: who asks for their items in it gets none, and drops its work."""
    monkeypatch.setattr("prepcache.daemon.waits.LOOK_S", 1e6)
    bench.session.resolve(SomeRecipe())
    bench.world.said["POST resolve"] = lambda r: None
    with pytest.raises(DaemonUnreachable):
        bench.session.resolve(SomeRecipe())
    assert bench.session.budget.is_gone
    with on_own_time(60.0), pytest.raises(DaemonUnreachable):
        bench.session.lease(RECIPE, 0, items(5), want=2)
    assert bench.sent("POST", "/v1/leases") == []


def test_a_hanging_background_commit_ends_at_no_cost(bench, monkeypatch):
    """Others wait for its items."""
    monkeypatch.setattr("prepcache.daemon.waits.COMMIT_LIMIT_S", 0.3)
    bench.session.open()
    before = bench.session.budget.remaining_s
    bench.world.said["POST leases/commit"] = hang
    told = pytest.raises(DaemonUnreachable, match="no answer in time")
    with tempfile.TemporaryFile() as file, on_own_time(0.01), told:
        bench.session.commit([wire.Lease("l1", "lt", 1.0)], file.fileno())
    assert len(list((bench.world.root / "v1" / "staging").iterdir())) == 1, "it may be at it still"
    assert not bench.session.is_gone and bench.session.budget.remaining_s == before


def test_without_a_shared_folder_files_are_transferred(bench):
    from blake3 import blake3

    (bench.world.root / "instance").write_text("another daemon's")
    digest = blake3(b"data").hexdigest()
    bench.world.said["PUT leases/data"] = lambda r: reply({"name": "s1.up", "size_bytes": len(r.body)})
    bench.world.said["GET entries/data"] = lambda r: reply(b"data", ETag=f'"{digest}"')
    assert bench.session.staging() is None
    with tempfile.TemporaryFile() as file:
        os.write(file.fileno(), b"data")
        bench.session.commit([wire.Lease("l1", "lt", 1.0)], file.fileno())
    assert bench.sent("PUT", "/data")[0].body == b"data"
    assert bench.sent("POST", "/commit")[0].json["staged"] == {"name": "s1.up", "size_bytes": 4}
    path = bench.session.path_of(wire.ArtifactRef.from_json(ref(1, digest=digest)))
    assert path.read_bytes() == b"data"


def test_downloads_of_days_ago_that_are_needed_are_kept(bench):
    """Nothing is fetched again; what no job needs goes at the end of one."""
    (bench.world.root / "instance").write_text("another daemon's")
    bench.world.artifacts = [1, 2]
    found = bench.session.resolve(SomeRecipe())
    folder = cache_folder(os.environ) / "downloads-v1"
    folder.mkdir(parents=True)
    for name in ("forgotten", *(one.digest for one in found.artifacts)):
        (folder / name).write_bytes(b"data")
        os.utime(folder / name, (0.0, 0.0))
    paths = [bench.session.path_of(one) for one in found.artifacts]
    bench.session.close()
    assert sorted(folder.iterdir()) == sorted(paths) and not bench.sent("GET", "/data")
