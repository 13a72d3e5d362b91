"""A plain DataLoader with workers over a data set: what a TensorDataset gives under the same loader.

Workers lend their job the memory of a batch: nothing of it is in torch's shared memory, which tests look at.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import serving
from support.crashing import needs
from support.jobs import Jobs

COMMON = """
import functools, gc, pickle, random
import torch
from torch.utils.data import (
    BatchSampler, DataLoader, Dataset, RandomSampler, StackDataset, Subset, TensorDataset,
    WeightedRandomSampler, get_worker_info, random_split,
)

COUNT = 61
IMAGES = torch.arange(COUNT * 3000, dtype=torch.float32).reshape(COUNT, 30, 100)  # lent from six on
LABELS = torch.arange(COUNT) * 7

def make(i):
    return [IMAGES[i], LABELS[i]]

def opened(preprocess=make, **options):
    options = {"version": "1", "code": None, "progress": False} | options
    return prepcache.CachedDataset(list(range(COUNT)), preprocess, **options)

def seeded(seed=0):
    return torch.Generator().manual_seed(seed)

def as_text(batches):
    return str(batches).replace("(", "[").replace(")", "]")

def leaves(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    children = batch.values() if isinstance(batch, dict) else batch
    if isinstance(children, str) or not hasattr(children, "__iter__"):
        return []
    return [leaf for child in children for leaf in leaves(child)]

def same(ours, theirs):
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs

def is_lent(batches):
    return not any(leaf.is_shared() for batch in batches for leaf in leaves(batch) if leaf.numel())
"""

CASES = """
class Wrapped(Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]

    def __getitems__(self, indices):
        ask = getattr(self.inner, "__getitems__", None)
        return [self.inner[i] for i in indices] if ask is None else ask(indices)

class Hostile(Wrapped):
    def __getitems__(self, indices):
        if 13 in indices:
            raise KeyError("row 13")
        return super().__getitems__(indices)

def halved(batch):
    images, labels = torch.utils.data.default_collate(batch)
    return {"images": images, "half": images / 2, "labels": [labels, labels], "words": ["a", "b"]}

def with_worker(batch):
    return torch.utils.data.default_collate(batch), get_worker_info().id, get_worker_info().seed

def init(worker):
    info = get_worker_info()
    random.seed(info.seed)
    assert info.num_workers == 2 and len(next(iter(DataLoader(info.dataset, 5)))[1]) == 5

WEIGHTED = WeightedRandomSampler(range(COUNT), 30, generator=seeded())

SENT = dict(batch_sampler=[[3, 60], [0], [-1, 17], [5]], num_workers=1, persistent_workers=True)
# name -> (data set of a data set, options, whether batches are lent)
TABLE = {
    "plain": (lambda ds: ds, dict(batch_size=8), True),
    "shuffled": (lambda ds: ds, dict(batch_size=8, shuffle=True, generator=seeded()), True),
    "drop last": (lambda ds: ds, dict(batch_size=8, drop_last=True), True),
    "one by one": (lambda ds: ds, dict(batch_size=1), True),
    "all at once": (lambda ds: ds, dict(batch_size=1000), True),
    "prefetch": (lambda ds: ds, dict(batch_size=4, prefetch_factor=7), True),
    "persistent": (lambda ds: ds, dict(batch_size=8, persistent_workers=True, shuffle=True), True),
    "out of order": (lambda ds: ds, dict(batch_size=61, in_order=False), True),
    "pinned": (lambda ds: ds, dict(batch_size=8, pin_memory=True), True),
    "init": (lambda ds: ds, dict(batch_size=8, worker_init_fn=init), True),
    "timeout": (lambda ds: ds, dict(batch_size=8, timeout=100), True),
    "subset": (lambda ds: Subset(ds, [5, 3, 3, 60, 0]), dict(batch_size=3), True),
    "subset of subset": (lambda ds: Subset(Subset(ds, range(40)), [7, 39]), dict(batch_size=2), True),
    "random split": (lambda ds: random_split(ds, [0.5, 0.5], seeded())[1], dict(batch_size=8), True),
    "sampler": (lambda ds: ds, dict(batch_size=8, sampler=[3, 1, 1, 60]), True),
    "weighted": (lambda ds: ds, dict(batch_size=8, sampler=WEIGHTED), True),
    "batch sampler": (lambda ds: ds, dict(batch_sampler=[[1], [2, 60], [0, 0, 5]]), True),
    "negative": (lambda ds: ds, dict(batch_sampler=[[-1, 0], [-61]]), True),
    "wrapped": (Wrapped, dict(batch_size=8), True),
    "added": (lambda ds: ds + ds, dict(batch_size=50), True),
    "stacked": (lambda ds: StackDataset(a=ds, b=ds), dict(batch_size=8), True),
    "no batches": (lambda ds: ds, dict(batch_size=None), True),
    "own collation": (lambda ds: ds, dict(batch_size=8, collate_fn=halved), True),
    "no collation": (lambda ds: ds, dict(batch_size=8, collate_fn=list), False),
    "seeds": (lambda ds: ds, dict(batch_size=8, collate_fn=with_worker, generator=seeded(3)), True),
    "error in a row": (Hostile, dict(batch_size=4), True),
    "sent": (lambda ds: Subset(ds, range(COUNT)), SENT, True),
    "out of range": (lambda ds: ds, dict(batch_sampler=[[0], [COUNT], [1]]), True),
}

def epochs(dataset, options, method):
    # An epoch or two, and what is raised; the order goes on after an error, as torch's does.
    options = {"num_workers": 2} | pickle.loads(pickle.dumps(options))
    loader = DataLoader(dataset, multiprocessing_context=method, **options)
    found = []
    torch.manual_seed(5)
    for _ in range(2 if options.get("persistent_workers") else 1):
        epoch = iter(loader)
        while True:
            try:
                found.append(next(epoch))
            except StopIteration:
                break
            except Exception as error:
                found.append(type(error).__name__)
    return found, len(loader)

if __name__ == "__main__":
    names = sys.argv[2:] or list(TABLE)
    ds = opened()
    plain = TensorDataset(IMAGES, LABELS)
    for name in names:
        build, options, is_ours = TABLE[name]
        if name == "out of range":
            plain = Subset(plain, range(COUNT))  # a tensor says IndexError, and so does a list
        ours, length = epochs(build(ds), options, sys.argv[1])
        theirs, theirs_length = epochs(build(plain), options, "fork")
        theirs = pickle.loads(pickle.dumps(theirs))
        if name == "no collation":  # samples are lists here, and tuples there
            ours = [[tuple(sample) for sample in batch] for batch in ours]
        if name in ("negative", "no batches", "error in a row", "stacked", "seeds", "out of range"):
            assert as_text(ours) == as_text(theirs), name
        else:
            assert same(ours, theirs), (name, ours, theirs)
        assert length == theirs_length, name
        batches = [batch for batch in ours if not isinstance(batch, str)]
        assert is_lent(batches) == is_ours, name
    tell(calls=len(names))
"""

MORE = """
from torch.utils.data import default_collate
from torch.utils.data._utils import fetch
from torchdata.stateful_dataloader import StatefulDataLoader

def ragged(i):
    return {"tokens": torch.arange(i % 5), "text": "word " * (i % 3), "image": IMAGES[i]}

class Lazily(Dataset):
    # Opens ours in the worker, in a loader of its own: the job has no such data set.
    def __len__(self):
        return COUNT

    def __getitems__(self, indices):
        self.ds = Subset(opened(transform=Flipped), indices)
        ((images, labels),) = DataLoader(self.ds, len(indices))
        others = fetch._MapDatasetFetcher(Subset(opened(), indices), True, default_collate, False)
        assert same(others.fetch(range(len(indices)))[0].flip(1), images)
        return [*zip(images.flip(1), labels)]

class Flipped(list):
    def __setitem__(self, at, value):  # by torch's collation
        super().__setitem__(at, value.flip(1) if value.ndim == 3 else value)

def twice(i):
    yield from (make(i), make(COUNT - 1 - i))

def late(i):
    while not os.path.exists("late"):
        threading.Event().wait(0.01)
    return make(i)

def raised(kind, read):
    try:
        read()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")

def main():
    ds = opened()
    loader = DataLoader(ds, 8, num_workers=2)
    whole = list(loader)
    assert is_lent(whole) and len(whole) == 8

    # A batch is the consumer's: what he does to one is in no other.
    for images, _ in loader:
        images.zero_()
    assert same(list(loader), whole)

    # Left unread, left early, begun again, two at once, a fork after the first batch.
    iter(loader)
    for first in loader:
        break
    assert same(first, whole[0])
    one, two = iter(loader), iter(DataLoader(ds, 16, num_workers=1))
    assert same(next(one), whole[0]) and same(next(two)[1], LABELS[:16]) and same(next(one), whole[1])
    if (child := os.fork()) == 0:
        os._exit(0 if same(list(DataLoader(ds, 8, num_workers=1)), whole) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert same([*one], whole[2:]) and len([*two]) == 3

    # Ours of text: padded and packed by name too, and what cannot be stacked is said as without workers.
    texts = prepcache.CachedDataset(list(range(20)), ragged, version="2", code=None, progress=False)
    for collate in (prepcache.pad_collate, prepcache.pad_collate(-1, also="mask"), prepcache.pack_collate()):
        made = list(DataLoader(texts, 4, num_workers=2, collate_fn=collate))
        assert is_lent(made) and same(made, list(DataLoader(texts, 4, collate_fn=collate)))
        texts.transform = dict
        assert same(list(DataLoader(texts, 4, num_workers=2, collate_fn=collate)), made)
        texts.transform = None
    error = raised(RuntimeError, lambda: list(DataLoader(texts, 4, num_workers=1)))
    assert "to be equal size" in error and "DataLoader worker process 0" in error, error

    # An item whose file is missing: the last line of the error names both.
    lost = [Path("there"), Path("lost.png")]
    lost[0].touch()
    absent = prepcache.CachedDataset(lost, Path.read_bytes, lazy=True, code=None, version="5", progress=False)
    error = raised(prepcache.PreprocessError, lambda: list(DataLoader(absent, 2, num_workers=1)))
    assert "item 1 (PosixPath('lost.png')) failed: FileNotFoundError" in error.splitlines()[-1], error

    # A worker that is killed, or late, is torch's error, at once or at its batch; the next epoch is whole.
    killed = iter(DataLoader(ds, 8, num_workers=2, prefetch_factor=1))
    assert same(next(killed), whole[0])
    pid = killed._workers[1].pid
    assert "DataLoader worker (pid" in raised(RuntimeError, lambda: (os.kill(pid, 9), list(killed)))
    slow = iter(DataLoader(opened(late, version="6", lazy=True), 8, num_workers=1, timeout=0.2))
    assert "timed out after 0.2 seconds" in raised(RuntimeError, lambda: next(slow))
    Path("late").touch()
    assert same(list(loader), whole)

    # Items that expand: positions are those of samples, of which there are more.
    twofold = opened(version="4", preprocess=twice, expand=True)
    made = list(DataLoader(twofold, 8, num_workers=2))
    assert is_lent(made) and len(made) == 16 and same(made, list(DataLoader(twofold, 8)))

    # What a transform made is lent, too, and what a data set gave that the job does not have.
    made = [[*batch] for batch in DataLoader(opened(transform=Flipped), 8, num_workers=2)]
    assert same(made, [[images.flip(1), labels] for images, labels in whole])
    made = list(DataLoader(Lazily(), 8, num_workers=2))
    assert same(made, whole) and is_lent(made)

    # So is what comes from torchdata's loader, and from a stream.
    made = list(StatefulDataLoader(ds, 8, num_workers=2))
    assert same(made, whole) and is_lent(made)
    stream = prepcache.CachedIterableDataset(list(range(COUNT)), make, version="1", code=None, progress=False)
    made = list(DataLoader(stream, 8, num_workers=1))
    assert same(made, whole) and is_lent(made)

    # Purged between the look of a worker and its gather.
    half = iter(DataLoader(ds, 8, num_workers=2, prefetch_factor=8))
    assert same(next(half), whole[0])
    with prepcache.Client() as client:
        assert client.purge(name=ds.name).entries
    ds._samples.by.artifacts.on_removed({str(ref.digest) for ref in ds._samples.catalogue.refs})
    assert ds._samples.catalogue.missing.size == COUNT
    assert same([*half], whole[1:])

    # Collected while batches are on their way: the iterator keeps it.
    again = iter(DataLoader(opened(), 8, num_workers=2))
    ds = None
    gc.collect()
    assert same([*again], whole)

    # Lazy: the order is the sampler's, and what a worker made is not made again by the job.
    for _ in range(2):
        lazy = opened(version="3", lazy=True)
        pair = lazy, TensorDataset(IMAGES, LABELS)
        ours, theirs = (list(DataLoader(one, 8, True, num_workers=2, generator=seeded())) for one in pair)
        assert same(ours, theirs)
        loader = DataLoader(lazy, 8, num_workers=2, persistent_workers=True)
        for _ in range(3):
            assert same(list(loader), whole)
        assert lazy.report().computed in (0, COUNT)

    tell()

if __name__ == "__main__":
    main()
"""


def test_batches_are_those_of_a_tensor_dataset(jobs):
    assert jobs.run(jobs.write(COMMON + CASES), "fork")["calls"] >= 25


@pytest.mark.nightly(daily=["spawn"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_spawned_lend_too(jobs, method):
    jobs.run(jobs.write(COMMON + CASES), method, "sent")


def test_batches_that_are_on_their_way_outlive_what_happens(jobs):
    with serving.process(jobs.box.folder):
        jobs.run(jobs.write(COMMON + MORE), PREPCACHE_URL=f"unix://{jobs.box.folder}/s.sock")


ALONE = """
JOB = os.getpid()

def slowly(i):
    assert os.getpid() != JOB, "the job makes what its worker has"
    time.sleep(0.01)
    return IMAGES[i]

def main():
    loader = DataLoader(opened(slowly, lazy=True), 8, num_workers=1, persistent_workers=True)
    assert all(same(torch.cat(list(loader)), IMAGES) for _ in range(3))
    tell()

if __name__ == "__main__":
    main()
"""


def test_what_only_a_worker_has_is_not_made_by_the_job(jobs):
    """Without a daemon, what a worker keeps is in files of its own."""
    jobs.run(jobs.write(COMMON + ALONE), PREPCACHE_URL=f"unix://{jobs.box.folder}/nobody.sock")


LENT = """
vars(os).pop("memfd_create", None)  # as in Pythons of uv and conda
def large(i):
    return [torch.full((3, 100, 100), i), i]

def larger(i):
    return next_one(large(i))

def next_one(sample):
    return [sample[0] + 1, sample[1]]

def are_right(batches, part=slice(None)):
    right = [labels.tolist() for images, labels in batches if same(images[:, 2, 99, 99], labels + 1)]
    return right == [labels[part] for labels in OF_BATCH]

OF_BATCH = [list(range(at, at + 4)) for at in range(0, 64, 4)]

def main(method, how):
    function, transform = (large, next_one) if how == "transform" else (larger, None)
    ds = prepcache.CachedDataset(range(64), function, None, transform, code=None, version=how, progress=False)
    loader = DataLoader(ds, 4, num_workers=2, persistent_workers=True, multiprocessing_context=method)
    assert all(are_right(loader) for _ in range(3))
    for worker in loader._iterator._workers:
        files = map(os.readlink, Path(f"/proc/{worker.pid}/fd").iterdir())
        # Two are on their way, one is being made, and two the job may have.
        assert 1 <= sum("memfd:prepcache" in one for one in files) <= 5

    # Whoever keeps batches, or a part of each, keeps them as they are.
    for part in (slice(None), slice(-1, None)):
        kept = [[value[part] for value in batch] for batch in loader]
        assert are_right(loader) and are_right(kept, part)

    # And so does a child that was forked from whoever had one.
    first = next(iter(loader))
    ready, go_on = os.pipe()
    if (child := os.fork()) == 0:
        os.read(ready, 1)
        os._exit(0 if same(first[0][:, 0, 0, 0], torch.arange(1, 5)) else 1)
    del first
    assert all(are_right(loader) for _ in range(4))
    os.write(go_on, b"x")
    assert os.waitpid(child, 0)[1] == 0

    # When its workers have ended nothing of theirs is mapped but what somebody keeps.
    del kept, worker
    first = next(iter(loader))
    del loader
    assert Path("/proc/self/maps").read_text().count("memfd:prepcache") == 1
    assert same(first[0][:, 0, 0, 0], torch.arange(1, 5))
    tell()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.nightly(daily=["fork"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_workers_lend_is_used_again(jobs, method):
    for how in ("plain", "transform"):
        jobs.run(jobs.write(COMMON + LENT), method, how)


SHARED_MEMORY = """
import ctypes

MIB = 1 << 20

def large(i):
    return torch.full((MIB,), i, dtype=torch.uint8)

def stacked(samples):
    return torch.utils.data.default_collate(samples)

def mount(size):
    # In namespaces of this process alone.
    libc, kept_apart, all_of_it, private = ctypes.CDLL(None), 0x20000, 0x4000, 1 << 18
    assert libc.unshare(kept_apart) == 0
    assert libc.mount(b"none", b"/", None, all_of_it | private, None) == 0
    assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=" + size.encode()) == 0

def main(size, collate=None):
    mount(size)
    ds = prepcache.CachedDataset(list(range(96)), large, version="1", code=None, progress=False)
    seen, ds.transform = [], {"transform": torch.clone}.get(collate)
    given = [*map(large, range(96))] if collate == "by torch" else ds
    for batch in DataLoader(given, 24, num_workers=2, collate_fn=globals().get(collate)):
        assert batch.shape == (24, MIB)
        seen += batch[:, -1].tolist()
    assert seen == list(range(96))
    tell()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.root
@needs("mount")
@pytest.mark.parametrize("how", ["plain", "transform", "stacked"])
def test_workers_train_with_little_shared_memory(jobs, how):
    """Four batches of 24 MB are on their way at a time, in a container's 64 MB."""
    jobs.run(jobs.write(COMMON + SHARED_MEMORY), "64m", how)


@pytest.mark.nightly
@pytest.mark.root
@needs("mount", "strace")
def test_an_epoch_puts_under_1_mb_into_shared_memory(jobs, tmp_path):
    job = jobs.write(COMMON + SHARED_MEMORY)
    jobs.run(job, "64m")  # makes the samples
    assert shared_bytes(jobs, job, tmp_path / "ours", "64m") < 1 << 20
    assert shared_bytes(jobs, job, tmp_path / "bytes", "256m", "by torch") >= 96 << 20


def shared_bytes(jobs: Jobs, job: Path, trace: Path, *arguments: str) -> int:
    """The bytes that a job and its workers make room for, or write, in /dev/shm."""
    traced = ["strace", "-f", "-y", "-qq", "-o", trace, "-e", "trace=ftruncate,fallocate,write,writev"]
    environ = {**os.environ, **jobs.box.environ_of(job), "CALL_LOG": str(jobs.log)}
    subprocess.run([*traced, sys.executable, job, *arguments], env=environ, cwd=jobs.box.folder, check=True)
    calls = re.findall(r"(\w+)\(\d+</dev/shm/[^>]*>(?:\(deleted\))?, (.*)\) += (\d+)", trace.read_text())
    return sum(int(done) if "write" in call else int(given.split(", ")[-1]) for call, given, done in calls)
