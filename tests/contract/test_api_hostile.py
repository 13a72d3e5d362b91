"""Malformed, misspelt, oversized and hostile requests: each is refused by name, and the daemon serves on."""

import base64
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcache.protocol import wire
from prepcached import http_protocol, log
from prepcached.http_protocol import MAX_HEAD_BYTES
from prepcached.routes import data, messages
from support.serving import READY_S, Serving, raw, serving
from support.stores import OTHER_RECIPE, put

ABSENT = "0" * 64


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("hostile")) as found:
        put(found.store, "a", recipe=OTHER_RECIPE)
        yield found


@pytest.fixture(autouse=True)
def serves_on(served: Serving) -> Iterator[None]:
    yield
    assert served.http().get("/healthz").status_code == 200
    assert served.store.check() == []


def refused(answer: bytes) -> tuple[int, str]:
    """(status, code) of a raw answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, answer[:300]
    assert b"Traceback" not in body
    return int(head.split()[1]), json.loads(body)["code"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"recipe": NaN}', b"[" * 100_000, b'{"recipe": 1}',
        b'{"recipe": "../../etc/passwd"}', b'{"recipe": "%s"}' % (b"A" * 64), b"9" * 10_000,
        b'{"recipe": "%s", "generation": -1}' % (b"a" * 64),
        b'{"recipe": "%s", "generation": true}' % (b"a" * 64),
        b'{"recipe": "%s", "register": []}' % (b"a" * 64),
    ],
)  # fmt: skip
def test_a_malformed_body_is_a_bad_request(served, body):
    answer = served.http().post("/v1/resolve", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")


@pytest.mark.parametrize("key", ["..%2f..%2fetc%2fpasswd", "A" * 64, "0" * 63, "0" * 65, "%00" * 8, "é"])
def test_a_key_is_64_hex_digits_and_never_a_path(served, key):
    for path in (f"/v1/entries/{key}", f"/v1/entries/{key}/data", f"/v1/recipes/{key}"):
        assert served.http().get(path).status_code in (400, 404)
    assert served.http().put(f"/v1/entries/{key}/pin").status_code in (400, 404)


def test_a_body_that_announces_too_much_is_refused_unread(served):
    head = b"POST /v1/resolve HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n"
    assert refused(raw(served.uds, head)) == (413, "too-large")


def test_a_body_without_end_is_cut_off(served):
    head = b"POST /v1/resolve HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    answer = raw(served.uds, head, *[piece] * (2 * wire.MAX_BODY_BYTES >> 20))
    assert refused(answer) == (413, "too-large")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES * 2 + b"\r\n\r\n",
        b"GET /" + b"a" * MAX_HEAD_BYTES * 2 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * MAX_HEAD_BYTES,
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES * 2,
    ],
)
def test_a_head_over_its_bound_is_refused(served, head):
    assert refused(raw(served.uds, head)) == (431, "too-large")


@pytest.mark.parametrize(
    "line", [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_what_is_no_http_is_refused(served, line):
    assert refused(raw(served.uds, line + b"\r\n\r\n")) == (400, "bad-request")


def test_a_head_that_never_ends_in_time_is_refused(served, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    assert refused(raw(served.uds, b"GET /healthz HTTP/1.1\r\n")) == (408, "bad-request")
    assert refused(raw(served.uds)) == (408, "bad-request")


def test_a_body_that_never_ends_in_time_is_refused(served, monkeypatch):
    monkeypatch.setattr(messages, "BODY_TIMEOUT_S", 0.05)
    head = b"POST /v1/resolve HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{"
    assert refused(raw(served.uds, head)) == (400, "bad-request")


def test_an_upload_that_stalls_leaves_no_file(served, monkeypatch):
    monkeypatch.setattr(data, "STALL_TIMEOUT_S", 0.05)
    job = served.job()
    lease = job.leased(["stalled"])
    headers = "".join(f"{name}: {value}\r\n" for name, value in job.headers.items())
    head = (
        f"PUT /v1/leases/{lease['id']}/data HTTP/1.1\r\nhost: x\r\n{headers}content-length: 1000\r\n\r\nabc"
    )
    assert refused(raw(served.uds, head.encode())) == (400, "bad-request")
    assert list(Path(served.store.staging).iterdir()) == []


def test_another_protocol_version_is_refused_with_the_mend(served):
    answer = served.http().post("/v1/resolve", json={}, headers={wire.PROTOCOL_HEADER: "99"})
    assert (answer.status_code, answer.json()["code"]) == (426, "protocol-mismatch")
    # After an upgrade the daemon on demand is the older one: jobs have no cache until it ends.
    assert "`prepcached stop`, and the next job starts a daemon of its own version" in answer.json()["detail"]
    assert "99" in answer.json()["detail"] and answer.json()["protocol"] == wire.PROTOCOL


@pytest.mark.parametrize("header", ["", "x", "s.", ".t", "a.b.c", "../x.y", "é.é", "0" * 32 + "." + "0" * 32])
def test_a_wrong_session_is_refused(served, header):
    answer = served.http().post(
        "/v1/leases",
        json={},
        headers={wire.SESSION_HEADER.encode(): header.encode()},  # type: ignore[arg-type]
    )
    assert answer.json()["code"] == ("unknown-session" if header[:1] == "0" else "bad-request")


def test_a_session_acts_for_itself_only(served):
    job, other = served.job(), served.job()
    other_path = f"/v1/sessions/{other.session}"
    assert job.post(other_path + "/beat", {}).json()["code"] == "forbidden"
    assert job.http.delete(other_path, headers=job.headers).json()["code"] == "forbidden"
    assert other.heartbeat().status_code == 200


def test_a_wrong_method_is_a_problem(served):
    answer = served.http().patch("/v1/sessions")
    assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")
    assert answer.json()["status"] == 405
    assert answer.headers["allow"] and "/openapi.json lists the methods" in answer.json()["detail"]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "sort=key;drop", "recipe=../..", "cursor=x", "older_than_s=nan"],
)
def test_a_wrong_query_is_a_problem(served, query):
    answer = served.http().get(f"/v1/entries?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request"), answer.text


@pytest.mark.parametrize("sort", ["-used_at", "recipes"])
@pytest.mark.parametrize("said", [f'["SORT", 1.0, {2**70}]', f'["SORT", {10**330}, 1]', "[" * 300])
def test_a_cursor_of_impossible_numbers_or_depth_is_a_problem(served, sort, said):
    cursor = base64.urlsafe_b64encode(said.replace("SORT", sort).encode()).decode()
    path = "/v1/recipes" if sort == "recipes" else "/v1/entries"
    for given in (cursor, base64.urlsafe_b64encode(b"[" * 9000).decode()):
        answer = served.http().get(path, params={"cursor": given})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-request"), answer.text


def test_every_incident_that_a_client_is_told_is_logged(served, monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the daemon")

    monkeypatch.setattr(served.daemon.store, "stats", broken)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log.configure("warning")
    http = served.http()
    answers = [http.get("/v1/stats") for _ in range(100)]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (500, "prepcache-error")
        assert "secret" not in answer.text and "RuntimeError" not in answer.text
        assert answer.headers["x-request-id"] == answer.json()["incident"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 100 and "a secret of the daemon" in lines[0]
    for line, answer in zip(lines, answers, strict=True):
        assert f"incident {answer.json()['incident']} in GET /v1/stats" in line


def test_lines_of_worker_threads_name_the_request(served, monkeypatch, capsys):
    stats = served.daemon.store.stats

    def logs() -> object:
        logging.getLogger("a").warning("said")
        return stats()

    monkeypatch.setattr(served.daemon.store, "stats", logs)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log.configure("warning")
    request_id = served.http().get("/v1/stats").headers["x-request-id"]
    assert capsys.readouterr().err.endswith(f"WARNING a: said [request {request_id}]\n")


def test_a_refusal_reaches_a_client_still_sending(served):
    """Closing while bytes are unread would reset the connection, and lose the answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(READY_S)
        sock.connect(str(served.uds))
        sock.sendall(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
        sock.sendall(b"x" * 100_000)
        assert refused(sock.recv(1 << 16))[0] == 404


def test_a_body_that_goes_on_after_its_answer_ends(served, monkeypatch):
    monkeypatch.setattr(http_protocol, "REST_TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(READY_S)
        sock.connect(str(served.uds))
        sock.sendall(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\nx")
        assert refused(sock.recv(1 << 16))[0] == 404
        assert sock.recv(1 << 16) == b""


MISSPELT = [
    ("/v1/purge", {"name": "tests.recipe", "dryrun": True}, "dryrun", "dry_run"),
    ("/v1/purge", {"owner": 0, "older_then_s": 1e9}, "older_then_s", "older_than_s"),
    ("/v1/purge", {"all": True, "x": 1}, "x", "dry_run"),
    ("/v1/verify", {"key": ABSENT}, "key", "keys"),
    ("/v1/explain", {"recipes": ABSENT}, "recipes", "recipe"),
    ("/v1/sessions", {"name": "n", "pid": 1, "host": "h", "nmae": "n"}, "nmae", "name"),
    ("/v1/resolve", {"recipe": ABSENT, "generations": 3}, "generations", "generation"),
]


@pytest.mark.parametrize(("path", "body", "field", "meant"), MISSPELT)
def test_a_misspelt_member_is_named_and_nothing_is_done(served, path, body, field, meant):
    sessions = len(served.daemon.sessions)
    answer = served.http().post(path, json=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "bad-request", field)
    assert meant in answer.json()["detail"]
    assert len(served.store.entries().entries) == 1 and len(served.daemon.sessions) == sessions


def test_a_job_that_names_its_protocol_may_say_more_in_it(served):
    assert served.job().resolve(said_by_later_versions=1).status_code == 200


@pytest.mark.parametrize(
    ("request_line", "field", "meant"),
    [
        ("GET /v1/entries?nam=foo", "nam", "name"),
        ("GET /v1/recipes?name=foo", "name", "cursor, limit, digest"),
        ("GET /v1/stats?x=1", "x", "none"),
        ("POST /v1/purge?dry_run=true", "dry_run", "none"),
        (f"DELETE /v1/entries/{ABSENT}?dry_run=true", "dry_run", "none"),
    ],
)
def test_a_query_parameter_that_means_nothing_is_named(served, request_line, field, meant):
    answer = served.http().request(*request_line.split(), content=b'{"all": true}')
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "bad-request", field)
    assert answer.json()["detail"].endswith(meant + "?" * (meant == "name"))
    assert len(served.store.entries().entries) == 1


def test_what_monitors_ask_may_carry_a_query(served):
    for path in ("/healthz", "/metrics"):
        assert served.http().get(f"{path}?at=1").status_code == 200
