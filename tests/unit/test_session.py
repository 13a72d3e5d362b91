"""Sessions against a daemon that says what the test wants: open, forget, restart, fork, remove, lie."""

import tempfile
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from prepcache.daemon import heartbeat, waits
from prepcache.daemon.client import Client
from prepcache.daemon.session import Session
from prepcache.daemon.waits import WaitBudget, on_own_time
from prepcache.errors import DaemonUnreachable, UnknownSession
from prepcache.protocol import wire
from support.fake_daemon import Request, hang, problem, reply
from support.observing import told_by_child
from support.sessions import RECIPE, Bench, Listener, SomeRecipe, bench_fixture, items, ref, wait_until  # noqa: F401


def test_a_session_opens_at_its_first_use_and_is_one_per_process(bench):
    assert bench.daemon.requests == []
    assert Session.current(bench.session.client) is bench.session
    other = Session.current(Client(bench.session.client.url, "another-token", budget=WaitBudget(1.0)))
    assert other is not bench.session, "whose requests the daemon takes for somebody else's"
    other.close()
    bench.session.resolve(SomeRecipe())
    bench.session.resolve(SomeRecipe())
    assert len(bench.sent("POST", "/v1/sessions")) == 1
    assert bench.sent("POST", "/v1/resolve")[0].headers["prepcache-session"] == "s1.t"


def test_a_client_that_reads_is_no_session_of_one_that_stores(bench, monkeypatch):
    monkeypatch.setenv("PREPCACHE", "readonly")
    reading = Session.current(Client(bench.session.client.url))
    assert reading is not bench.session and not reading.client.mode.is_writing
    reading.close()
    assert Session.current(bench.session.client) is bench.session


def test_a_resolve_without_hold_needs_no_session(bench):
    bench.world.artifacts = [7]
    found = bench.session.resolve(SomeRecipe(), hold=False)
    assert [r.digest for r in found.artifacts] == [f"{7:064x}"]
    assert [r.path for r in bench.daemon.requests] == ["/v1/resolve"]


def test_a_generation_from_the_future_starts_over(bench):
    def answer(request: Request) -> Any:
        if request.json["generation"] > 2:
            return problem("future-generation", 409)
        return reply(bench.world.resolved())

    bench.world.said["POST resolve"] = answer
    assert bench.session.resolve(SomeRecipe(), 9).generation == 0


@pytest.mark.parametrize("request_for", ["lease", "commit"])
def test_a_forgotten_session_is_reopened_with_its_holds(bench, request_for):
    """Also where a commit hears of it, which is not repeated: its leases are forgotten, too."""
    bench.world.artifacts = [1, 2]
    data_set = Listener(on_reopened=lambda: bench.session.resolve(SomeRecipe(), register=True))
    bench.session.listen(data_set)
    data_set.on_reopened()
    bench.world.artifacts = [2]

    def forgotten(request: Request) -> Any:
        if request.headers["prepcache-session"] == "s1.t":
            return problem("unknown-session", 410)
        return bench.world.on_post_leases(request)

    bench.world.said["POST leases"] = bench.world.said["POST leases/commit"] = forgotten
    if request_for == "lease":
        assert bench.session.lease(RECIPE, 0, items(1), want=1).granted == (0,)
    else:
        with tempfile.TemporaryFile() as file, pytest.raises(UnknownSession):
            bench.session.commit([wire.Lease("l1", "lt", 1.0)], file.fileno())
    again = bench.sent("POST", "/v1/resolve")[-1]
    assert again.headers["prepcache-session"] == "s2.t"
    assert again.json["hold"] and again.json["register"] == {"format": 1}


def test_a_daemon_that_forgets_for_ever_is_given_up(bench):
    bench.session.resolve(SomeRecipe())
    bench.world.said["POST resolve"] = lambda r: problem("unknown-session", 410)
    with pytest.raises(DaemonUnreachable, match="does not know a session"):
        bench.session.resolve(SomeRecipe())
    assert bench.world.opened == 2


def test_names_and_parts_are_sent_as_a_daemon_takes_them(bench, monkeypatch):
    monkeypatch.setattr(wire, "MAX_PARTS_BYTES", 1000)
    for parts, sent_parts in (({"config": "d" * 2000}, {}), ({"config": "d" * 500}, {"config": "d" * 500})):
        bench.session.resolve(SomeRecipe(name="a\nb\udcff" + "x" * 500, parts=parts), register=True)
        sent = bench.sent("POST", "/v1/resolve")[-1].json
        assert sent["name"] == "a?b?" + "x" * 249 + "..." and sent["register"] == sent_parts


@pytest.mark.parametrize(
    "code", ["unauthorized", "forbidden", "protocol-mismatch", "store-error", "limit-exceeded"]
)
def test_a_daemon_that_will_not_have_us_is_no_error_of_the_job(bench, code):
    bench.world.said["POST sessions"] = lambda r: problem(code, 403, "not for you")
    with pytest.raises(DaemonUnreachable, match="not for you"):
        bench.session.resolve(SomeRecipe())
    assert bench.session.is_gone


