"""CachedIterableDataset: each sample once over workers and ranks, of sequences and of streams, made once."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from prepcache import CachedIterableDataset, UnkeyableError
from support.jobs import facts_together
from support.streams import SHARED

EPOCHS = """
def main():
    how, method, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ds = opened(how)
    assert isinstance(ds, torch.utils.data.IterableDataset)
    context = {"multiprocessing_context": method, "persistent_workers": True} if workers else {}
    loader = DataLoader(ds, batch_size=10, num_workers=workers, **context)
    for epoch in range(2):
        seen = torch.cat(list(loader))[:, 0].tolist()
        assert sorted(seen) == list(range(N)), (epoch, seen)
        assert workers or seen == sorted(seen)
    tell(ds)

if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly(daily=["list-fork-0", "function-fork-3", "again-fork-2"])
@pytest.mark.parametrize(
    ("how", "method", "workers"),
    [
        ("list", "fork", 0), ("list", "spawn", 2), ("function", "fork", 3), ("function", "forkserver", 2),
        ("again", "fork", 2),
    ],
)  # fmt: skip
def test_epochs_give_each_sample_once_and_a_second_job_none(jobs, how, method, workers):
    script = jobs.write(SHARED + EPOCHS)
    first = jobs.run(script, how, method, workers)
    assert jobs.calls() == Counter(dict.fromkeys(range(90), 1))
    jobs.forget()
    second = jobs.run(script, how, method, workers)
    assert jobs.calls() == Counter()
    if workers:
        assert (first["items"], first["computed"], first["hit"]) == (180, 90, 90), "all workers count"
        assert (second["items"], second["hit"]) == (180, 180)


RANKED = """
def main():
    how, workers = sys.argv[1], int(sys.argv[2])
    ds = opened(how)
    loader = DataLoader(ds, batch_size=1, num_workers=workers)
    barrier()
    seen = [int(batch[0, 0]) for batch in loader]
    tell(seen=seen)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("how", "workers"), [("list", 0), ("function", 2)])
def test_ranks_and_their_workers_share_the_samples_and_the_work(jobs, how, workers):
    script = jobs.write(SHARED + RANKED)
    running = [jobs.start(script, how, workers, RANK=str(rank), WORLD_SIZE="4") for rank in range(4)]
    facts = facts_together(running)
    assert sorted(x for one in facts for x in one["seen"]) == list(range(90))
    assert [sorted(one["seen"]) for one in facts] == [list(range(rank, 90, 4)) for rank in range(4)]
    assert jobs.calls() == Counter(dict.fromkeys(range(90), 1))


TOGETHER = """
wait = threading.Event()

def make(item):
    called(item)
    wait.wait(0.01)
    return np.full(4, item)

def numbers():
    yield from range(120)

ds = prepcache.CachedIterableDataset(numbers, make, untracked=("wait",), progress=False)
barrier()
assert [int(sample[0]) for sample in ds] == list(range(120))
tell(ds)
"""


def test_jobs_that_stream_the_same_at_once_divide_the_work(jobs):
    facts = jobs.together(jobs.write(TOGETHER), [(), (), ()])
    assert jobs.calls() == Counter(dict.fromkeys(range(120), 1))
    assert sum(one["computed"] for one in facts) == 120
    assert sum(one["computed"] > 0 for one in facts) > 1, "the work was shared out"
    for one in facts:
        assert one["hit"] + one["computed"] + one["waited"] == one["items"] == 120


LAZY = """
def main():
    ds = opened("function", lazy=True)
    for batch in DataLoader(ds, batch_size=10, num_workers=2):
        pass
    assert values(ds) == list(range(N))
    tell(ds)

if __name__ == "__main__":
    main()
"""


def test_a_lazy_stream_keeps_what_it_touches(jobs):
    script = jobs.write(SHARED + LAZY)
    jobs.run(script)
    assert set(jobs.calls()) == set(range(90))
    jobs.forget()
    second = jobs.run(script)
    assert jobs.calls() == Counter()
    assert (second["hit"], second["items"]) == (180, 180)


NOBODY = {"PREPCACHE_URL": "unix:///nowhere/s.sock"}
EXPANDED = """
def count(item):
    called(item)
    for number in range(item % 5):
        yield np.array([item, number])

