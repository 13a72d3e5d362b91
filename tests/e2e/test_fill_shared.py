"""Jobs at once on cold data: the function is called exactly once per distinct item, over all of them."""

import json
from collections import Counter

from support import serving
from support.jobs import Jobs

SQUARES = """
wait = threading.Event()

def square(item, pause_s):
    called(item)
    wait.wait(pause_s)
    return np.full(16, item * item)

items = json.loads(sys.argv[1])
pause_s = float(sys.argv[2])
barrier()
ds = prepcache.CachedDataset(items, square, config={"pause_s": pause_s}, untracked=("wait",), progress=False)
assert len(ds) == len(items)
for position, item in enumerate(items):
    assert (ds[position] == item * item).all(), (position, item, ds[position])
tell(ds)
"""


def check_once(jobs: Jobs, each: list[list[int]], facts: list[dict[str, int]]) -> None:
    """Every distinct item was made by exactly one job; what each job saw adds up."""
    distinct = {item for items in each for item in items}
    assert jobs.calls() == Counter(dict.fromkeys(distinct, 1))
    assert sum(one["computed"] for one in facts) == len(distinct)
    for items, one in zip(each, facts, strict=True):
        assert one["items"] == len(items)
        assert one["hit"] + one["computed"] + one["waited"] == len(items)
        assert one["declined"] == 0


def arguments(each: list[list[int]], pause_s: float) -> list[tuple[str, float]]:
    return [(json.dumps(items), pause_s) for items in each]


def test_jobs_with_other_orders_and_subsets_make_each_item_once(jobs):
    each = [
        list(range(120)),
        list(range(119, -1, -1)),
        list(range(0, 120, 2)),
        list(range(60, 180)),
        list(range(1, 120, 3)) + list(range(0, 120, 3)),
        list(range(170, 40, -1)),
        [5, 5, 5, 7, 7, *range(100, 110)],
        list(range(200, 240)),
    ]
    facts = jobs.together(jobs.write(SQUARES), arguments(each, 0.005))
    check_once(jobs, each, facts)


def test_a_function_that_raises_leaves_its_items_to_other_jobs(jobs):
    raising = """    called(item)
    if item == 30 and os.access("broken", os.F_OK):  # which is not seen
        raise ValueError("broken")
"""
    body = SQUARES.replace("    called(item)\n", raising)
    script = jobs.write(body)
    items = list(range(100))
    broken = jobs.start(script, *arguments([items], 0.01)[0])
    (jobs.box.folder / "broken").touch()
    broken.ready()
    broken.go()
    assert "preprocessing item 30 (30) failed: ValueError: broken" in broken.facts(exit_code=1)
    (jobs.box.folder / "broken").unlink()
    before = jobs.calls()
    facts = jobs.together(script, arguments([items], 0.01))
    assert facts[0]["hit"] == sum(before.values()) - 1
    assert jobs.calls() == Counter(dict.fromkeys(items, 1)) + Counter({30: 1})


DYING = """
from prepcache.fill.share import Share
wait = Share.wait

def waited(*given, **named):
    granted = wait(*given, **named)
    if not granted:
        Path("waited").touch()
    return granted

Share.wait = waited

def make(item):
    called(item)
    if sys.argv[1] == "dies":
        barrier()
        os._exit(1)
    return np.full(16, item)

ds = prepcache.CachedDataset(range(40), make, version="1", code=None)
"""


def test_a_job_says_that_it_takes_over_what_another_leased(jobs):
    script = jobs.write(DYING)
    dying = jobs.start(script, "dies")
    dying.ready()
    job = jobs.start(script, "lives")
    assert serving.wait_until((jobs.box.folder / "waited").exists)
    dying.go()
    said = job.process.communicate(timeout=240)[1]
    assert ") began items and did not store them: this job preprocesses them" in said
    assert jobs.calls() == Counter(range(40)) + Counter({0: 1})


LARGE = """
from prepcache.fill import pending
from prepcache.fill import call
call.PART_BYTES, pending.COMMIT_BYTES = 4_000, 20_000

def many(item):
    called(item)
    for number in range(item):
        yield np.full(100, number)

items = json.loads(sys.argv[1])
barrier()
ds = prepcache.CachedDataset(items, many, expand=True, code=None, version="1", progress=False)
assert [int(row[0]) for row in ds] == [n for item in items for n in range(item)]
tell(ds)
"""


def test_items_larger_than_a_commit_are_found_whole(jobs):
    each = [[300, 5, 200], [200, 7, 300, 0]]
    script = jobs.write(LARGE)
    facts = jobs.together(script, [(json.dumps(items),) for items in each])
    check_once(jobs, each, facts)
    jobs.forget()
    (warm,) = jobs.together(script, [(json.dumps([300, 200, 5]),)])
    assert warm["hit"] == 3
    assert jobs.calls() == Counter()
