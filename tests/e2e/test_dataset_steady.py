"""What counts in a recipe and changes while a data set is open: no sample of it is stored."""

import pytest

LAZY = """
V = 2
OPTS = {"k": 1, "list": [1]}
def make(item, opts):
    called(item)
    return item * V * opts["k"] * len(opts["list"])

ds = prepcache.CachedDataset(list(range(1, 9)), make, {"opts": OPTS}, lazy=True, progress=False)
if sys.argv[1] == "look":
    tell(ds, samples=list(ds))
else:
    made = [ds[0], ds[1]]
    if sys.argv[1] == "global":
        V = 5
    else:
        OPTS["k"] = 5
        OPTS["list"].append(2)
    made += [ds[2], ds[3], ds[4]]
    tell(made=made)
"""
RIGHT = [2 * item for item in range(1, 9)]


def test_samples_made_after_a_global_was_set_are_not_stored(jobs):
    script = jobs.write(LAZY)
    assert jobs.run(script, "global")["made"] == [2, 4, 15, 20, 25]
    assert jobs.run(script, "look")["samples"] == RIGHT


def test_a_config_altered_by_the_caller_is_passed_as_it_was(jobs):
    script = jobs.write(LAZY)
    assert jobs.run(script, "config")["made"] == RIGHT[:5]
    looked = jobs.run(script, "look")
    assert looked["samples"] == RIGHT
    assert sum(jobs.calls().values()) == 8


FILLING = """
V = 2
SIZES = {"width": 1}
RUN = sys.argv[1]

def make(item):
    called(item)
    if item == 20 and RUN != "quiet":
        other = threading.Thread(target=change)
        other.start()
        other.join()
    return item * V * SIZES["width"]

def change():
    global V
    if RUN == "global":
        V = 5
    else:
        SIZES["width"] = 5

ds = prepcache.CachedDataset(list(range(1, 60)), make, untracked=("RUN", "change"), progress=False)
ds.prepare()
tell(ds, samples=list(ds))
"""


@pytest.mark.parametrize("what", ["global", "dict"])
def test_what_another_thread_changes_during_a_fill_is_not_stored(jobs, what):
    script = jobs.write(FILLING)
    first = jobs.run(script, what)
    assert first["samples"][-1] == 59 * {"global": 5, "dict": 10}[what]
    assert any("changed since the data set was opened" in line for line in first["why"]), first
    assert jobs.run(script, "quiet")["samples"] == [2 * item for item in range(1, 60)]


SPAWNED = """
import multiprocessing
import sizes
from concurrent.futures import ProcessPoolExecutor
from torch.utils.data import DataLoader

if __name__ == "__main__":
    sizes.WIDTH = 5
    how = multiprocessing.get_context(sys.argv[2])
    if sys.argv[1] == "executor":
        with ProcessPoolExecutor(1, mp_context=how) as pool:
            ds = prepcache.CachedDataset(list(range(4)), sizes.make, progress=False, executor=pool)
        tell(ds)
        sys.exit()
    ds = prepcache.CachedDataset(list(range(4)), sizes.make, lazy=True, progress=False)
    if sys.argv[1] == "workers":
        batches = list(DataLoader(ds, 2, num_workers=1, multiprocessing_context=how))
        tell(made=len(batches))
    else:
        tell(ds, samples=list(ds))
"""


@pytest.mark.parametrize(("who", "how"), [("workers", "spawn"), ("executor", "spawn"), ("executor", "fork")])
def test_a_worker_without_the_jobs_settings_stores_nothing(jobs, who, how):
    (jobs.box.folder / "sizes.py").write_text("WIDTH = 2\ndef make(item): return item * WIDTH\n")
    script = jobs.write(SPAWNED)
    told = jobs.run(script, who, how)
    if (who, how) == ("executor", "spawn"):
        assert any("sizes.WIDTH changed" in line for line in told["why"])
    looked = jobs.run(script, "look", how)
    assert looked["samples"] == [0, 5, 10, 15]
    assert looked["hit"] == (4 if how == "fork" else 0)


KEPT = """
import pathlib, sizes
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

if __name__ == "__main__":
    if sys.argv[1] == "look":
        ds = prepcache.CachedDataset(list(range(4)), sizes.make, progress=False)
        tell(ds, samples=list(ds))
        sys.exit()
    with ProcessPoolExecutor(1, mp_context=get_context(sys.argv[1])) as pool:
        if sys.argv[4:]:  # which starts its processes
            prepcache.CachedDataset(list(range(4)), sizes.make, progress=False, executor=pool)
        pathlib.Path(sys.argv[2]).write_text(sys.argv[3])
        ds = prepcache.CachedDataset(list(range(4)), sizes.make, progress=False, executor=pool)
        tell(ds, samples=list(ds))
"""


OUTDATED = """
WIDTH = {n}
FUNCTIONS = [lambda: {n}]
def by_list(): return FUNCTIONS[0]()
"""


@pytest.mark.parametrize(("how", "what"), [("spawn", "WIDTH"), ("forkserver", "by_list()")])
def test_an_executor_with_outdated_code_stores_nothing(jobs, how, what):
    """The job has not loaded it: it counts as its file is now."""
    helper = jobs.box.folder / "helper.py"
    helper.write_text(OUTDATED.format(n=2))
    (jobs.box.folder / "sizes.py").write_text(
        f"def make(item):\n    import helper\n    return item * helper.{what}\n"
    )
    script = jobs.write(KEPT)
    told = jobs.run(script, how, helper, OUTDATED.format(n=1000), "is begun")
    assert told["samples"] == [0, 2, 4, 6], "the executor's is the old one"
    assert any("helper.py changed since" in line for line in told["why"]), told
    looked = jobs.run(script, "look")
    assert (looked["samples"], looked["hit"]) == ([0, 1000, 2000, 3000], 0)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_an_executor_keeps_what_it_makes_with_a_new_module(jobs, how):
    """The job has written it after it began, as the user of a notebook does."""
    helper = jobs.box.folder / "helper.py"
    (jobs.box.folder / "sizes.py").write_text(
        "def make(item):\n    import helper\n    return item * helper.WIDTH\n"
    )
    helper.write_text("WIDTH = int('2')\n")
    script = jobs.write(KEPT)
    assert jobs.run(script, how, helper, "WIDTH = int('3')")["samples"] == [0, 3, 6, 9]
    assert jobs.run(script, "look")["hit"] == 4
