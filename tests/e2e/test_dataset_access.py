"""Reading a data set: by index, by batch, in workers of every kind, pickled, lazily, without a daemon."""

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import CachedDataset, Client

INTERRUPTED = """
ready = []

def make(item):
    called(item)
    if item == 7 and not ready:
        raise KeyboardInterrupt
    return np.zeros(3) + item

lines = listening()
for _ in range(2):
    try:
        ds = prepcache.CachedDataset(list(range(20)), make, untracked=("ready",))
    except KeyboardInterrupt:
        ready.append(True)
assert sum("interrupted" in line for line in lines) == 1, lines
onward = "; the next run continues from there, unless the code is edited"
assert f"job.make: interrupted: 7 of 20 items are stored{onward}" in lines, lines
tell(ds)
"""


def test_an_interrupted_fill_is_continued_by_the_next_run(jobs):
    facts = jobs.run(jobs.write(INTERRUPTED))
    assert (facts["hit"], facts["computed"]) == (7, 13)


RAISING = """
import sys

def make(item):
    if item == 7:
        raise ValueError("no image")
    return item

def made(item):
    if item != 7:
        yield item

prepcache.CachedDataset(range(20), made, expand=True)
try:
    prepcache.cached(make, data=7)
except prepcache.PreprocessError as error:
    print(error, file=sys.stderr)
prepcache.CachedDataset(range(20), make)
"""


def test_a_function_that_raises_reports_what_was_stored(jobs):
    said = jobs.run(jobs.write(RAISING), exit_code=1).splitlines()
    kept = "7 of 20 items are stored; the next run continues from there, unless the code is edited"
    assert f"prepcache: job.make: ended by an error: {kept}" in said
    assert said[-1].endswith("preprocessing item 7 (7) failed: ValueError: no image")
    assert not any("job.made: ended" in line for line in said)
    assert "preprocessing 7 failed: ValueError: no image" in said, "cached() has no items"
    assert not any("fill.py" in line or "calls.py" in line for line in said)


CALLS: list[int] = []


def make(item: int) -> tuple[Any, ...]:
    CALLS.append(item)
    return torch.full((4,), item), np.int32(item), str(item), None if item % 2 else [item]


def opened(client: Client, **options: Any) -> CachedDataset[Any]:
    return CachedDataset(range(50), make, code=None, version="1", progress=False, client=client, **options)


def test_indices_batches_and_transforms(client):
    CALLS.clear()
    ds = opened(client)
    for i in (0, 49, -1, -50, np.int64(7), torch.tensor(7)):
        sample, want = ds[i], int(i) % 50
        assert (sample[0] == want).all() and sample[1:3] == (want, str(want))
        assert sample[3] == (None if want % 2 else [want])
    for i in (50, -51):
        with pytest.raises(IndexError, match="out of range"):
            ds[i]
    for wrong in (slice(0, 2), 1.5, "a", [1]):
        with pytest.raises(TypeError):
            ds[wrong]
    assert [s[2] for s in ds.__getitems__([3, 1, 1, -1])] == ["3", "1", "1", "49"]
    assert [s[2] for s in ds] == [str(i) for i in range(50)]
    ds[3][0].zero_()
    assert (ds[3][0] == 3).all(), "a sample is a copy"
    doubled = opened(client, transform=lambda s: s[1] * 2)
    assert doubled[4] == 8 and doubled.__getitems__([4, 5]) == [8, 10]
    assert doubled.report().hit == 50 and sorted(CALLS) == list(range(50))


def test_pickles_and_threads_read_the_same_maps(client):
    CALLS.clear()
    ds = opened(client)
    again = pickle.loads(pickle.dumps(ds))
    with ThreadPoolExecutor(8) as threads:
        reading = [threads.submit(lambda: [int(ds[i][1]) for i in range(50)]) for _ in range(8)]
    for read in ([again[i][1] for i in range(50)], *(one.result() for one in reading)):
        assert read == list(range(50))
    assert sorted(CALLS) == list(range(50))


