"""Items that are instances: the code of their classes counts, for the function may call it."""

from __future__ import annotations

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
