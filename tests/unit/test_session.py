"""Sessions against a daemon that says what the test wants: open, forget, restart, fork, remove, lie."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import pytest

from prepcache.control.client import Client
from prepcache.control.patience import Patience, on_own_time
from prepcache.control.session import Session
from prepcache.errors import DaemonUnreachable, LeaseLapsed, StoreError, UnknownSession
from prepcache.protocol import wire
from support.fake_daemon import FakeDaemon, Hang, Request, problem, reply
from support.sessions import RECIPE, Bench, SomeRecipe, World, bench_fixture, items, ref, wait_until  # noqa: F401


def test_a_session_opens_at_its_first_use_and_is_one_per_process(bench: Bench) -> None:
    assert bench.daemon.requests == []
    assert Session.current(bench.session.client) is bench.session
    bench.session.resolve(SomeRecipe())
    bench.session.resolve(SomeRecipe())
    assert len(bench.sent("POST", "/v1/sessions")) == 1
    assert bench.sent("POST", "/v1/resolve")[0].headers["prepcache-session"] == "s1.t"


@pytest.mark.parametrize("hold", [True, False])
def test_a_daemon_that_turns_out_to_listen_elsewhere_is_asked_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, hold: bool
) -> None:
    client = Client(f"unix://{bench.daemon.path}.absent", patience=Patience(60.0))

    def start() -> bool:
        client._found, client._transport = bench.session.client.endpoint, None
        return True

    monkeypatch.setattr(client, "start", start)
    session = Session(client)
    try:
        assert session.resolve(SomeRecipe(), hold=hold).generation == 0
        assert client.patience.remaining_s > 50
    finally:
        session.close()


def test_a_resolve_without_hold_needs_no_session(bench: Bench) -> None:
    bench.world.artifacts = [7]
    found = bench.session.resolve(SomeRecipe(), hold=False)
    assert [r.digest for r in found.artifacts] == [f"{7:064x}"]
    assert [r.path for r in bench.daemon.requests] == ["/v1/resolve"]


def test_register_tells_the_readable_parts(bench: Bench) -> None:
    bench.session.resolve(SomeRecipe(), register=True)
    bench.session.resolve(SomeRecipe())
    told = [r.json["register"] for r in bench.sent("POST", "/v1/resolve")]
    assert told == [{"format": 1}, None]


def test_a_generation_from_the_future_is_asked_again_from_the_start(bench: Bench) -> None:
    def answer(request: Request) -> Any:
        if request.json["generation"] > 2:
            return problem("future-generation", 409)
        return reply(bench.world.resolved())

    bench.world.said["POST resolve"] = answer
    assert bench.session.resolve(SomeRecipe(), 9).generation == 0


def test_a_lease_names_items_as_one_run_of_digests(bench: Bench) -> None:
    answer = bench.session.lease(RECIPE, 3, items(5), want=2, cost_s=1.5, nbytes=10, wait_s=60.0)
    assert answer.granted == (0, 1) and answer.lease == wire.Lease("l1", "lt", 15.0)
    sent = bench.sent("POST", "/v1/leases")[0].json
    assert sent["items"] == items(5).tobytes().hex()
    assert (sent["generation"], sent["want"], sent["wait_s"]) == (3, 2, wire.MAX_WAIT_S)


def told_lost(bench: Bench) -> list[tuple[str, list[str]]]:
    """Of each request for a lease: its id, and those that it gives back."""
    return [(sent.json["lease"], sent.json["lost"]) for sent in bench.sent("POST", "/v1/leases")]


def test_a_lease_whose_answer_was_lost_is_given_back_with_the_next_request(bench: Bench) -> None:
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


def test_a_release_that_is_interrupted_is_told_with_the_next_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    lease = bench.session.lease(RECIPE, 0, items(1), want=1).lease
    assert lease is not None
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bench.session, "run", interrupted)
        bench.session.release(lease)
    bench.session.lease(RECIPE, 0, items(1), want=1)
    assert told_lost(bench)[-1][1] == [lease.id]


def test_a_lost_lease_is_given_back_by_a_beat_where_nothing_more_is_asked_for(bench: Bench) -> None:
    bench.world.said["POST leases"] = lambda r: problem("store-error", 500)
    bench.world.said["DELETE leases"] = lambda r: problem("store-error", 500)
    with pytest.raises(StoreError):
        bench.session.lease(RECIPE, 0, items(1), want=1)
    with pytest.raises(StoreError):
        bench.session.release(wire.Lease("kept", "t", 1.0))
    expected = sorted([told_lost(bench)[0][0], "kept"])
    wait_until(lambda: any(beat.json["lost"] == expected for beat in bench.sent("POST", "/s1/beat")))
    heard = len(bench.sent("POST", "/s1/beat"))
    wait_until(lambda: len(bench.sent("POST", "/s1/beat")) > heard + 1)
    assert bench.sent("POST", "/s1/beat")[-1].json["lost"] == []


def test_a_lease_on_items_that_were_not_asked_for_is_a_lie(bench: Bench) -> None:
    bench.world.said["POST leases"] = lambda r: reply(
        {"lease": {"id": "l", "token": "t", "deadline_s": 1}, "granted": [5]}
    )
    with pytest.raises(DaemonUnreachable, match="makes no sense"):
        bench.session.lease(RECIPE, 0, items(2), want=2)
    assert bench.session.is_gone


def test_a_forgotten_session_is_opened_anew_and_its_holds_are_taken_again(bench: Bench) -> None:
    bench.world.artifacts = [1, 2]
    removed: list[set[str]] = []
    bench.session.on_removed(removed.append)
    bench.session.resolve(SomeRecipe(), register=True)
    bench.world.artifacts = [2]

    def lease(request: Request) -> Any:
        if request.headers["prepcache-session"] == "s1.t":
            return problem("unknown-session", 410)
        return bench.world.on_post_leases(request)

    bench.world.said["POST leases"] = lease
    assert bench.session.lease(RECIPE, 0, items(1), want=1).granted == (0,)
    assert removed == [{f"{1:064x}"}]
    again = bench.sent("POST", "/v1/resolve")[-1]
    assert bench.session.beat._held == {f"{2:064x}"}
    assert again.headers["prepcache-session"] == "s2.t"
    assert again.json["hold"] and again.json["register"] == {"format": 1}


def test_holds_of_a_new_session_are_those_that_the_old_one_had(bench: Bench) -> None:
    bench.world.artifacts = [1]
    bench.session.resolve(SomeRecipe())
    with bench.session.stage() as staged:
        done = bench.session.commit([wire.Lease("l1", "lt", 1.0)], [staged])
    bench.world.artifacts = [2, 3]
    found = bench.session.resolve(SomeRecipe())
    bench.session.drop_hold(found.artifacts[:1])
    bench.world.artifacts = [1, 2, 3, 4]
    bench.session.reopen("s1.t")
    kept = {f"{n:064x}" for n in (1, 3)}
    assert {ref.digest for ref in done.artifacts} <= kept
    assert bench.session.beat._held == kept
    dropped = {f"{n:064x}" for n in (2, 4)}
    wait_until(lambda: any(dropped <= set(b.json["dropped"]) for b in bench.sent("POST", "/s2/beat")))


def test_a_daemon_that_forgets_for_ever_is_given_up(bench: Bench) -> None:
    bench.session.resolve(SomeRecipe())
    bench.world.said["POST resolve"] = lambda r: problem("unknown-session", 410)
    with pytest.raises(DaemonUnreachable, match="forgets a session"):
        bench.session.resolve(SomeRecipe())
    assert bench.world.opened == 2


def test_names_and_parts_are_sent_as_a_daemon_takes_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_PARTS_BYTES", 1000)
    recipe = SomeRecipe(
        name="a\nb\udcff" + "x" * 500, parts={"format": 1, "code": "c" * 2000, "config": "d" * 500}
    )
    bench.session.resolve(recipe, register=True)
    sent = bench.sent("POST", "/v1/resolve")[0].json
    assert sent["name"] == "ab" + "x" * 254
    assert sent["register"] == {"format": 1, "config": "d" * 500}


def test_a_daemon_restarted_within_patience_is_found_under_the_same_id(bench: Bench) -> None:
    bench.session.resolve(SomeRecipe())
    path = bench.daemon.path
    bench.daemon.close()
    again: list[FakeDaemon] = []
    timer = threading.Timer(0.2, lambda: again.append(FakeDaemon(path, bench.world)))
    timer.start()
    try:
        assert bench.session.lease(RECIPE, 0, items(1), want=1).granted == (0,)
        assert [r.headers["prepcache-session"] for r in again[0].requests if r.path == "/v1/leases"] == [
            "s1.t"
        ]
    finally:
        timer.join()
        bench.session.close()
        again[0].close()


def test_a_daemon_that_hangs_is_given_up_once_and_for_all(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def hang(request: Request) -> Any:
        raise Hang

    bench.session.resolve(SomeRecipe())
    bench.world.said["POST leases"] = hang
    for _ in range(3):
        with pytest.raises(DaemonUnreachable):
            bench.session.lease(RECIPE, 0, items(1), want=1)
    with pytest.raises(DaemonUnreachable):
        bench.session.resolve(SomeRecipe())
    assert len(bench.sent("POST", "/v1/leases")) == 1
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


@pytest.mark.parametrize(
    "code", ["unauthorized", "forbidden", "protocol-mismatch", "store-error", "limit-exceeded"]
)
def test_a_daemon_that_will_not_have_us_is_no_error_of_the_job(bench: Bench, code: str) -> None:
    bench.world.said["POST sessions"] = lambda r: problem(code, 403, "not for you")
    with pytest.raises(DaemonUnreachable, match="not for you"):
        bench.session.resolve(SomeRecipe())
    assert bench.session.is_gone


def test_no_room_that_a_beat_has_made_meanwhile_is_asked_for_again(bench: Bench) -> None:
    lease = bench.session.lease(RECIPE, 0, items(1), want=1).lease
    assert lease is not None
    header = bench.session.header
    assert header is not None
    asked = []

    def commit(request: Request) -> Any:
        asked.append(request)
        if len(asked) > 1:
            return bench.world.on_post_leases_commit(request)
        bench.session.beat.drop([f"{1:064x}"])
        bench.session.beat.tell(bench.session, header)
        return problem("declined", 507)

    bench.world.said["POST leases/commit"] = commit
    with bench.session.stage() as staged:
        os.write(staged.fd, b"data")
        assert bench.session.commit([lease], [staged]).generation == 1
    assert len(asked) == 2


def test_a_commit_names_leases_and_files_and_the_file_is_the_daemons_then(bench: Bench) -> None:
    lease = bench.session.lease(RECIPE, 0, items(1), want=1).lease
    assert lease is not None
    with bench.session.stage() as staged:
        os.write(staged.fd, b"data")
        path = staged.path
        assert path is not None
        assert bench.session.commit([lease], [staged]).generation == 1
    assert path.exists()
    assert bench.sent("POST", "/commit")[0].json == {
        "leases": [{"id": "l1", "token": "lt"}],
        "staged": [{"name": path.name, "size_bytes": 4}],
    }


def test_a_refused_commit_leaves_no_file(bench: Bench) -> None:
    bench.world.said["POST leases/commit"] = lambda r: problem("lease-lapsed", 409)
    lease = wire.Lease("l1", "lt", 1.0)
    with bench.session.stage() as staged, pytest.raises(LeaseLapsed):
        bench.session.commit([lease], [staged])
    assert list((bench.world.root / "v1" / "staging").iterdir()) == []


def test_a_commit_in_a_forgotten_session_says_so_and_the_next_use_opens_another(bench: Bench) -> None:
    bench.world.said["POST leases/commit"] = lambda r: problem("unknown-session", 410)
    with bench.session.stage() as staged, pytest.raises(UnknownSession):
        bench.session.commit([wire.Lease("l1", "lt", 1.0)], [staged])
    assert bench.session.stage().name is not None and bench.world.opened == 2


def test_a_long_commit_is_waited_for_while_the_daemon_lives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prepcache.control.handover.SILENCE_S", 0.1)
    alive: list[Request] = []
    go = threading.Event()

    def commit(request: Request) -> Any:
        go.wait(20)
        return bench.world.on_post_leases_commit(request)

    def healthz(request: Request) -> Any:
        alive.append(request)
        if len(alive) == 15:  # longer than all patience of this bench
            go.set()
        return reply({})

    bench.world.said["POST leases/commit"] = commit
    bench.world.said["GET "] = healthz
    with bench.session.stage() as staged:
        assert bench.session.commit([wire.Lease("l1", "lt", 1.0)], [staged]).generation == 1
    assert bench.session.patience.remaining_s > 0.5


def test_on_its_own_time_too_a_thread_does_not_go_on_with_a_session_that_was_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leases may be known to nobody: who asks for their items in it gets none, and drops its work."""
    monkeypatch.setattr("prepcache.control.comeback.FIRST_PAUSE_S", 1e6)
    bench.session.resolve(SomeRecipe())
    bench.world.said["POST resolve"] = lambda r: None
    with pytest.raises(DaemonUnreachable):
        bench.session.resolve(SomeRecipe())
    assert bench.session.patience.is_gone
    with on_own_time(60.0), pytest.raises(DaemonUnreachable):
        bench.session.lease(RECIPE, 0, items(5), want=2)
    assert bench.sent("POST", "/v1/leases") == []


