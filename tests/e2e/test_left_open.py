"""A job whose function keeps a connection open from its first call opens further data sets all the same."""

from __future__ import annotations

from support.jobs import Jobs
from support.sandbox import sandbox

JOB = """
import sqlite3
DB = None

def made(item):
    global DB
    called(item)
    DB = DB or sqlite3.connect(":memory:")
    return DB.execute("select ? + 1", (item,)).fetchone()[0]

train = prepcache.CachedDataset([1, 2], made, progress=False)
val = prepcache.CachedDataset([3, 4], made, progress=False)
tell(given=[*train, *val, *val])
"""


def test_each_job_is_given_its_samples_and_the_second_makes_none() -> None:
    with sandbox() as box:
        jobs = Jobs(box)
        script, calls = jobs.write(JOB), []
        for _ in range(3):
            assert jobs.run(script)["given"] == [2, 3, 4, 5, 4, 5]
            calls.append(sorted(jobs.calls().elements()))
            jobs.forget()
        jobs.close()
    assert calls == [[1, 1, 2, 2, 3, 4], [], []], (
        "the connection counts as before the first call, which made none"
    )
