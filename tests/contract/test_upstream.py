"""Leases from a lead daemon: an item is preprocessed on one machine; a lead that fails stops no job."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepcache.errors import ConfigError
from prepcache.protocol import wire
from prepcached.config import load
from prepcached.tier import upstream as upstreams
from prepcached.tier.bucket import Bucket, CouldNotTell
from prepcached.tier.manifests import Manifests
from prepcached.tier.upstream import Upstream
from support.fake_daemon import FakeDaemon, reply
from support.fleet import ITEMS, TOKEN, box, lead, patient_fixture, status, upstream  # noqa: F401
from support.lossy_relay import Relay
from support.serving import Job, Serving, wait_until


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    folder.mkdir()
    return folder


@contextlib.contextmanager
def fleet(folder: Path, bucket: Path) -> Iterator[tuple[Serving, Serving, Serving]]:
    """A lead and two machines that lease from it."""
    with (
        lead(folder / "lead") as (leader, given),
        box(folder / "first", bucket, upstream=given) as first,
        box(folder / "second", bucket, upstream=given) as second,
    ):
        yield leader, first, second


def leased(job: Job, names: list[str] = ITEMS, **members: Any) -> dict[str, Any]:
    generation = job.resolve().json()["generation"]
    return dict(job.lease(names, generation, **members).json())


@pytest.mark.usefixtures("patient")
def test_what_was_copied_a_moment_ago_is_not_granted(tmp_path, bucket):
    """A manifest that was read before does not name it yet."""
    with fleet(tmp_path, bucket) as (_, first, second):
        job = second.job()
        assert leased(job, ["x"])["granted"]  # which reads the manifest
        making = first.job()
        mine = leased(making)
        making.commit([mine["lease"]], making.stage(first.store.staging, ITEMS))
        assert first.http().post("/v1/tier/push").status_code == 200
        assert wait_until(lambda: status(first)["written"] == 1)
        answer = leased(job)
        assert not answer.get("granted") and (answer.get("look_again") or answer["held"])


@pytest.mark.usefixtures("patient")
def test_what_a_dead_job_had_is_given_to_another_box(tmp_path, bucket, monkeypatch):
    with fleet(tmp_path, bucket) as (_, first, second):
        dying, waiting = first.job(), second.job()
        assert leased(dying)["granted"]
        assert not leased(waiting)["granted"]
        monkeypatch.setattr(upstreams, "IDLE_S", 0.0)
        dying.close()
        assert wait_until(lambda: leased(waiting, wait_s=2.0)["granted"] == [0, 1, 2])


@pytest.mark.usefixtures("patient")
def test_a_lead_that_began_anew_is_leased_from_again(tmp_path, bucket):
    with fleet(tmp_path, bucket) as (leader, first, second):
        assert leased(first.job(), ["x"])["granted"]

        def forget() -> None:
            for session in list(leader.daemon.sessions):
                leader.daemon.end_session(session, "the test says so")

        leader.on_loop(forget)
        assert leased(second.job())["granted"] == [0, 1, 2]
        assert wait_until(lambda: not status(second)["is_upstream_away"])


def test_a_lead_grants_to_machines_what_it_knows_nothing_of(tmp_path, bucket):
    """Neither the recipe, nor what the bucket or a lead of its own has."""
    with silent() as port, box(tmp_path / "lead", bucket, upstream=upstream(tmp_path, port)) as leader:
        job = leader.job()
        answer = job.lease(ITEMS, is_for_machine=True).json()
        assert answer["granted"] == [0, 1, 2]
        assert job.lease(ITEMS).status_code == 409, "jobs register their recipes"


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A port where connections are accepted and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


TOKEN32 = "0" * 32
OPENED = {"session": TOKEN32, "token": TOKEN32, "instance": TOKEN32, "root": "/r", "staging": "/s"}


def liar(answer: dict[str, Any] | bytes, code: int = 200) -> FakeDaemon:
    """A lead that opens sessions, and gives every request for a lease this answer."""
    told = {"/v1/sessions": reply(OPENED), "/v1/leases": reply(answer, code)}
    return FakeDaemon("", lambda request: told.get(request.path, reply({})))


LEASE = {"id": "1", "token": "2", "deadline_s": 15.0}
RESOLVED = {"generation": 7, "is_complete": True, "artifacts": []}
LIES: dict[str, Any] = {
    "nonsense": (b"\0nonsense", 200),
    "too much": (b" " * (9 << 20), 200),
    "not requested": ({"lease": LEASE, "granted": [7]}, 200),
    "nobody has it": ({}, 200),
    "broken": (b"", 502),
    "refused": ({"code": "unauthorized", "detail": "another token", "status": 401}, 401),
    "redirected": (b"", 302),
    "declined": ({"is_declined": True, "reason": "full"}, 200),
    "look again": ({"look_again": RESOLVED}, 200),
    "odd members": ({"code": "bad-request", "detail": "no", "message": "x", "self": "y"}, 400),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lead_that_lies_is_done_without(lie, tmp_path, bucket, caplog):
    answer, code = LIES[lie]
    with (
        liar(answer, code) as lying,
        box(tmp_path / "box", bucket, upstream=upstream(tmp_path, lying.port)) as served,
    ):
        assert leased(served.job())["granted"] == [0, 1, 2]
        assert leased(served.job(), ["x", "y"])["granted"] == [0, 1]
        told = status(served)
        assert told["is_upstream_away"] and told["upstream_failures"] == 1
        assert TOKEN not in json.dumps(told)
    assert sum("this machine leases by itself" in one.getMessage() for one in caplog.records) == 1


def tls(folder: Path, uds: Path) -> FakeDaemon:
    """A proxy that ends TLS, with a certificate of its own making, before a daemon."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", "key.pem", "-out", "cert.pem", *names]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return FakeDaemon("", Relay(str(uds), lambda _: "nothing"), context)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_known", [True, False], ids=["known certificate", "unknown certificate"])