def test_a_heartbeat_carries_progress_use_and_drops(bench):
    heard: list[set[str]] = []

    data_set, gone = (Listener(on_removed=heard.append) for _ in range(2))
    bench.session.listen(data_set)
    bench.session.listen(gone)
    del gone
    digest = f"{1:064x}"
    beats: list[Any] = []

    def beat(request: Request) -> Any:
        beats.append(request.json)
        removed = [digest] if request.json["progress"] else []
        return reply({"removed": removed})

    bench.world.said["POST sessions/beat"] = beat
    bench.world.artifacts = [1]
    bench.session.resolve(SomeRecipe())
    bench.session.heartbeat.note_progress(SomeRecipe(), 3, 9)
    bench.session.heartbeat.note_used([digest])
    bench.session.heartbeat.hold({digest}, set)
    wait_until(lambda: heard)
    assert heard[0] == {digest}
    assert any(b["progress"] == [{"recipe": RECIPE, "name": "tokens", "done": 3, "total": 9}] for b in beats)
    assert any(b["dropped"] == [digest] for b in beats)


def test_what_there_is_no_room_for_may_fit_after_drops(bench, monkeypatch):
    monkeypatch.setattr(waits, "BEAT_SHORTEST_S", 600.0)
    bench.world.artifacts = [1]
    bench.session.resolve(SomeRecipe())

    def lease(request: Request) -> Any:
        if any(beat.json["dropped"] for beat in bench.sent("POST", "/s1/beat")):
            return bench.world.on_post_leases(request)
        bench.session.heartbeat.hold({f"{1:064x}"}, set)
        return reply({"is_declined": True, "reason": "no room"})

    bench.world.said["POST leases"] = lease
    assert bench.session.lease(RECIPE, 0, items(1), want=1).granted == (0,)
    assert len(bench.sent("POST", "/leases")) == 2


def test_what_a_lost_beat_told_is_told_again(bench):
    beats: list[Any] = []

    def beat(request: Request) -> Any:
        beats.append(request.json["used"])
        return None if len(beats) == 1 else bench.world.on_post_sessions_beat(request)

    bench.session.heartbeat.note_used([f"{1:064x}"])
    bench.world.said["POST sessions/beat"] = beat
    bench.session.resolve(SomeRecipe())
    wait_until(lambda: len(beats) > 2)
    assert beats[0] == beats[1] == [f"{1:064x}"]
    wait_until(lambda: beats[-1] == [])


def test_an_answered_beat_ends_an_outage_that_a_worker_told(bench):
    bench.session.resolve(SomeRecipe())
    budget = bench.session.budget
    told_by_child(lambda: bool(budget.give_up("u", "it does not answer", is_final=False)))
    wait_until(lambda: not told_by_child(lambda: budget.is_away))


def test_a_beat_that_hears_of_its_end_opens_a_new_session(bench):
    def beat(request: Request) -> Any:
        if request.headers["prepcache-session"] == "s1.t":
            return problem("unknown-session", 410)
        return bench.world.on_post_sessions_beat(request)

    data_set = Listener(on_reopened=lambda: bench.session.resolve(SomeRecipe()))
    bench.session.listen(data_set)
    bench.world.said["POST sessions/beat"] = beat
    bench.session.resolve(SomeRecipe())
    wait_until(
        lambda: any(r.headers["prepcache-session"] == "s2.t" for r in bench.sent("POST", "/v1/resolve"))
    )


def test_beats_that_fail_neither_speak_nor_spend_patience(bench, caplog, capfd):
    beats: list[int] = []

    def beat(request: Request) -> Any:
        beats.append(1)
        return [None, reply(b"<html>", 500), reply(b"{", 200), problem("store-error", 500)][len(beats) % 4]

    bench.world.said["POST sessions/beat"] = beat
    bench.session.resolve(SomeRecipe())
    wait_until(lambda: len(beats) > 8)
    assert bench.session.budget.remaining_s == 0.6 and not bench.session.is_gone
    assert caplog.records == [] and capfd.readouterr() == ("", "")


def test_a_beat_that_hangs_begins_an_outage(bench, monkeypatch):
    """A job that only starts workers asks nothing; each of them would wait for the daemon in vain."""
    monkeypatch.setattr(waits, "BEAT_LIMIT_S", 0.1)
    monkeypatch.setattr(waits, "BUDGET_S", 0.0)

    bench.session.resolve(SomeRecipe())
    bench.world.said["POST sessions/beat"] = hang
    wait_until(lambda: bench.session.is_away)
    assert bench.session.budget.remaining_s == 0.6


def test_another_threads_opening_is_waited_for_within_the_budget(bench):
    """A thread that nobody waits for may be at it for long."""
    is_asked, may_answer = threading.Event(), threading.Event()

    def slow(request: Request) -> Any:
        is_asked.set()
        assert may_answer.wait(60)
        return bench.world.on_post_sessions(request)

    def opens() -> None:
        with on_own_time(60.0):
            bench.session.open()

    bench.world.said["POST sessions"] = slow
    bench.world.said["GET "] = lambda request: None
    thread = threading.Thread(target=opens)
    thread.start()
    try:
        assert is_asked.wait(30)
        with pytest.raises(DaemonUnreachable, match="is opening its session"):
            bench.session.resolve(SomeRecipe())
        assert bench.session.budget.remaining_s == 0
        with pytest.raises(DaemonUnreachable):
            bench.session.reopen("s1.t")
    finally:
        may_answer.set()
        thread.join()
    assert bench.world.opened == 1