PARALLEL = """
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

def make(item):
    called(item)
    return {"a": np.arange(item * 100), "b": item}

def main():
    how = sys.argv[1]
    lock = threading.Lock()
    closed = lambda item: make(item) if lock else None
    if how == "workers":
        ds = prepcache.CachedDataset(list(range(60)), closed, num_workers=2, untracked=("lock",))
    else:
        pool = ProcessPoolExecutor(2) if how == "processes" else ThreadPoolExecutor(2)
        with pool:
            ds = prepcache.CachedDataset(list(range(60)), make, executor=pool, progress=False)
    for i in range(60):
        assert ds[i]["b"] == i and len(ds[i]["a"]) == i * 100
    tell(ds)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["workers", "processes", "threads"])
def test_workers_and_executors_preprocess_each_item_once(jobs, how):
    assert jobs.run(jobs.write(PARALLEL), how)["computed"] == 60
    assert jobs.calls() == Counter(dict.fromkeys(range(60), 1))


WHOLE = """
def mean(paths, channels):
    called(len(paths))
    return {"mean": np.mean([path.stat().st_size for path in paths]), "channels": channels}

@prepcache.cached(version="1")
def vocabulary(words, size):
    called(size)
    return sorted(set(words))[:size]

@prepcache.cached
def longest(words):
    return max(words, key=len)

folder = Path(sys.argv[1])
paths = sorted(folder.iterdir())
stats = prepcache.cached(mean, data=paths, config={"channels": 3}, root=folder, progress=False)
assert stats == {"mean": np.mean([path.stat().st_size for path in paths]), "channels": 3}
assert vocabulary(["b", "a", "b"], size=2) == ["a", "b"]
assert vocabulary(["b", "a", "b"], size=1) == ["a"]
assert longest(["b", "aa"]) == "aa"
for given in ((), (["b"], 3)):
    try:
        longest(*given)
    except TypeError as error:
        assert str(error).startswith("longest() is cached: call it as longest(data, "), error
    else:
        raise AssertionError(given)
tell()
"""


def test_cached_functions_compute_whole_trees_once(jobs):
    folder = jobs.box.folder / "files"
    folder.mkdir()
    for number in range(3):
        (folder / str(number)).write_bytes(b"x" * number)
    script = jobs.write(WHOLE)
    jobs.run(script, folder)
    assert jobs.calls() == Counter({3: 1, 2: 1, 1: 1})
    jobs.forget()
    jobs.run(script, folder)
    assert jobs.calls() == Counter()
    (folder / "1").write_bytes(b"edited")
    jobs.run(script, folder)
    assert jobs.calls() == Counter({3: 1})


HOLDER = """
class Data:
    def __init__(self, factor):
        self.factor = factor

    def make(self, item):
        called(item)
        return item * self.factor

    def setup(self):
        self.train = prepcache.CachedDataset([1, 2], self.make, progress=False)
        self.val = prepcache.CachedDataset(json.loads(sys.argv[1]), self.make, progress=False)
        self.test = prepcache.CachedDataset([9], self.make, progress=False)

data = Data(2)
data.setup()
tell(data.test, samples=[*data.train, *data.val, *data.test])
"""


def test_an_object_may_keep_the_data_sets_that_its_method_makes(jobs):
    """They count by their samples, so in the next job they count alike; other samples are another state."""
    script = jobs.write(HOLDER)
    assert jobs.run(script, "[3, 4]")["samples"] == [2, 4, 6, 8, 18]
    jobs.forget()
    assert jobs.run(script, "[3, 4]")["hit"] == 1
    assert jobs.calls() == Counter()
    assert jobs.run(script, "[4, 3]")["hit"] == 0


READER = """
def words(item):
    return open("words.txt").read() + str(item)

INNER = prepcache.CachedDataset([1, 2], words, progress=False)

def loud(index):
    called(index)
    return INNER[index].upper()

ds = prepcache.CachedDataset([0, 1], loud, progress=False)
tell(ds, samples=list(ds))
"""


def test_a_data_set_in_a_function_counts_by_its_own_inputs(jobs):
    script = jobs.write(READER)
    words = jobs.box.folder / "words.txt"
    words.write_text("one")
    assert jobs.run(script)["samples"] == ["ONE1", "ONE2"]
    assert jobs.run(script)["hit"] == 2
    words.write_text("two")
    assert jobs.run(script)["samples"] == ["TWO1", "TWO2"]
