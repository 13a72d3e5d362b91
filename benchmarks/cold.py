"""What it costs to fill the cache: python -m benchmarks.cold [--rounds 5]

The image and audio examples, and seeds in small files from which a function does nothing but compute, cold,
each run in a process of its own, from after its imports: `bare` calls the function for every file, puts the
samples into one array, `numpy.save`s it and fsyncs; `fill` makes a `CachedDataset` of the same files, with
keys, digests, commits and their fsyncs; `2 workers` is a fill with `num_workers=2`; `unobserved` is one with
`code=None`; `calls` only calls the function, in one process and in two that share the files: what two workers
can gain. Rounds are interleaved; shown are medians, and the medians of the ratios within a round; how much of
the time that commits took passed while the function ran; and what processor time observation adds. Then, of
20,000 lines that a cheap function tokenises, what processor time of the job's a fill adds to an item's, the
opening included.
"""

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks import compile_sources  # noqa: E402
from benchmarks.workloads import _example, _png_files  # noqa: E402
from support.sandbox import Sandbox, sandbox  # noqa: E402

IMAGES, CLIPS, SEEDS = 6000, 3000, 3000
SHORTEST, DISTINCT_CLIPS = 120, 180
"""Clips of 8 to 11.7 seconds, as long as spoken sentences are: clip i has half a second and i/16 more."""
HOWS = ("bare", "fill", "2 workers", "unobserved", "calls")
OVER = 1.05
"""What a fill of the examples may take, of bare preprocessing and saving."""
WORKERS = 1.7
"""What two workers must gain on two cores."""
OBSERVING = 0.03
"""What observation may add to the images' processor time."""

JOB = """
import os, sys, time
from pathlib import Path
import numpy as np
import torch
from prepcache import CachedDataset
from prepcache.fill.commit import Committer

spent = {"_offer": 0.0, "wait": 0.0}

def timed(who, name):
    method = getattr(who, name)
    def call(*args, **kwargs):
        start = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start
    setattr(who, name, call)

timed(Committer, "_offer"), timed(Committer, "wait")
what, how, folder, examples = sys.argv[1:]
sys.path.insert(0, examples)
torch.set_num_threads(1)

def walk(path, steps):
    at = int(path.read_text())
    for _ in range(steps):
        at = (1_664_525 * at + 1_013_904_223) % 2**32
    return torch.tensor([at], dtype=torch.int64)

if what == "images":
    from images import decode as function
    config = {"size": 128}
elif what == "audio":
    from audio import log_mel as function
    config = {"mels": 40}
else:
    function, config = walk, {"steps": 10_000}
files = sorted(Path(folder).iterdir())
function(files[0], **config)

def call(files):
    start = time.perf_counter()
    for path in files:
        function(path, **config)
    return time.perf_counter() - start

def call_in_two():
    start = time.perf_counter()
    workers = []
    for number in range(2):
        workers.append(os.fork())
        if not workers[-1]:
            call(files[number::2])
            os._exit(0)
    for pid in workers:
        os.waitpid(pid, 0)
    return time.perf_counter() - start

if how == "calls":
    print(call(files), call_in_two(), 0, 0)
    sys.exit()
start, cpu = time.perf_counter(), time.process_time()
if how == "bare":
    flat = np.concatenate([function(path, **config).numpy().ravel() for path in files])
    with open("saved.npy", "wb") as file:
        np.save(file, flat)
        file.flush()
        os.fsync(file.fileno())
else:
    more = {"2 workers": {"num_workers": 2}, "unobserved": {"code": None, "version": 1}}.get(how, {})
    ds = CachedDataset(files, function, config=config, root=folder, progress=False, **more)
    assert ds.report().computed == len(files), ds.report()
print(time.perf_counter() - start, spent["_offer"], spent["wait"], time.process_time() - cpu)
"""

