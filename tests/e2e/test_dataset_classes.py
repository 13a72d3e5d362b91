"""Items that are instances: the code of their classes counts, for the function may call it."""

from __future__ import annotations

from collections import Counter

import pytest

from support.jobs import Jobs

PREP = "def make(item): return item.value()\n"
SPEC = """
from dataclasses import dataclass
SCALE = 1
@dataclass
class Spec:
    x: int
    def value(self): return self.x * {0} * SCALE
"""
OPEN = """
ds = prepcache.CachedDataset([Spec(1), Spec(2)], make, progress=False, code=sys.argv[1])
tell(ds, samples=list(ds))
"""


@pytest.mark.parametrize("code", ["script", "function"])
def test_an_edited_method_of_an_items_class_is_a_miss(jobs: Jobs, code: str) -> None:
    (jobs.box.folder / "prep.py").write_text(PREP)
    specs = jobs.box.folder / "specs.py"
    specs.write_text(SPEC.format(2))
    script = jobs.write("from prep import make\nfrom specs import Spec\n" + OPEN)
    assert jobs.run(script, code)["samples"] == [2, 4]
    script.write_text(script.read_text() + "# the script may change\n")
    assert jobs.run(script, code)["hit"] == 2
    specs.write_text(SPEC.format(5))
    assert jobs.run(script, code)["samples"] == [5, 10]
    specs.write_text(SPEC.format(5).replace("SCALE = 1", "SCALE = 3"))
    assert jobs.run(script, code)["samples"] == [15, 30]


def test_classes_of_one_name_in_two_scripts_are_two(jobs: Jobs) -> None:
    (jobs.box.folder / "prep.py").write_text(PREP)
    body = "from prep import make\n" + SPEC + OPEN
    first, second = (jobs.write(body.format(n), f"job{n}.py") for n in (2, 9))
    assert jobs.run(first, "script")["samples"] == [2, 4]
    assert jobs.run(second, "script")["samples"] == [9, 18]
    assert jobs.run(first, "script")["hit"] == 2


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
