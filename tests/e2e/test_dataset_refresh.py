"""PREPCACHE=refresh: what it made anew replaces what was there, for every job that comes later."""

from __future__ import annotations

import pytest

from support.jobs import Jobs

JOB = """
SOURCE = int(sys.argv[1])
"A stand-in for what no key can see."

def read(item):
    called(item)
    return item, SOURCE

def expand(item):
    called(item)
    yield from [(item, SOURCE)] * (item % 3)

function = expand if len(sys.argv) > 3 else read
ds = prepcache.CachedDataset(
    eval(sys.argv[2]), function, untracked=["SOURCE"], expand=len(sys.argv) > 3, progress=False
)
tell(ds, samples=[list(sample) for sample in ds])
"""

PURGE = """
import prepcache
client = prepcache.Client()
client.purge(keys=[entry.key for entry in client.entries() if entry.items == 3])
"""


def sources(facts: dict[str, list[tuple[int, int]]]) -> dict[int, set[int]]:
    """Item -> whose samples of it were read."""
    found: dict[int, set[int]] = {}
    for item, source in facts["samples"]:
        found.setdefault(item, set()).add(source)
    return found


@pytest.mark.parametrize("how", [(), ("expand",)])
def test_later_jobs_read_refreshed_items(jobs: Jobs, how: tuple[str, ...]) -> None:
    """What lay beside them in a replaced artifact is preprocessed again where it is read."""
    script = jobs.write(JOB)
    jobs.run(script, 1, "range(12)", *how)
    jobs.run(script, 2, "range(2, 8)", *how, PREPCACHE="refresh")
    assert jobs.calls().total() == 12 + 6
    later = sources(jobs.run(script, 3, "range(12)", *how))
    may_be = {item: [{2}] if 2 <= item < 8 else [{1}, {3}] for item in range(12) if not how or item % 3}
    assert all(later[item] in made_by for item, made_by in may_be.items())
    jobs.run(script, 4, "range(2, 4)", *how, PREPCACHE="refresh")
    again = sources(jobs.run(script, 5, "range(2, 4)", *how))
    assert again == {item: {4} for item in (2, 3) if item in may_be}


def test_a_purge_of_refreshed_items_does_not_restore_old_ones(jobs: Jobs) -> None:
    script = jobs.write(JOB)
    jobs.run(script, 1, "range(6)")
    jobs.run(script, 2, "range(3)", PREPCACHE="refresh")
    jobs.box.python("-c", PURGE)
    found = sources(jobs.run(script, 3, "range(6)"))
    assert [found[item] for item in range(3)] == [{3}] * 3