LINES = """
import json, time
import torch
import prepcache

def tokens(line):
    return torch.tensor([ord(c) for c in json.loads(line)["text"][:60]], dtype=torch.int32)

lines = [json.dumps({"id": i, "text": f"line {i}, as long as sentences are, or more"}) for i in range(20_000)]
prepcache.CachedDataset(lines[:10], tokens, progress=False)
times = []
for open_set in (lambda *given: list(map(tokens, lines)), prepcache.CachedDataset):
    began = time.process_time()
    open_set(lines, tokens, None)
    times.append((time.process_time() - began) / len(lines))
print(*times)
"""


def make_files(folder: Path, what: str) -> None:
    """Files that differ: bytes behind the end of a PNG or WAV are nobody's business, but are hashed."""
    folder.mkdir()
    if what == "seeds":
        for number in range(SEEDS):
            (folder / f"{number:05}.txt").write_text(str(number))
        return
    if what == "images":
        sources, count = _png_files(), IMAGES
    else:
        clips = folder.with_name("clips")
        _example("audio").make_clips(clips, DISTINCT_CLIPS)
        sources, count = [clips / f"tone-{i}.wav" for i in range(SHORTEST, DISTINCT_CLIPS)], CLIPS
    for number in range(count):
        source = sources[number % len(sources)]
        (folder / f"{number:05}{source.suffix}").write_bytes(source.read_bytes() + b"%d" % number)


def run(box: Sandbox, what: str, how: str) -> list[float]:
    """One run, purged: its seconds, those of its commits, those in which it waited for them, and of the
    processor. Of `calls`: the seconds of one process, and of two."""
    ran = box.python("-c", JOB, what, how, box.folder / what, ROOT / "examples")
    box.python("-c", "import prepcache; prepcache.Client().purge(everything=True)")
    return [float(word) for word in ran.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    compile_sources()
    for what in ("seeds", "images", "audio"):
        with sandbox() as box:
            make_files(box.folder / what, what)
            box.python("-c", "import prepcache; prepcache.CachedDataset([1], abs, progress=False)")
            runs = [[run(box, what, how) for how in HOWS] for _ in range(asked.rounds)]
        rounds = [[wall_s for wall_s, *_ in ran] for ran in runs]
        medians = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{what}: " + ", ".join(f"{how} {s:.2f} s" for how, s in zip(HOWS, medians, strict=True)))
        over = statistics.median(fill / bare for bare, fill, *_ in rounds)
        gain = statistics.median(fill / workers for _, fill, workers, *_ in rounds)
        calls = statistics.median(one_s / two_s for *_, (one_s, two_s, *_) in runs)
        if what == "seeds":  # the aim is the examples'; and its commits are next to nothing
            print(f"  fill / bare {over:.3f}")
        else:
            print(f"  fill / bare {over:.3f} ({'within' if over <= OVER else 'OVER'} {OVER})")
            beside = statistics.median(
                1 - waited_s / commits_s for _, (_, commits_s, waited_s, _), *_ in runs
            )
            print(f"  of the time of a fill's commits, {beside:.2f} passed while the function ran")
            share = statistics.median((fill[3] - blind[3]) / bare[3] for bare, fill, _, blind, _ in runs)
            is_within = "within" if share <= OBSERVING else "OVER"
            print(f"  observation adds {share:.3f} of bare's processor time ({is_within} {OBSERVING})")
        print(f"  gain of two workers {gain:.2f} ({'reaches' if gain >= WORKERS else 'BELOW'} {WORKERS})")
        print(f"  gain of two processes that only call the function {calls:.2f}")
    found = []
    for _ in range(asked.rounds):
        with sandbox() as box:
            box.start_daemon()
            found.append([float(word) for word in box.python("-c", LINES).stdout.split()])
    bare_s, fill_s = map(statistics.median, zip(*found, strict=True))
    added_us, bare_us = (fill_s - bare_s) * 1e6, bare_s * 1e6
    print(f"lines: a fill adds {added_us:.0f} us of processor time to an item of {bare_us:.0f}")


if __name__ == "__main__":
    main()
