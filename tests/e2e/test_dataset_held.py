"""Data sets that an object or a function holds: they count by their samples."""

from __future__ import annotations

from collections import Counter

from support.jobs import Jobs

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


def test_an_object_may_keep_the_data_sets_that_its_method_makes(jobs: Jobs) -> None:
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


def test_a_data_set_in_a_function_counts_by_its_own_inputs(jobs: Jobs) -> None:
    script = jobs.write(READER)
    words = jobs.box.folder / "words.txt"
    words.write_text("one")
    assert jobs.run(script)["samples"] == ["ONE1", "ONE2"]
    assert jobs.run(script)["hit"] == 2
    words.write_text("two")
    assert jobs.run(script)["samples"] == ["TWO1", "TWO2"]
