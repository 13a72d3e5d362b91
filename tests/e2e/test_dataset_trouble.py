"""A daemon in trouble of its own: the job goes on, and one line says why its samples are not kept."""

from __future__ import annotations

from support.sandbox import sandbox

JOB = """
import prepcache
from prepcache.control import session
from prepcache.errors import StoreError

def fail(*given, **named):
    raise StoreError("the daemon met an unforeseen error")

session.Session.lease = fail
ds = prepcache.CachedDataset(range(5), abs)
assert list(ds) == list(range(5))
"""


def test_a_fill_that_ends_early_says_why_once() -> None:
    with sandbox() as box:
        said = box.python("-c", JOB).stderr.splitlines()
    assert [line for line in said if "unforeseen" in line] == [
        "prepcache: builtins.abs: 5 items are preprocessed on access: the daemon met an unforeseen error"
    ]


def test_a_daemon_that_is_not_there_is_no_news_for_the_fill() -> None:
    with sandbox() as box:
        environ = {"PREPCACHE_URL": f"unix://{box.folder}/nobody.sock"}
        job = "import prepcache; prepcache.CachedDataset(range(5), abs)"
        said = box.python("-c", job, environ=environ).stderr
    assert "preprocessed on access" not in said
