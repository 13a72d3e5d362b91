"""A callable that its own calls change: its samples are made once, in this process and in all others."""

from collections import Counter

CALLABLES = '''
class Counting:
    def __init__(self, size=4):
        self.size, self.n = size, 0

    def __call__(self, item):
        self.n += 1
        called(item)
        return np.full((self.size,), float(item))

class Reader:
    """As LoadImaged of MONAI's keeps the name of the last file."""

    def __init__(self):
        self.filenames = None

    def get(self, path):
        self.filenames = [str(path)]
        return np.frombuffer(Path(path).read_bytes(), np.uint8)

class Load:
    def __init__(self):
        self.readers = [Reader(), Reader()]

    def __call__(self, path):
        return self.readers[1].get(path)

class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, item):
        called(item)
        for transform in self.transforms:
            item = transform(item)
        return item

class Windowed:
    """Builds its window, and opens what no key can hold, at the first call."""

    def __init__(self):
        self.window = self.source = None

    def __call__(self, item):
        called(item)
        if self.window is None:
            self.window = np.hanning(5)
            self.source = open(os.devnull)
            self.added = threading.Lock()
        return self.window * item

CALLS = 0

def counted(item):
    global CALLS
    CALLS += 1
    called(item)
    return float(item) * 2

class Sized:
    """Builds a window for the size that it has at its first call."""

    def __init__(self, size):
        self.size, self.window = size, None

    def __call__(self, item):
        called(item)
        if self.window is None:
            self.window = np.hanning(self.size)
        return self.window * item

class Mean:
    """What it gives depends on what it was given before."""

    def __init__(self):
        self.total = 0.0

    def __call__(self, item):
        called(item)
        self.total += item
        return self.total
'''

OPENINGS = """
def five(function, items):
    hits = []
    for _ in range(5):
        ds = prepcache.CachedDataset(items, function, progress=False)
        list(ds)
        hits.append(ds.report().hit)
    return hits, ds.recipe.digest

def main():
    files = sorted(Path("files").iterdir())
    shared = Load()
    found = {
        "counting": five(Counting(), list(range(10, 30))),
        "windowed": five(Windowed(), list(range(30, 50))),
        "counted": five(counted, list(range(70, 90))),
        "train": five(Compose(shared, np.sort), files[:20]),
        "val": five(Compose(shared, np.sort), files[20:]),
    }
    hits, recipes = ({name: pair[at] for name, pair in found.items()} for at in (0, 1))
    tell(hits=hits, recipes=recipes)

main()
"""
NAMES = ("counting", "windowed", "counted", "train", "val")


def test_five_openings_make_nothing_again(jobs):
    (jobs.box.folder / "files").mkdir()
    for number in range(40):
        (jobs.box.folder / "files" / f"{number:02}.bin").write_bytes(bytes(range(number, number + 9)))
    script = jobs.write(CALLABLES + OPENINGS)
    first = jobs.run(script)
    assert first["hits"] == {name: [0, 20, 20, 20, 20] for name in NAMES}
    again = {item: count for item, count in jobs.calls().items() if count > 1}
    assert len(again) <= 3 * len(NAMES), "only a few items may be made again, to see that they are the same"
    assert max(again.values()) <= 3
    jobs.forget()

    hit = jobs.run(script)
    assert hit["hits"] == {name: [20] * 5 for name in NAMES}
    assert hit["recipes"] == first["recipes"]
    assert jobs.calls() == Counter()

    (jobs.box.folder / "files" / "00.bin").write_bytes(b"other")
    edited = jobs.run(script)
    assert edited["hits"]["train"] == [19, 20, 20, 20, 20]
    assert edited["hits"]["val"] == [20] * 5, "what the calls for train left is no part of val's key"
    assert edited["recipes"] == first["recipes"]


SETTING = """
def opened(items, function, progress=False):
    ds = prepcache.CachedDataset(items, function, progress=progress)
    return [np.asarray(ds[i]).tolist() for i in range(len(ds))], ds.report().hit

def main():
    prep, mean = Counting(size=2), Mean()
    told = [opened([1, 2], prep)]
    prep.size = 3
    told.append(opened([1, 2], prep))
    prep.size = 2
    told.append(opened([1, 2], prep))
    means = [opened([1.0, 2.0], mean, progress=True), opened([1.0, 2.0], mean, progress=True)]
    sized = Sized(3)
    windows = [opened([1, 2], sized)]
    sized.size = 5
    windows += [opened([1, 2], sized), opened([1, 2], Sized(5))]
    tell(told=told, means=means, windows=windows)

main()
"""


def test_what_a_job_sets_counts_and_what_matters_counts(jobs):
    facts, err = jobs.said(jobs.write(CALLABLES + SETTING))
    assert facts["told"] == [
        [[[1.0, 1.0], [2.0, 2.0]], 0],
        [[[1.0] * 3, [2.0] * 3], 0],
        [[[1.0, 1.0], [2.0, 2.0]], 0],  # no fill of this size left the counter so
    ]
    (first, none), (second, none_again) = facts["means"]
    assert first == [1.0, 3.0] and none == none_again == 0
    assert second[0] > 3.0, "it went on from what it had"
    assert [(len(given[0]), hit) for given, hit in facts["windows"]] == [(3, 0), (3, 0), (5, 0)], (
        "a window of another size has a key of its own"
    )
    assert "the function's own calls changed preprocess.total" in err
