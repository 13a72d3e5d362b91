"""Sessions with a real daemon: commit, share, upload, download, restart, removal."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache import artifact
from prepcache.daemon.client import Client
from prepcache.daemon.folder import SharedFolder
from prepcache.daemon.http import Transport
from prepcache.daemon.session import Session
from prepcache.daemon.wait_budget import WaitBudget
from prepcache.errors import (
    DaemonUnreachable,
    Declined,
    LeaseLapsed,
    StagedFileRefused,
    Unauthorized,
    UnknownRecipe,
    UnknownSession,
)
from prepcache.protocol import wire
from prepcached.store import recipes
from support.serving import Serving, http_client, process, serving, wait_until
from support.stores import RECIPE, item, write_artifact

Open = Callable[[], Session]


@dataclass
class SomeRecipe:
    digest: str = RECIPE
    name: str = "tests.recipe"
    parts: dict[str, Any] = field(default_factory=lambda: {"format": 1})


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as box:
        yield box


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens sessions as several jobs would: one each time."""
    for name in ("PREPCACHE", "PREPCACHE_URL", "PREPCACHE_TOKEN", "PREPCACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[Session] = []

    def open_one() -> Session:
        # A crowded test machine is no reason to give a daemon up: 5 s are tested elsewhere.
        client = Client(f"unix://{tmp_path}/s.sock", budget=WaitBudget(60.0))
        made.append(Session(client))
        return made[-1]

    yield open_one
    for session in made:
        session.close()


def digests(*names: object) -> Any:
    return np.frombuffer(b"".join(map(item, names)), np.uint8).reshape(-1, 32)


def lease(session: Session, *names: object) -> wire.Lease:
    generation = session.resolve(SomeRecipe(), register=True).generation
    answer = session.lease(RECIPE, generation, digests(*names), want=len(names))
    assert answer.lease is not None and len(answer.granted) == len(names)
    return answer.lease


def commit(session: Session, held: wire.Lease, *names: object, size_bytes: int = 100) -> wire.Committed:
    with session.stage() as staged:
        write_artifact(staged.fd, names, size_bytes=size_bytes)
        return session.commit([held], [staged])


def items_at(path: Path) -> set[bytes]:
    found = artifact.open(path)
    return {row.tobytes() for row in np.asarray(found.item_digests)}


def test_what_one_job_commits_another_maps(box: Serving, opened: Open) -> None:
    one, other = opened(), opened()
    done = commit(one, lease(one, "a", "b"), "a", "b")
    found = other.resolve(SomeRecipe())
    assert found.generation == done.generation and found.artifacts == done.artifacts
    path = other.path_of(found.artifacts[0])
    assert path.is_relative_to(box.store.root)
    assert items_at(path) == {item("a"), item("b")}


def test_items_that_another_job_has_are_said_to_be_his(box: Serving, opened: Open) -> None:
    one, other = opened(), opened()
    held = lease(one, "a", "b")
    generation = other.resolve(SomeRecipe()).generation
    answer = other.lease(RECIPE, generation, digests("a", "b"), want=2)
    assert answer.lease is None and [holder.items for holder in answer.held] == [2]
    one.release(held)
    assert other.lease(RECIPE, generation, digests("a", "b"), want=2).granted == (0, 1)


def test_a_waiter_is_answered_by_the_commit_at_no_cost(box: Serving, opened: Open) -> None:
    one, other = opened(), opened()
    held = lease(one, "a")
    generation = other.resolve(SomeRecipe()).generation
    answers: list[wire.LeaseAnswer] = []

    def wait() -> None:
        while not answers or answers[-1].look_again is None:
            answers.append(other.lease(RECIPE, generation, digests("a"), want=1, wait_s=2.0))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert wait_until(lambda: RECIPE in box.daemon.leases.waited_for(_id(one)))
    commit(one, held, "a")
    waiting.join()
    assert answers[-1].look_again is not None
    assert [ref.items for ref in answers[-1].look_again.artifacts] == [1]


def _id(session: Session) -> str:
    return (session.header or "").partition(".")[0]


def test_without_a_shared_folder_bytes_travel_over_http(
    box: Serving, opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SharedFolder, "find", lambda *_: None)
    one = opened()
    done = commit(one, lease(one, "a"), "a")
    path = one.path_of(done.artifacts[0])
    assert path.is_relative_to(tmp_path / "cache")
    assert items_at(path) == {item("a")}
    assert os.listdir(box.store.staging) == []


@pytest.mark.parametrize(
    ("names", "error"), [((), StagedFileRefused), (("other",), StagedFileRefused)], ids=["junk", "not leased"]
)
def test_a_refused_commit_is_an_error_and_leaves_no_file(
    box: Serving, opened: Open, names: tuple[str, ...], error: type[Exception]
) -> None:
    one = opened()
    held = lease(one, "a")
    with one.stage() as staged, pytest.raises(error):
        if names:
            write_artifact(staged.fd, names)
        else:
            os.write(staged.fd, b"this is no artifact")
        one.commit([held], [staged])
    assert os.listdir(box.store.staging) == []


def test_a_released_lease_commits_nothing(box: Serving, opened: Open) -> None:
    one = opened()
    held = lease(one, "a")
    one.release(held)
    with pytest.raises(LeaseLapsed):
        commit(one, held, "a")


def test_a_recipe_that_nobody_registered_gives_no_lease(box: Serving, opened: Open) -> None:
    with pytest.raises(UnknownRecipe):
        opened().lease(RECIPE, 0, digests("a"), want=1)


def test_a_recipe_swept_under_a_lease_is_registered_again(box: Serving, opened: Open) -> None:
    one = opened()
    held = lease(one, "a")
    recipes.sweep(box.store._core, idle_s=-60.0)
    with pytest.raises(UnknownRecipe):
        commit(one, held, "a")
    one.release(held)
    with pytest.raises(UnknownRecipe):
        one.lease(RECIPE, 0, digests("a"), want=1)
    assert commit(one, lease(one, "a"), "a").artifacts


def test_no_room_is_declined(tmp_path: Path, opened: Open) -> None:
    with serving(tmp_path, max_bytes=1 << 20):
        one = opened()
        held = lease(one, "a")
        with one.stage() as staged, pytest.raises(Declined):
            write_artifact(staged.fd, ["a"], size_bytes=4 << 20)
            one.commit([held], [staged])
        answer = one.lease(RECIPE, 0, digests("b"), want=1, nbytes=1 << 40)
        assert answer.is_declined and answer.reason


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the answer to the look of a thread of this name has come; it is not read before the store has
    declined a commit."""
    event, read = threading.Event(), Transport.read

    def slowly(self: Transport, kind: Any, answer: Any) -> Any:
        if kind is wire.Resolved and threading.current_thread().name == "look" and not event.is_set():
            event.set()
            assert event.may_go_on()  # type: ignore[attr-defined]
        return read(self, kind, answer)

    monkeypatch.setattr(Transport, "read", slowly)
    return event


def test_a_drop_does_not_undo_the_holds_of_an_answer_under_way(
    tmp_path: Path, opened: Open, answering: Any
) -> None:
    with serving(tmp_path):
        other = opened()
        (found,) = commit(other, lease(other, "a"), "a").artifacts
        other.close()
        job = opened()
        job.drop_hold(job.resolve(SomeRecipe()).artifacts)  # told with the next beat
        told = threading.Event()
        answering.may_go_on = lambda: told.wait(60)
        looking = threading.Thread(target=lambda: job.resolve(SomeRecipe()), name="look")
        looking.start()
        assert answering.wait(60)
        job.heartbeat.tell(job, str(job.header))
        told.set()
        looking.join()
        assert job.client.entry(found.key).holds == 1


def test_what_is_purged_is_told_to_who_has_it_mapped(box: Serving, opened: Open) -> None:
    one, other = opened(), opened()
    gone: list[set[str]] = []
    other.on_removed(gone.append)
    done = commit(one, lease(one, "a"), "a")
    other.resolve(SomeRecipe())
    assert one.client.purge(everything=True).entries == 1
    assert wait_until(lambda: bool(gone))
    assert gone == [{done.artifacts[0].digest}]


def test_progress_is_seen_by_others(box: Serving, opened: Open) -> None:
    one = opened()
    lease(one, "a")
    one.progress(SomeRecipe(), 3, 9)
    assert wait_until(lambda: any(seen.progress for seen in one.client.sessions()))
    (progress,) = [p for seen in one.client.sessions() for p in seen.progress]
    assert (progress.name, progress.done, progress.total) == ("tests.recipe", 3, 9)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_over_tcp_a_job_with_the_token_commits_and_finds(tmp_path: Path, port: int, opened: Open) -> None:
    token = "correct-horse-battery-staple"
    with serving(tmp_path, host="127.0.0.1", port=port, token=token):
        session = Session(Client(f"http://127.0.0.1:{port}", token, budget=WaitBudget(60.0)))
        done = commit(session, lease(session, "a"), "a")
        assert items_at(session.path_of(done.artifacts[0])) == {item("a")}
        session.close()


def test_a_wrong_token_is_an_error_for_people_not_for_jobs(tmp_path: Path, port: int, opened: Open) -> None:
    with serving(tmp_path, host="127.0.0.1", port=port, token="correct-horse-battery-staple"):
        client = Client(f"http://127.0.0.1:{port}", "wrong", budget=WaitBudget(60.0))
        with pytest.raises(Unauthorized):
            client.info()
        with pytest.raises(DaemonUnreachable):
            Session(client).resolve(SomeRecipe())
        assert client.budget.is_gone
        client.close()


def test_sessions_open_again_after_a_restart(tmp_path: Path, opened: Open) -> None:
    with process(tmp_path) as daemon:
        one = opened()
        done = commit(one, lease(one, "a"), "a")
        held, header = lease(one, "b"), one.header
        daemon.kill()
        daemon.wait()
    with process(tmp_path), http_client(tmp_path / "s.sock") as http:
        with pytest.raises((UnknownSession, LeaseLapsed)):  # the latter where a beat was quicker
            commit(one, held, "b")
        assert one.header != header
        entry = f"/v1/entries/{done.artifacts[0].key}"
        assert wait_until(lambda: http.get(entry).json()["holds"] == 1), "what it had mapped is held again"
        assert commit(one, lease(one, "b"), "b").generation > done.generation
        one.close()


def test_a_daemon_that_lost_its_store_is_met_anew(tmp_path: Path, opened: Open) -> None:
    gone: list[set[str]] = []
    with process(tmp_path) as daemon:
        one = opened()
        one.on_removed(gone.append)
        done = commit(one, lease(one, "a"), "a")
        one.resolve(SomeRecipe())
        daemon.kill()
        daemon.wait()
    shutil.rmtree(tmp_path / "root")
    with process(tmp_path):
        assert one.resolve(SomeRecipe(), done.generation).artifacts == ()
        assert gone == [{done.artifacts[0].digest}]
        assert lease(one, "a")
        one.close()


def test_a_daemon_that_stalls_in_a_commit_costs_bounded_time(tmp_path: Path, opened: Open) -> None:
    with process(tmp_path) as daemon:
        one = opened()
        held = lease(one, "a")
        one.budget.charge(one.budget.remaining_s - 4.0)
        with one.stage() as staged:
            write_artifact(staged.fd, ["a"])
            daemon.send_signal(signal.SIGSTOP)
            with pytest.raises(DaemonUnreachable):
                one.commit([held], [staged])
            assert one.budget.is_gone
            with pytest.raises(DaemonUnreachable):
                one.resolve(SomeRecipe())
        daemon.send_signal(signal.SIGCONT)
        one.close()