def test_a_commit_that_hangs_with_its_daemon_costs_no_more_than_patience(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(request: Request) -> Any:
        raise Hang

    monkeypatch.setattr("prepcache.control.handover.SILENCE_S", 0.4)
    bench.world.said["POST leases/commit"] = hang
    bench.world.said["GET "] = hang
    with bench.session.stage() as staged, pytest.raises(DaemonUnreachable):
        bench.session.commit([wire.Lease("l1", "lt", 1.0)], [staged])
    assert bench.session.is_gone


def test_without_a_shared_folder_files_are_uploaded_and_artifacts_downloaded(bench: Bench) -> None:
    from blake3 import blake3

    (bench.world.root / "instance").write_text("another daemon's")
    digest = blake3(b"data").hexdigest()
    bench.world.said["PUT leases/data"] = lambda r: reply({"name": "s1.up", "size_bytes": len(r.body)})
    bench.world.said["GET entries/data"] = lambda r: reply(b"data", ETag=f'"{digest}"')
    assert not bench.session.is_shared
    with bench.session.stage() as staged:
        assert staged.name is None
        os.write(staged.fd, b"data")
        bench.session.commit([wire.Lease("l1", "lt", 1.0)], [staged])
    assert bench.sent("PUT", "/data")[0].body == b"data"
    assert bench.sent("POST", "/commit")[0].json["staged"] == [{"name": "s1.up", "size_bytes": 4}]
    path = bench.session.path_of(wire.ArtifactRef.from_json(ref(1, digest=digest)))
    assert path.read_bytes() == b"data"


def test_a_beat_tells_progress_use_and_drops_and_hears_what_to_let_go(bench: Bench) -> None:
    heard: list[set[str]] = []

    class DataSet:
        def let_go(self, digests: set[str]) -> None:
            heard.append(digests)

    data_set, gone = DataSet(), DataSet()
    bench.session.on_removed(data_set.let_go)
    bench.session.on_removed(gone.let_go)
    del gone
    digest = f"{1:064x}"
    beats: list[Any] = []

    def beat(request: Request) -> Any:
        beats.append(request.json)
        removed = [digest] if request.json["progress"] else []
        return reply({"removed": removed, "waited_for": [RECIPE], "generations": {RECIPE: 4}})

    bench.world.said["POST sessions/beat"] = beat
    bench.world.artifacts = [1]
    found = bench.session.resolve(SomeRecipe())
    bench.session.progress(SomeRecipe(), 3, 9)
    bench.session.touch([digest])
    bench.session.drop_hold(found.artifacts)
    wait_until(lambda: heard)
    assert heard[0] == {digest}
    assert any(b["progress"] == [{"recipe": RECIPE, "name": "tokens", "done": 3, "total": 9}] for b in beats)
    assert any(b["dropped"] == [digest] for b in beats)
    wait_until(lambda: bench.session.generation_of(RECIPE) == 4)
    assert bench.session.is_waited_for(RECIPE)


def test_what_a_lost_beat_told_is_told_again(bench: Bench) -> None:
    beats: list[Any] = []

    def beat(request: Request) -> Any:
        beats.append(request.json["used"])
        return None if len(beats) == 1 else bench.world.on_post_sessions_beat(request)

    bench.session.touch([f"{1:064x}"])
    bench.world.said["POST sessions/beat"] = beat
    bench.session.resolve(SomeRecipe())
    wait_until(lambda: len(beats) > 2)
    assert beats[0] == beats[1] == [f"{1:064x}"]
    wait_until(lambda: beats[-1] == [])


def test_a_beat_that_hears_of_its_end_opens_a_new_session(bench: Bench) -> None:
    def beat(request: Request) -> Any:
        if request.headers["prepcache-session"] == "s1.t":
            return problem("unknown-session", 410)
        return bench.world.on_post_sessions_beat(request)

    bench.world.said["POST sessions/beat"] = beat
    bench.session.resolve(SomeRecipe())
    wait_until(
        lambda: any(r.headers["prepcache-session"] == "s2.t" for r in bench.sent("POST", "/v1/resolve"))
    )


def test_beats_that_fail_neither_speak_nor_spend_patience(
    bench: Bench, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    beats: list[int] = []

    def beat(request: Request) -> Any:
        beats.append(1)
        return [None, reply(b"<html>", 500), reply(b"{", 200), problem("store-error", 500)][len(beats) % 4]

    bench.world.said["POST sessions/beat"] = beat
    bench.session.resolve(SomeRecipe())
    wait_until(lambda: len(beats) > 8)
    assert bench.session.patience.remaining_s == 0.9 and not bench.session.is_gone
    assert caplog.records == [] and capfd.readouterr() == ("", "")


def test_a_forked_child_has_a_session_of_its_own(bench: Bench) -> None:
    bench.session.resolve(SomeRecipe())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert bench.session.header is None
            bench.session.resolve(SomeRecipe())
            code = 0 if Session.current(bench.session.client).header == "s2.t" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    bench.session.resolve(SomeRecipe())
    assert bench.sent("POST", "/v1/resolve")[-1].headers["prepcache-session"] == "s1.t"


def test_closing_says_goodbye_after_what_is_left_to_do(bench: Bench) -> None:
    """Of those who are there still; who was dropped is not kept for it."""
    done: list[tuple[str, int]] = []

    class Busy:
        def __init__(self, name: str) -> None:
            self.name = name

        def finish(self) -> None:
            done.append((self.name, len(bench.sent("DELETE", "/s1"))))

    bench.session.resolve(SomeRecipe())
    first, dropped, last = Busy("first"), Busy("dropped"), Busy("last")
    for one in (first, dropped, last):
        bench.session.at_close(one.finish)
    is_there = weakref.ref(dropped)
    del dropped, one
    assert is_there() is None
    bench.session.close()
    assert done == [("last", 0), ("first", 0)]
    assert len(bench.sent("DELETE", "/v1/sessions/s1")) == 1
    assert Session.current(bench.session.client) is not bench.session


def test_releasing_what_lapsed_is_no_error(bench: Bench) -> None:
    bench.world.said["DELETE leases"] = lambda r: problem("lease-lapsed", 409)
    bench.session.release(wire.Lease("l1", "lt", 1.0))


def test_off_contacts_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPCACHE", "off")
    session = Session(Client(bench.session.client.url))
    with pytest.raises(DaemonUnreachable, match="PREPCACHE=off"):
        session.resolve(SomeRecipe())
    assert bench.daemon.requests == []