def numbers():
    yield from range(60)

items = numbers if sys.argv[1] == "stream" else list(range(60))
ds = prepcache.CachedIterableDataset(items, count, expand=True, progress=False)
want = [(item, number) for item in range(60) for number in range(item % 5)]
for _ in range(2):
    assert [tuple(map(int, row)) for row in ds] == want
shares = []
for rank in range(3):
    os.environ.update(RANK=str(rank), WORLD_SIZE="3")
    shares.append([tuple(map(int, row)) for row in ds])
    assert shares[-1] == [(item, number) for item, number in want if item % 3 == rank]
try:
    len(ds)
except TypeError:
    tell(ds)
"""


@pytest.mark.parametrize(
    ("how", "environ"), [("stream", {}), ("list", {}), ("stream", {"PREPCACHE": "off"}), ("list", NOBODY)]
)
def test_expanded_samples_come_in_order_with_or_without_a_daemon(jobs, how, environ):
    script = jobs.write(EXPANDED)
    jobs.run(script, how, **environ)
    if not environ:
        assert jobs.calls() == Counter(dict.fromkeys(range(60), 1))
        jobs.forget()
        jobs.run(script, how)
        assert jobs.calls() == Counter()


FILES = """
from torch.utils.data import DataLoader

def make(path):
    called(path)
    return np.frombuffer(path.read_bytes(), "u1").copy()

folder = Path(sys.argv[1])

def files():
    for path in sorted(folder.iterdir()):
        yield path

ds = prepcache.CachedIterableDataset(files, make, root=folder, progress=False)
for epoch in range(2):
    for path, sample in zip(sorted(folder.iterdir()), ds, strict=True):
        assert sample.tobytes() == path.read_bytes(), path
        if epoch == 0 and path.name == "5":
            (folder / "30").write_bytes(b"edited meanwhile")
tell(ds)
"""


def test_a_file_edited_before_or_during_a_stream_is_recomputed(jobs):
    folder = jobs.box.folder / "files"
    folder.mkdir()
    for number in range(10, 60):
        (folder / str(number)).write_bytes(b"x" * number)
    (folder / "5").write_bytes(b"five")
    script = jobs.write(FILES)
    jobs.run(script, folder)
    assert set(jobs.calls()) == {path.name for path in folder.iterdir()}
    assert all(count <= 2 for count in jobs.calls().values()) and jobs.calls()["20"] == 1
    jobs.forget()
    (folder / "20").write_bytes(b"edited")
    jobs.run(script, folder)
    assert jobs.calls() == Counter({"20": 1})


ENDLESS = """
import itertools, resource
from prepcache import iterable
from prepcache.fill import commit
iterable.MOST_ITEMS, commit.AWAY_BYTES = 256, 64 << 20

def make(item):
    called(item % 50)
    return np.full(25_000, item % 50)

ds = prepcache.CachedIterableDataset(
    lambda: (n % 50 for n in itertools.count()), make, lazy=sys.argv[1] != "prepared", progress=False
)
for position, sample in enumerate(ds):
    assert sample[0] == position % 50
    if position == 8 and sys.argv[1] == "away":
        type(ds._by.artifacts.session).come_back = lambda _: None
        ds._by.artifacts.session.give_up("it is away", is_final=False)
    if position == 3_000:  # what waits to be committed has had the time to grow to its bound
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if position == 6_000:
        break
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
tell(ds, grown=grown)
"""


@pytest.mark.nightly(daily=["prepared"])
@pytest.mark.parametrize("how", ["lazy", "prepared", "away"])
def test_an_endless_stream_takes_no_more_memory_with_time(jobs, how):
    facts = jobs.run(jobs.write(ENDLESS), how)
    assert facts["grown"] < 60_000, "kB; the samples of 3,000 items would be 600 MB"
    assert facts["items"] <= 6_000 + 256
    if how == "prepared":
        assert jobs.calls() == Counter(dict.fromkeys(range(50), 1))


MODES = """
def make(item):
    called(item)
    return np.array([item, len(os.environ.get("OUTSIDE", ""))])