def test_a_lead_behind_tls_is_leased_from_if_it_is_known(is_known, tmp_path, bucket, monkeypatch):
    with lead(tmp_path / "lead") as (leader, given), tls(tmp_path, leader.uds) as proxy:
        if is_known:
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        secured = {**given, "upstream": f"https://127.0.0.1:{proxy.port}"}
        with box(tmp_path / "box", bucket, upstream=secured) as served:
            assert leased(served.job())["granted"] == [0, 1, 2]
            told = status(served)
            assert told["is_upstream_away"] is not is_known
            assert is_known or "CERTIFICATE_VERIFY_FAILED" in told["last_upstream_failure"]
            assert len(leader.daemon.sessions) == is_known


@pytest.mark.usefixtures("patient")
def test_without_its_bucket_a_box_leases_from_the_lead(tmp_path, bucket, monkeypatch):
    """What a manifest named when it was last read is preprocessed, once in the fleet."""

    async def away(*_: Any, **__: Any) -> Any:
        raise CouldNotTell("the test says so")

    with fleet(tmp_path, bucket) as (_, first, second):
        first.job().fill(first.store.staging, ITEMS)
        assert first.http().post("/v1/tier/push").status_code == 200
        job = second.job()
        assert leased(job, ["x"])["granted"]  # which reads the manifest
        for name in ("get", "names"):
            monkeypatch.setattr(Bucket, name, away)
        assert second.http().post("/v1/tier/push").status_code == 500
        assert wait_until(lambda: leased(job, wait_s=2.0)["granted"] == [0, 1, 2])


@pytest.mark.usefixtures("patient")
def test_what_the_bucket_lost_is_made_on_one_box(tmp_path, bucket):
    with box(tmp_path / "earlier", bucket) as earlier:
        earlier.job().fill(earlier.store.staging, ITEMS)
        assert earlier.http().post("/v1/tier/push").status_code == 200
    for path in (bucket / "cas").rglob("*"):
        if path.is_file():
            path.unlink()
    with fleet(tmp_path, bucket) as (_, first, second):
        making, waiting = first.job(), second.job()
        assert wait_until(lambda: leased(making, wait_s=2.0)["granted"] == [0, 1, 2])
        answers: list[dict[str, Any]] = []

        def is_held_by_first() -> bool:
            answers.append(leased(waiting))
            return any("prepcached" in one["who"] for one in answers[-1]["held"])

        assert wait_until(is_held_by_first)
        assert not any(one["granted"] for one in answers)


