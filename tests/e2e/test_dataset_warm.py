"""A data set on a warm cache: nothing is preprocessed that was before, whatever the list looks like now."""

from collections import Counter
from pathlib import Path

import pytest

from support.jobs import Jobs

FILES = """
def decode(path, scale):
    called(path)
    return {"pixels": np.frombuffer(path.read_bytes(), "u1") * scale, "name": path.name}

folder = Path(sys.argv[1])
files = sorted(folder.iterdir())
files = eval(sys.argv[2])
ds = prepcache.CachedDataset(files, decode, config={"scale": int(sys.argv[3])}, root=folder, progress=False)
for position, path in enumerate(files):
    sample = ds[position]
    assert sample["name"] == path.name
    assert (sample["pixels"] == np.frombuffer(path.read_bytes(), "u1") * int(sys.argv[3])).all()
tell(ds, cached=ds.cached())
"""


def make_files(jobs: Jobs, count: int) -> Path:
    folder = jobs.box.folder / "data"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05}.bin").write_bytes(number.to_bytes(2, "big") * (1 + number % 7))
    return folder


def test_files_cold_warm_edited_moved_and_filtered(jobs):
    """All that a warm data set promises, in one go: each step says how many calls it may take."""
    folder = make_files(jobs, 400)
    script = jobs.write(FILES)
    everything = {f"{number:05}.bin" for number in range(400)}

    cold = jobs.run(script, folder, "files", 1)
    assert jobs.calls() == Counter(dict.fromkeys(everything, 1))
    assert (cold["computed"], cold["hit"], cold["cached"]) == (400, 0, 400)

    jobs.forget()
    warm = jobs.run(script, folder, "files", 1)
    assert jobs.calls() == Counter()
    assert (warm["computed"], warm["hit"]) == (0, 400)
    assert warm["seconds_saved"] > 0
    assert warm["bytes"] > 0

    (folder / "00277.bin").write_bytes(b"edited")
    edited = jobs.run(script, folder, "files", 1)
    assert jobs.calls() == Counter({"00277.bin": 1})
    assert (edited["computed"], edited["hit"]) == (1, 399)

    jobs.forget()
    for order in (
        "files[::-1]",
        "files[::3]",
        "files + files[:5]",
        "sorted(files, key=lambda f: hash(f.name))",
    ):
        other = jobs.run(script, folder, order, 1)
        assert other["computed"] == 0
    assert jobs.calls() == Counter()

    for part, computed in (("[:100] + files[:5]", 100), ("[80:150]", 50), ("[150:200]", 50), ("[:200]", 0)):
        assert jobs.run(script, folder, f"files{part}", 2)["computed"] == computed, "of a union, nothing"
    jobs.forget()
    back = jobs.run(script, folder, "files[:100]", 1)
    assert (back["computed"], jobs.calls()) == (0, Counter())

    moved = folder.rename(folder.with_name("moved"))
    assert jobs.run(script, moved, "files", 1)["computed"] == 0
    (moved / "new.bin").write_bytes(b"new")
    grown = jobs.run(script, moved, "files", 1)
    assert jobs.calls() == Counter({"new.bin": 1})
    assert grown["hit"] == 400


def test_modes_off_readonly_and_refresh(jobs):
    folder = make_files(jobs, 10)
    script = jobs.write(FILES)
    jobs.run(script, folder, "files[:6]", 1)
    jobs.forget()
    off = jobs.run(script, folder, "files", 1, PREPCACHE="off")
    assert (off["hit"], off["cached"]) == (0, 0), "though a daemon runs"
    assert jobs.calls().total() == 10

    jobs.forget()
    readonly = jobs.run(script, folder, "files", 1, PREPCACHE="readonly")
    assert (readonly["hit"], readonly["cached"]) == (6, 6)
    assert jobs.calls() == Counter({f"{number:05}.bin": 1 for number in range(6, 10)})
    assert jobs.run(script, folder, "files", 1)["computed"] == 4, "readonly kept nothing"

    jobs.forget()
    refreshed = jobs.run(script, folder, "files", 1, PREPCACHE="refresh")
    assert (refreshed["computed"], refreshed["hit"]) == (10, 0)
    assert jobs.calls().total() == 10
    jobs.forget()
    assert jobs.run(script, folder, "files", 1)["computed"] == 0
    assert jobs.calls() == Counter()


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


def sources(facts: dict[str, list[tuple[int, int]]]) -> dict[int, set[int]]:
    """Item -> whose samples of it were read."""
    found: dict[int, set[int]] = {}
    for item, source in facts["samples"]:
        found.setdefault(item, set()).add(source)
    return found


@pytest.mark.parametrize("how", [(), ("expand",)])
def test_later_jobs_read_refreshed_items(jobs, how):
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