def numbers():
    yield from range(50)

ds = prepcache.CachedIterableDataset(
    numbers, make, code=None, version="1", transform=lambda sample: sample * 2,
    verify_fraction=float(sys.argv[1]), progress=False,
)
for _ in range(2):
    assert [int(sample[0]) for sample in ds] == list(range(0, 100, 2))
tell(ds)
"""


def test_streams_honour_modes_transforms_and_verify(jobs):
    script = jobs.write(MODES)
    jobs.run(script, 0, PREPCACHE="readonly")
    assert jobs.calls() == Counter(dict.fromkeys(range(50), 2)), "nothing is kept"
    jobs.forget()
    jobs.run(script, 0)
    jobs.run(script, 0, PREPCACHE="readonly")
    assert jobs.calls() == Counter(dict.fromkeys(range(50), 1))
    jobs.forget()
    jobs.run(script, 0, PREPCACHE="refresh")
    assert jobs.calls() == Counter(dict.fromkeys(range(50), 1)), "once, and then its own is used"
    jobs.forget()
    jobs.run(script, 0, PREPCACHE="off")
    assert jobs.calls() == Counter(dict.fromkeys(range(50), 2))
    jobs.run(script, 1)
    assert "VerifyError" in jobs.run(script, 1, exit_code=1, OUTSIDE="changed")


@dataclass
class Numbered:
    n: int


def number_of(item: dict[str, int]) -> int:
    return item["n"]


def test_an_instance_of_a_project_class_is_refused(client):
    def samples(*items: Any) -> list[int]:
        return list(CachedIterableDataset(lambda: iter(items), number_of, progress=False, client=client))

    with pytest.raises(UnkeyableError, match=r"items of a stream hold Numbered.*dataclasses\.asdict"):
        samples({"n": 0}, Numbered(1))
    assert samples({"n": 0}, asdict(Numbered(1))) == [0, 1]


# --- what it says of a stream, and what trainers tell it ---

SAID = """
import random
from torch.utils.data import DataLoader

def make(item):
    return None if item["n"] > 40 else np.array([random.random()])

Path("named.txt").write_text("")

def numbers():
    yield from ({"n": number, "url": "named.txt"} for number in range(50))

ds = prepcache.CachedIterableDataset(numbers, make)
for _ in range(2):
    prepcache.Client().purge(everything=True)
    for _ in DataLoader(ds, batch_size=None, num_workers=int(sys.argv[1])):
        pass
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_messages_come_once_and_not_for_each_worker_or_epoch(jobs, workers):
    err = jobs.told(jobs.write(SAID), workers, RANK="0", WORLD_SIZE="2")
    assert err.count("stream job.make: nothing is cached") == 1
    assert err.count("draws random numbers") == 1
    assert err.count("is a return missing?") == 1
    assert err.count("split over 2 ranks: this is rank 0") == 1
    assert err.count("str in the items name files") == 1
    assert len(err.splitlines()) == 5, err


ORDERED = """
class Shuffled(torch.utils.data.IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from [(number + self.epoch) % N for number in range(N)]

def main():
    ds = prepcache.CachedIterableDataset(Shuffled(), make, progress=False)
    for epoch in range(3):
        ds.set_epoch(epoch)
        seen = values(DataLoader(ds, batch_size=None))
        assert seen == [(number + epoch) % N for number in range(N)], (epoch, seen)
    opened("list").set_epoch(1)
    opened("function").set_epoch(1)
    tell()

if __name__ == "__main__":
    main()
"""


def test_set_epoch_reaches_a_shuffled_stream(jobs):
    jobs.run(jobs.write(SHARED + ORDERED))
