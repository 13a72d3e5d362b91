"""A lazy data set that is trained on: the progress that its job shows meanwhile."""

import os
from collections import Counter

from support.terminals import terminal

EPOCH = """
from prepcache import progress
from prepcache.daemon.session import Session
from torch.utils.data import DataLoader

progress.QUIET_S = progress.FIRST_LINE_S = progress.LONGEST_PAUSE_S = 0.0
waits.BEAT_SHORTEST_S = waits.BEAT_LONGEST_S = 0.05

def read(begin, end, method):
    loader = DataLoader(
        ds, batch_size=5, sampler=range(begin, end), num_workers=2, multiprocessing_context=method
    )
    return sum(len(batch) for batch in loader)

if __name__ == "__main__":
    ds = prepcache.CachedDataset(list(range(60)), make, name="ds", code=None, version="1", lazy=True)
    for one in [*Session._all.values()]:
        if one.is_away:
            one.heartbeat.is_back.wait(60)  # the daemon may start for longer than an epoch takes
    for begin, end, method in ((0, 30, "fork"), (30, 50, sys.argv[1])):
        read(begin, end, method)
        barrier()
    ds.prepare()
    tell(ds)
"""


def test_a_lazy_job_shows_its_progress_in_the_background(jobs):
    job = jobs.start(jobs.write(EPOCH), "spawn")
    assert job.process.stderr is not None
    shown = []
    for there, how in ((30, "30 computed"), (50, "50 computed")):
        while not (shown and f" {there} of 60 items" in shown[-1]):  # whichever processes made them
            shown.append(job.process.stderr.readline())
            assert shown[-1], shown
        assert how in shown[-1] and " items/s" in shown[-1], shown
        job.ready()
        job.go()
    assert job.facts()["items"] == 60
    assert jobs.calls() == Counter(range(60)), "each item once"


def test_lazy_progress_leaves_a_terminal_to_the_job(jobs):
    """The job may draw a bar of its own."""
    script = jobs.write(EPOCH)
    environ = jobs.box.environ_of(script) | {"CALL_LOG": str(jobs.log)}
    with terminal(command=[os.fspath(script), "fork"], environ=environ) as seen:
        for there in (30, 50):
            seen.until(f"prepcache: ds: {there} of 60 items")
            seen.type(b"go\n")
        assert seen.ended() == 0 and seen.is_left_alone, seen.drawn


COUNTING = """
from prepcache.daemon.heartbeat import Heartbeat

waits.BEAT_SHORTEST_S = waits.BEAT_LONGEST_S = 0.05
beats, told = threading.Semaphore(0), []

class Beating:
    on_beat = staticmethod(lambda: beats.release())

beating = Beating()

def progress(self, recipe, done, total):
    told.append((done, total))

Heartbeat.note_progress = progress
"""
CHANGED = """
path = Path("item")
path.write_text("1")
ds = prepcache.CachedDataset([path], Path.read_text, name="ds", code=None, version="1", lazy=True)
path.write_text("22")
assert ds[0] == "22"
ds._samples.by.artifacts.session.listen(beating)
beats.acquire(), beats.acquire()
assert told[-1] == (1, 1), told
seen = len(told)
for _ in range(5):
    beats.acquire()
assert len(told) == seen, "no more is to come, though the sample is not stored"
tell(ds)
"""


def test_lazy_progress_ends_where_samples_are_not_stored(jobs):
    jobs.run(jobs.write(COUNTING + CHANGED))
