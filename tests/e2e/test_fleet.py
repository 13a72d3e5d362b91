"""Jobs on several machines with one bucket and a lead daemon: every item is preprocessed once."""

import contextlib
import os
from typing import Any

import pytest

from support.fake_s3 import SECRETS, fake_s3
from support.fleet import TOKEN, box, lead, patient_fixture, status  # noqa: F401
from support.jobs import Jobs, facts_together
from support.serving import Serving

pytestmark = pytest.mark.usefixtures("patient")

MAKE = """
def make(item):
    called(item)
    time.sleep(0.002)
    return np.full(4, item)
"""
JOB = """
count, how = int(sys.argv[1]), sys.argv[2]
barrier()
ds = prepcache.CachedDataset(list(range(count)), make, lazy=how == "lazy", progress=False)
assert all((ds[at] == at).all() for at in range(count))
tell(ds)
"""
COUNT = 400
CHILDREN = """
import subprocess
from concurrent.futures import ProcessPoolExecutor

secrets = Path(sys.argv[1]).read_text().split()

def shown(item):
    seen = [*os.environ.values(), Path("/proc/self/cmdline").read_text()]
    seen.append(subprocess.run(["env"], capture_output=True, text=True).stdout)
    return np.array([secret in text for text in seen for secret in secrets])

def samples(**how):
    return list(prepcache.CachedDataset([1, 2], shown, untracked=("secrets",), progress=False, **how))

with ProcessPoolExecutor(1) as pool:
    found = [*samples(config={}, num_workers=2), *samples(version="2", executor=pool)]
tell(shown=[bool(one.any()) for one in found])
"""


def run(jobs: Jobs, boxes: list[Serving], each: int, how: str) -> list[dict[str, Any]]:
    """So many jobs on every machine, all at once."""
    script = jobs.write(MAKE + JOB)
    urls = [f"unix://{one.uds}" for one in boxes for _ in range(each)]
    return facts_together([jobs.start(script, COUNT, how, PREPCACHE_URL=url) for url in urls])


@pytest.mark.nightly(daily=["prepared"])
@pytest.mark.parametrize("how", ["prepared", "lazy"])
def test_four_boxes_make_every_item_once(how, jobs, tmp_path):
    """With 16 jobs; a fifth box calls the function 0 times."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with contextlib.ExitStack() as stack:
        _, given = stack.enter_context(lead(tmp_path / "lead"))
        boxes = [stack.enter_context(box(tmp_path / f"box{at}", bucket, upstream=given)) for at in range(4)]
        facts = run(jobs, boxes, 4, how)
        calls = jobs.calls()
        assert sorted(calls) == list(range(COUNT)) and set(calls.values()) == {1}
        assert sum(one["computed"] for one in facts) == COUNT
        jobs.forget()
        fifth = stack.enter_context(box(tmp_path / "fifth", bucket, upstream=given))
        [told] = run(jobs, [fifth], 1, how)
        assert (told["computed"], jobs.calls()) == (0, {})


def test_credentials_are_in_no_childs_environment(jobs, tmp_path, monkeypatch):
    """Neither the processes that a data set starts, nor what they start, are told the token or the bucket's
    keys. The daemon starts no process (a contract of its imports)."""
    (tmp_path / "secrets").write_text("\n".join([TOKEN, *SECRETS.values()]))
    without = dict.fromkeys(SECRETS, "")
    with fake_s3() as s3:
        for name, value in {**s3.environ, "AWS_ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(name, value)
        with lead(tmp_path / "lead", tier={"url": "s3://lab/prefix"}) as (served, given):
            urls = {"PREPCACHE_URL": given["upstream"], "PREPCACHE_TOKEN_FILE": given["upstream_token_file"]}
            job = jobs.start(jobs.write(CHILDREN), tmp_path / "secrets", **urls, **without)
            assert job.facts()["shown"] == [False] * 4
            assert served.http().get("/v1/stats").json()["committed_items"] == 4
            assert served.http().post("/v1/tier/push").json()["artifacts"] + status(served)["written"] >= 2
            assert TOKEN not in str(dict(os.environ))