@pytest.mark.parametrize("kind", ["away", "slow"])
def test_without_its_lead_a_box_leases_by_itself(kind, tmp_path, bucket, caplog):
    with silent() as slow:
        given = upstream(tmp_path, slow if kind == "slow" else 1)
        with box(tmp_path / "box", bucket, upstream=given) as served:
            job = served.job()
            assert leased(job)["granted"] == [0, 1, 2]
            assert leased(job, ["x", "y"])["granted"] == [0, 1]
            assert status(served)["is_upstream_away"]
    said = [one for one in caplog.records if "this machine leases by itself" in one.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("kind", ["bucket", "lead"])
def test_jobs_wait_five_seconds_an_hour(kind, tmp_path, bucket, monkeypatch):
    """It answers whenever nobody waits for it, and no job within the limit."""
    now, asked, probed = [1000.0], list[float](), list[float]()

    async def fail(*_: Any, **__: Any) -> Any:
        asked.append(now[0])
        now[0] += 1.5
        raise (CouldNotTell if kind == "bucket" else upstreams.LeadAway)("no answer within 1.5 s")

    async def answer(*_: Any, **__: Any) -> list[str]:
        probed.append(now[0])
        return []

    async def lead(self: Upstream, method: str, path: str, *_: Any, **__: Any) -> Any:
        if path == "/leases":
            await fail()
        if path == "/sessions":
            await answer()
            return wire.SessionAnswer("s", "t", "i", "/r", "/s")
        return wire.BeatAnswer()

    if kind == "bucket":
        monkeypatch.setattr(Manifests, "of", fail)
        monkeypatch.setattr(Bucket, "names", answer)
    monkeypatch.setattr(Upstream, "_ask", lead)
    given = upstream(tmp_path, 1) if kind == "lead" else None
    with box(tmp_path / "box", bucket, clock=lambda: now[0], upstream=given) as served:
        if given:
            assert wait_until(lambda: not status(served)["is_upstream_away"])
        for times in range(1, 4):
            assert leased(served.job())["lease"]
            assert len(asked) == times
            now[0] += 40.0
            assert wait_until(lambda: probed[-1:] == now)
            assert times == 3 or wait_until(lambda: not status(served)[AWAY[kind]])
        assert leased(served.job(), ["x"])["lease"]
        assert len(asked) == 3
        now[0] += 3600.0
        assert wait_until(lambda: not status(served)[AWAY[kind]])


AWAY = {"bucket": "is_paused", "lead": "is_upstream_away"}


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ('upstream = "http://lead:1"', "upstream_token_file go together"),
        ('upstream = "lead:1"\nupstream_token_file = "TOKEN"', "must be http://host:port or"),
        ('upstream = "http://user:pw@lead:1"\nupstream_token_file = "TOKEN"', "must be http://host:port or"),
        ('mode = "read-only"\nupstream = "http://lead:1"\nupstream_token_file = "TOKEN"', "read-write"),
        ('upstream = "http://lead:1"\nupstream_token_file = "/no/such"', "cannot be read"),
        ('upstream = "http://lead:1"\nupstream_token_file = "OPEN"', "everybody may read it"),
    ],
)
def test_an_upstream_that_cannot_work_is_refused(lines, text, tmp_path):
    for name, mode in (("TOKEN", 0o600), ("OPEN", 0o644)):
        (tmp_path / name).write_text(TOKEN)
        os.chmod(tmp_path / name, mode)
        lines = lines.replace(name, str(tmp_path / name))
    file = tmp_path / "prepcached.toml"
    file.write_text(f'[tier]\nurl = "s3://bucket"\n{lines}\n')
    with pytest.raises(ConfigError, match=text) as refused:
        load({}, {}, file)
    assert TOKEN not in str(refused.value)