def test_who_looks_does_not_wait_for_another_threads_download(bench):
    looks, is_over = threading.Event(), threading.Event()

    def downloads() -> None:
        with bench.session.looking():
            looks.set()
            assert is_over.wait(60)

    thread = threading.Thread(target=downloads)
    thread.start()
    try:
        assert looks.wait(30)
        with bench.session.looking():
            bench.session.resolve(SomeRecipe())
    finally:
        is_over.set()
        thread.join()


def test_a_hold_that_another_thread_takes_meanwhile_stays(bench):
    beat, digest = bench.session.heartbeat, f"{1:064x}"
    other = threading.Thread(target=beat.hold, args=({digest}, lambda: {digest}))

    def mapped_before() -> set[str]:
        other.start()
        return set()

    beat.hold(set(), mapped_before)
    other.join()
    assert beat.held == {digest} and not beat.dropped


def test_closing_says_goodbye_after_what_is_left_to_do(bench):
    """Of those who are there still; who was dropped is not kept for it."""
    done: list[tuple[str, int]] = []

    def busy(name: str) -> Listener:
        return Listener(on_close=lambda: done.append((name, len(bench.sent("DELETE", "/s1")))))

    bench.session.resolve(SomeRecipe())
    first, dropped, last = map(busy, ("first", "dropped", "last"))
    for one in (first, dropped, last):
        bench.session.listen(one)
    is_there = weakref.ref(dropped)
    del dropped, one
    assert is_there() is None
    bench.session.close()
    assert done == [("first", 0), ("last", 0)]
    assert len(bench.sent("DELETE", "/v1/sessions/s1")) == 1
    assert Session.current(bench.session.client) is not bench.session


def test_an_outage_ends_when_the_daemon_answers_again(bench, caplog):
    session, returns = bench.session, list[int]()

    waiting = Listener(on_return=lambda: returns.append(1))
    session.listen(waiting)
    session.budget.budget_s = 2.0
    bench.world.artifacts = [1, 2]
    session.resolve(SomeRecipe())
    is_up = threading.Event()

    def once_up(answer: Any) -> Any:
        def answered(request: Request) -> Any:
            assert is_up.wait(30)
            return answer(request)

        return answered

    bench.world.said["POST resolve"] = once_up(bench.world.on_post_resolve)
    bench.world.said["GET "] = once_up(lambda request: reply({}))
    with pytest.raises(DaemonUnreachable):
        session.resolve(SomeRecipe())
    assert session.is_gone and session.is_away
    asked = len(bench.sent("POST", "/resolve"))
    with pytest.raises(DaemonUnreachable):
        session.resolve(SomeRecipe())
    assert len(bench.sent("POST", "/resolve")) == asked, "in an outage nothing is asked"
    is_up.set()
    wait_until(lambda: bool(returns))
    assert not session.is_gone
    assert len(session.resolve(SomeRecipe()).artifacts) == 2
    assert bench.world.opened == 1 and not bench.sent("DELETE", "/v1/sessions/s1"), "leases are kept"
    beats = len(bench.sent("POST", "/beat"))
    wait_until(lambda: len(bench.sent("POST", "/beat")) > beats + 1)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 and "the daemon answers again" in messages[1]


def test_nobody_looks_for_a_daemon_that_lied_or_was_closed(bench):
    before = set(threading.enumerate())  # the sessions of other tests may end a little later

    def watches() -> list[threading.Thread]:
        found = (thread for thread in threading.enumerate() if thread not in before)
        return [thread for thread in found if thread.name == "prepcache-beat"]

    bench.session.budget.budget_s = 2.0
    bench.world.said["POST resolve"] = lambda r: None
    bench.world.said["GET "] = lambda r: None
    with pytest.raises(DaemonUnreachable):
        bench.session.resolve(SomeRecipe())
    (thread,) = watches()
    bench.session.close()
    thread.join()
    bench.world.said["POST resolve"] = lambda r: reply(b"<html>", 200)
    other = Session(Client(bench.session.client.url, budget=WaitBudget(1.0)))
    with pytest.raises(DaemonUnreachable):
        other.resolve(SomeRecipe())
    assert other.is_gone and not other.is_away
    wait_until(lambda: not watches())
    other.close()


def test_a_session_that_nobody_could_keep_is_not_used(bench, monkeypatch, caplog):
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(heartbeat, "threading", SimpleNamespace(**{**vars(threading), "Thread": Refused}))
    with pytest.raises(DaemonUnreachable, match="its session cannot be kept alive: can't start new thread"):
        bench.session.resolve(SomeRecipe())
    assert bench.session.is_gone and len(caplog.records) == 1
