"""What a function reads beside its items is observed: a change there is a miss that names the file."""

from collections import Counter

import pytest

READING = """
def make(item):
    called(item)
    with open("vocabulary.txt") as file:
        words = file.read().split()
    return words[item % len(words)]

def main():
    ds = prepcache.CachedDataset(list(range(8)), make, num_workers=int(sys.argv[1]), expand=False)
    words = open("vocabulary.txt").read().split()
    assert list(ds) == [words[i % len(words)] for i in range(8)], list(ds)
    tell(ds)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_an_edited_file_that_the_function_opened_is_a_named_miss(jobs, workers):
    vocabulary = jobs.box.folder / "vocabulary.txt"
    vocabulary.write_text("a b c")
    script = jobs.write(READING)
    jobs.run(script, workers)
    jobs.forget()
    assert jobs.run(script, workers)["hit"] == 8
    assert jobs.calls() == Counter()
    vocabulary.write_text("x y")
    edited = jobs.run(script, workers)
    assert edited["computed"] == 8
    assert any("vocabulary.txt" in line and "changed" in line for line in edited["why"])
    assert jobs.run(script, workers)["hit"] == 8
    vocabulary.write_text("a b c")
    back = jobs.run(script, workers)
    assert back["computed"] in (0, 8), "the old samples are right again, if they were kept"


ELSEWHERE = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from torch.utils.data import DataLoader

WORDS = []

def make(item):
    if not WORDS:
        with open("vocabulary.txt") as file:
            WORDS.extend(file.read().split())
    return WORDS[item % len(WORDS)]

def main():
    spawn = multiprocessing.get_context("spawn")
    options = {"untracked": ("WORDS",), "progress": False}
    if sys.argv[1] == "executor":
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            prepcache.CachedDataset([0, 1], make, executor=pool, **options)  # reads the file, once
            ds = prepcache.CachedDataset(list(range(8)), make, executor=pool, **options)
    else:
        ds = prepcache.CachedDataset(list(range(8)), make, lazy=True, **options)
        list(DataLoader(ds, batch_size=2, num_workers=1, multiprocessing_context=spawn))
    ds = prepcache.CachedDataset(list(range(8)), make, **options)
    words = open("vocabulary.txt").read().split()
    assert list(ds) == [words[i % len(words)] for i in range(8)], list(ds)
    tell(ds)

if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly(daily=["lazy"])
@pytest.mark.parametrize("how", ["executor", "lazy"])
def test_what_other_processes_read_counts_too(jobs, how):
    vocabulary = jobs.box.folder / "vocabulary.txt"
    vocabulary.write_text("a b c")
    script = jobs.write(ELSEWHERE)
    assert jobs.run(script, how)["hit"] == 8
    vocabulary.write_text("x y")
    jobs.run(script, how)


ONCE = """
import functools

@functools.lru_cache
def vocabulary():
    with open("vocabulary.txt") as file:
        return file.read().split()

def make(item, times=1):
    number, caption = item
    words = vocabulary()
    return words[number % len(words)] * times

first = make((0, ""))
train = prepcache.CachedDataset([(i, "") for i in range(4)], make, progress=False)
val = prepcache.CachedDataset([(i, "") for i in range(4)], make, {"times": 2}, progress=False)
words = open("vocabulary.txt").read().split()
assert list(train) == [words[i % len(words)] for i in range(4)], list(train)
assert list(val) == [2 * words[i % len(words)] for i in range(4)], list(val)
tell(val, train=train.report().computed)
"""


def test_a_file_that_is_loaded_once_counts_for_every_data_set(jobs):
    vocabulary = jobs.box.folder / "vocabulary.txt"
    vocabulary.write_text("a b c")
    script = jobs.write(ONCE)
    jobs.run(script)
    again = jobs.run(script)
    assert (again["train"], again["computed"]) == (0, 0)
    vocabulary.write_text("x y")
    edited = jobs.run(script)
    assert (edited["train"], edited["computed"]) == (4, 4)


LOADED_LATER = """
def make(item, times=1):
    from settings import scale
    return scale(item) * times

