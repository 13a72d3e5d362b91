"""A stream in trouble: workers that are killed, iterators, errors, and what changes meanwhile."""

import re
from collections import Counter

import pytest

from support.streams import SHARED

WORKER_KILLED = """
import signal

def fatal(sample):
    if int(sample[0]) == 70 and os.environ.get("DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample

def main():
    ds = opened("function", transform=fatal)
    try:
        try:
            list(DataLoader(ds, batch_size=4, num_workers=2))
        finally:  # torch's handler tells of a worker's death at any line, of what handles another error, too
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except (AssertionError, prepcache.PrepcacheError):
        raise
    except Exception:  # torch's, of any kind: a worker was killed, or had a batch that is not there any more
        assert os.environ.get("DIES")
    tell(ds)
    os._exit(0)  # what is left of the loader has lost its pipe

if __name__ == "__main__":
    main()
"""


def test_what_a_killed_worker_has_committed_is_not_made_again(jobs):
    script = jobs.write(SHARED + WORKER_KILLED)
    jobs.run(script, DIES="1")
    jobs.run(script)
    assert jobs.calls() == Counter(dict.fromkeys(range(90), 1))


BROKEN = """
from torch.utils.data import DataLoader

def make(item):
    if item == 30:
        raise ValueError("no such word")
    return np.array([item])

def numbers():
    yield from range(50)
    if sys.argv[2] == "items":
        raise OSError("the line is cut")

seen = []
function = make if sys.argv[2] == "function" else np.asarray
ds = prepcache.CachedIterableDataset(numbers, function, progress=False)
try:
    for sample in DataLoader(ds, batch_size=None, num_workers=int(sys.argv[1])):
        seen.append(int(sample))
except Exception as error:
    print(len(seen), file=sys.stderr)
    raise
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_the_item_and_its_place_in_the_stream(jobs, workers):
    err = jobs.told(jobs.write(BROKEN), workers, "function")
    assert "PreprocessError" in err and "item 30 (30) failed: ValueError: no such word" in err


def test_what_an_error_left_is_not_said_of_the_whole_stream(jobs):
    err = jobs.told(jobs.write(BROKEN.replace(", progress=False", "")), 0, "function")
    assert re.search(r"job.make: ended by an error: \d+ of \d+ items are stored", err), err


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_read_before_the_items_raised_is_given(jobs, workers):
    err = jobs.told(jobs.write(BROKEN), workers, "items")
    assert "OSError" in err and "the line is cut" in err
    assert int(err.splitlines()[0]) == 50


ITERATORS = """
import csv
from torch.utils.data import DataLoader

def make(item):
    return int(item["n"] if isinstance(item, dict) else item)

def numbers():
    yield from range(50)

Path("rows.csv").write_text("n\\n" + "\\n".join(map(str, range(50))))

def rows():
    with open("rows.csv") as file:
        yield from csv.DictReader(file)

def opened(items):
    return prepcache.CachedIterableDataset(items, make, progress=False)

def epoch(ds, **options):
    return sorted(DataLoader(ds, batch_size=None, **options))

def refused(words, ds, kind=RuntimeError, **options):
    try:
        epoch(ds, **options)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

def main():
    everything = list(range(50))
    once = opened(numbers())
    refused("a generator), which DataLoader workers cannot share", once, num_workers=2)
    assert epoch(once) == everything
    refused("has exhausted: pass an iterable, or a function", once)
    anew = opened(rows)
    for workers in (0, 2, 2):
        assert epoch(anew, num_workers=workers) == everything
    tell()

if __name__ == "__main__":
    main()
"""


@pytest.mark.filterwarnings("ignore")
def test_an_iterator_serves_one_epoch_and_never_ends_silently(jobs):
    jobs.run(jobs.write(ITERATORS))


CHANGED = """
scale = 1
lines = listening()

def make(item):
    called(item)
    return np.full(4, item * scale)

def numbers():
    yield from range(60)

ds = prepcache.CachedIterableDataset(numbers, make, lazy=sys.argv[1] == "lazy")
for position, sample in enumerate(ds):
    assert (sample == position * (2 if position > 7 and len(sys.argv) > 2 else 1)).all()
    if position == 7 and len(sys.argv) > 2:
        scale = 2
if len(sys.argv) > 2:
    until = time.monotonic() + 60  # made on access, samples are kept behind, and so it is said there
    while not any("scale changed since" in line for line in lines) and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert sum("scale changed since the data set was opened" in line for line in lines) == 1, lines
tell(ds)
"""


@pytest.mark.parametrize("how", ["prepared", "lazy"])
def test_what_is_made_after_a_global_was_changed_is_not_kept(jobs, how):
    script = jobs.write(CHANGED)
    jobs.run(script, how, "change")
    jobs.forget()
    assert jobs.run(script, how)["hit"] in ((8,) if how == "prepared" else (0, 8))
    assert set(jobs.calls()) >= set(range(8, 60))


HIRED = """
from concurrent.futures import ThreadPoolExecutor

def main():
    with ThreadPoolExecutor(2) as pool:
        ds = opened("function", executor=pool)
        assert values(ds) == list(range(N))
        loaded = opened("function", version="2", executor=pool)
        assert sorted(values(DataLoader(loaded, batch_size=None, num_workers=2))) == list(range(N))
    tell()

if __name__ == "__main__":
    main()
"""


def test_a_dataloader_worker_does_without_the_jobs_executor(jobs):
    jobs.run(jobs.write(SHARED + HIRED))
    assert jobs.calls() == Counter(dict.fromkeys(range(90), 2))


THREADS = """
ds = opened("function")
results = []
threads = [threading.Thread(target=lambda: results.append(values(ds))) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert results == [list(range(N))] * 6
it = iter(ds)
left = values(next(it) for _ in range(20))
prepcache.Client().purge(everything=True)
assert left + values(it) == values(ds) == list(range(N))
tell(ds)
"""


def test_threads_and_a_purge_in_mid_epoch_change_no_sample(jobs):
    facts = jobs.run(jobs.write(SHARED + THREADS))
    assert facts["items"] == 8 * 90
