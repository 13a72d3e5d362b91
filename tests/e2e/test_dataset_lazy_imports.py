"""Jobs whose function imports what it uses when it is called: no stale sample, and none made twice."""

import pytest

from support.jobs import Jobs

PREP = "def f(x):\n    from helper import g\n    return np.array(g(x))\n"
FILES = {
    "settings": "S = 1\nT = 1\n",
    "helper": "import math, settings\nK = math.sqrt(4)\ndef g(x, k=1):\n    return k * x * settings.S * K\n",
    "prep": f"import numpy as np\n{PREP}",
}
VALUES = """
def values(ds):
    return [float(np.asarray(ds[i])) for i in range(len(ds))]
"""


def written(jobs: Jobs, body: str, **files: str) -> None:
    for name, text in {**FILES, **files}.items():
        (jobs.box.folder / f"{name}.py").write_text(text)
    jobs.write(VALUES + body)


THREE = """
import prep
told = []
for start in (0, 10, 20):
    ds = prepcache.CachedDataset([start, start + 1], prep.f, code=sys.argv[1])
    assert values(ds) == [2 * start, 2 * start + 2]
    told.append(ds.report().hit)
tell(hit=told)
"""


@pytest.mark.parametrize("code", ["function", "script"])
def test_values_computed_at_import_cost_no_recompute(jobs, code):
    """Whether a data set was opened before or after the calls for another had loaded the module."""
    written(jobs, THREE)
    script = jobs.box.folder / "job.py"
    hits = [jobs.run(script, code)["hit"] for _ in range(2)]
    assert hits == [[0, 0, 0], [2, 2, 2]]


def test_a_constant_made_from_a_setting_is_not_a_fresh_one(jobs):
    written(
        jobs,
        """
import settings, prep
if sys.argv[1] == "twice":
    assert values(prepcache.CachedDataset([1, 2], prep.f)) == [1, 2]
settings.S = 5
tell(given=values(prepcache.CachedDataset([3, 4], prep.f)))
""",
        helper="import settings\nK = settings.S * 1.0\ndef g(x):\n    return x * K\n",
    )
    script = jobs.box.folder / "job.py"
    assert jobs.run(script, "twice")["given"] == [3, 4]
    assert jobs.run(script, "once")["given"] == [15, 20]