is_lazy = sys.argv[1] == "lazy"
train = prepcache.CachedDataset([1, 2], make, lazy=is_lazy, progress=False)
val = prepcache.CachedDataset([1, 2], make, {"times": 2}, lazy=is_lazy, progress=False)
tell(samples=[*train, *val])
"""
SETTINGS = """
import json
with open("settings.json") as file: SCALE = json.load(file)
def scale(x): return x * SCALE
"""


@pytest.mark.parametrize("way", ["eager", "lazy"])
def test_a_file_loaded_by_an_import_counts_for_every_data_set(jobs, way):
    """Only the first to call the function sees it being read."""
    (jobs.box.folder / "settings.py").write_text(SETTINGS)
    script = jobs.write(LOADED_LATER)
    for scale in (2, 3, 3):
        (jobs.box.folder / "settings.json").write_text(str(scale))
        assert jobs.run(script, way)["samples"] == [scale, 2 * scale, 2 * scale, 4 * scale]


SIDECARS = """
import prepcache.fill.filler
import prepcache.fill.share

prepcache.fill.filler.COMMIT_ITEMS = 50
prepcache.fill.share.CHUNK_S = 0.0  # one by one: a commit names what has been read before it

def make(item):
    called(item)
    with open(f"masks/{item}.txt") as mask:
        return int(mask.read())

ds = prepcache.CachedDataset(list(range(200)), make)
tell(ds, total=sum(ds))
"""


def test_each_item_may_have_a_file_of_its_own_beside_it(jobs):
    """Four artifacts, each of which names all the masks that were read before it."""
    masks = jobs.box.folder / "masks"
    masks.mkdir()
    for number in range(200):
        (masks / f"{number}.txt").write_text(str(number))
    script = jobs.write(SIDECARS)
    assert jobs.run(script)["total"] == 200 * 199 // 2
    assert jobs.run(script)["hit"] == 200
    (masks / "105.txt").write_text("1105")
    edited = jobs.run(script)
    assert edited["total"] == 200 * 199 // 2 + 1000
    assert edited["computed"] == 100
    assert any("masks/105.txt" in line and "changed" in line for line in edited["why"])
    assert jobs.run(script)["hit"] == 200


LEFT_OUT = """
import functools

def read():
    return float(Path("".join(("offset", ".txt"))).read_text())  # no path that stands in the code

@functools.lru_cache
def source():
    return iter([read()]), read()

class Keyed:
    def __prepcache_key__(self): return 1
    @functools.lru_cache
    def value(self): return read()

class Copied:
    kept = None
    def __getstate__(self): return {}
    def value(self):
        if self.kept is None:
            self.kept = read()
        return self.kept

keyed, copied = Keyed(), Copied()

def of_source(item): return source()[1] + item
def of_keyed(item): return keyed.value() + item
def of_copied(item): return copied.value() + item
def times(item): return source()[1] * 10 + item

sets = [prepcache.CachedDataset([0], of_source, progress=False)]
for function in (of_source, of_keyed, of_copied, times):
    untracked = () if function in (of_keyed, of_copied) else ("source",)
    sets += [
        prepcache.CachedDataset(items, function, untracked=untracked, progress=False) for items in ([1], [2])
    ]
tell(samples=[float(sample) for ds in sets for sample in ds], hits=sum(ds.report().hit for ds in sets))
"""


def test_what_is_read_into_what_does_not_count_is_an_input(jobs):
    """Only the first data set to call the function sees it being read."""
    script = jobs.write(LEFT_OUT)
    for offset, hits in ((100, 0), (200, 0), (200, 9)):
        (jobs.box.folder / "offset.txt").write_text(str(offset))
        told = jobs.run(script)
        assert told["samples"] == [offset, *[offset + 1, offset + 2] * 3, offset * 10 + 1, offset * 10 + 2]
        assert told["hits"] == hits
