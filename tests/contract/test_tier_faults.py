"""What a bucket can do wrong: no sample is wrong, no job stops, and what is committed here stays."""

from collections.abc import Iterator

import pytest

from prepcached.tier import bucket, tier
from support.fake_s3 import SECRETS, FakeS3, fake_s3
from support.fleet import asked, be_patient, box, status
from support.serving import Job, Serving, wait_until

URL = "s3://lab/prefix"
OLD, OTHERS, NEW = ["a", "b", "c"], ["d", "e", "f"], ["g", "h"]
READING = ["killed", "refused", "skewed", "no bucket", "slow", "broken off"]
WRITING = ["killed", "refused", "skewed", "no bucket", "full", "cut"]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with fake_s3() as made:
        for name, value in made.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        be_patient(monkeypatch)
        monkeypatch.setattr(tier, "RETRY_S", 0.0)
        monkeypatch.setattr(tier, "REST_S", 3600.0)  # only a push and a stop copy
        yield made


def committed(served: Serving, job: Job, names: list[str]) -> str:
    """What a job here has made and committed; the artifact's digest."""
    return str(job.fill(served.store.staging, names)["artifact"]["digest"])


def items_here(job: Job) -> int:
    return sum(one["items"] for one in job.resolve().json()["artifacts"])


@pytest.mark.nightly(daily=READING[4:6])
@pytest.mark.parametrize("fault", READING)
def test_a_bucket_that_fails_at_reading_stops_no_job(fault, s3, tmp_path, monkeypatch):
    with box(tmp_path / "first", URL) as first:
        job = first.job()
        committed(first, job, OLD)
        committed(first, job, OTHERS)
        assert first.http().post("/v1/tier/push").json()["artifacts"] == 2
    if fault == "slow":
        monkeypatch.setattr(bucket, "STALL_S", 2.0)
        monkeypatch.setattr(tier, "ASKED_S", 0.9)
    with box(tmp_path / "second", URL) as second:
        s3.fault = fault
        job = second.job()
        assert asked(job, OLD) == (3, 0)
        assert status(second)["hits"] == 0
        assert wait_until(lambda: status(second)["could_not_tell"] >= 1)
        committed(second, job, NEW)
        assert not second.store.check()
        s3.fault = ""
        be_patient(monkeypatch)
        assert wait_until(lambda: not status(second)["is_paused"])
        job.close()
        for names in (OLD, OTHERS):  # that it could not tell is not remembered as a miss
            assert asked(second.job(), names) == (0, 3)


@pytest.mark.parametrize(
    ("fault", "why"),
    [("no bucket", "NoSuchBucket"), ("refused", "AccessDenied"), ("killed", "error sending request")],
)
def test_a_bucket_that_fails_is_told_before_a_job_asks(fault, why, s3, tmp_path):
    s3.fault = fault
    with box(tmp_path / "box", URL) as served:
        assert wait_until(lambda: status(served)["is_paused"])
        assert status(served)["last_failure"] == f"a listing: {why}"


def test_a_link_of_half_a_mebibyte_a_second_is_no_outage():
    assert bucket.PIECE_BYTES <= bucket.STALL_S * (512 << 10), "a piece that takes longer counts as no answer"


@pytest.mark.nightly(daily=WRITING[-1:])
@pytest.mark.parametrize("fault", WRITING)
def test_a_bucket_that_fails_at_writing_loses_nothing(fault, s3, tmp_path):
    s3.fault = fault
    with box(tmp_path / "first", URL) as first:
        job = first.job()
        digest = committed(first, job, OLD)
        assert first.http().post("/v1/tier/push").status_code == 500
        assert items_here(job) == 3 and not first.store.check()
        assert not s3.artifacts()
        s3.fault = ""
        assert first.http().post("/v1/tier/push").json()["artifacts"] == 1
        assert [key.rsplit("/")[-1] for key in s3.artifacts()] == [digest]
    with box(tmp_path / "second", URL) as second:
        assert asked(second.job(), OLD) == (0, 3)


@pytest.mark.parametrize("clock_s", [-3600.0, 3600.0])
def test_a_bucket_whose_clock_is_wrong_is_used(clock_s, s3, tmp_path):
    s3.clock_s = clock_s
    with box(tmp_path / "first", URL) as first:
        committed(first, first.job(), OLD)
        assert first.http().post("/v1/tier/push").json()["artifacts"] == 1
        s3.objects["prefix/cas/v1/ff/" + "f" * 64] = b"an upload that no manifest names yet"
        assert first.http().post("/v1/tier/gc", json={"delete": True}).json()["artifacts"] == 0
    with box(tmp_path / "second", URL) as second:
        assert asked(second.job(), OLD) == (0, 3)


def test_no_credential_is_written_anywhere(s3, tmp_path, caplog):
    """Not by a daemon that uses them, nor by one that is refused: pages, errors, logs, files, objects."""
    said = []
    for fault in ("", "refused", "killed"):
        s3.fault = fault
        with box(tmp_path / f"box{fault}", URL) as served:
            job, http = served.job(), served.http()
            committed(served, job, OLD)
            asked(job, NEW)
            asked_for = {"recipe": job.recipe}
            said += [http.post(f"/v1/tier/{what}", json=asked_for).text for what in ("push", "pull")]
            said += [http.get(path).text for path in ("/v1/tier", "/", "/metrics", "/v1/stats", "/v1/info")]
    said += [record.getMessage() for record in caplog.records]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    written += [data for key, data in s3.objects.items() for data in (key.encode(), data)]
    everything = b"\n".join([*(text.encode() for text in said), *written])
    assert b"lab" in everything
    assert not [secret for secret in SECRETS.values() if secret.encode() in everything]
