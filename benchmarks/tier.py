"""The shared tier's figures: python -m benchmarks.tier [--recipes N] [--megabytes N] [--rounds N]

A bucket on loopback, in a process of its own. A job fills it with a data set of images. Fresh machines, each
a daemon and a job in processes of their own, then open that data set and take its first batch. In turns with
them, obstore downloads the same objects, all at once, into memory and into files. Another job on such a
machine says what of the time is not the bucket's. Imports are done before. This is done twice: as fast as
loopback is, where the cores that download also are the bucket's, and over a slower line.

Then the bucket gets RECIPES x 1,000 artifacts, and a daemon that has read nothing of it is asked for items of
a recipe: how long that takes beside the bare list and download of the same manifest by obstore, and what the
daemon has resident then.

With --seconds N, four machines with four jobs each prepare one cold data set that would take each machine N
seconds, without a lead and with one: how often an item was preprocessed.
"""

import argparse
import asyncio
import contextlib
import math
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import obstore
from blake3 import blake3
from obstore.store import from_url

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from prepcache.digests import Digest  # noqa: E402
from prepcached.tier import manifests as manifest  # noqa: E402
from support.fake_s3 import FakeS3, fake_s3  # noqa: E402
from support.fleet import box, lead  # noqa: E402
from support.jobs import Jobs, facts_together  # noqa: E402
from support.sandbox import sandbox  # noqa: E402
from support.serving import Job, process, serving  # noqa: E402

JOB = """
def make(item):
    called(item)
    time.sleep(0.4)
    return np.full(4, item)

barrier()
tell(prepcache.CachedDataset(list(range(int(sys.argv[1]))), make, progress=False))
"""
IMAGE_BYTES = 3 * 224 * 224
FIRST_BATCH = """
from torch.utils.data import DataLoader

def make(item):
    time.sleep(0.002)  # as long as an image takes
    return np.full((3, 224, 224), item % 251, np.uint8)

prepcache.CachedDataset, prepcache.Client
barrier()
began = time.perf_counter()
ds = prepcache.CachedDataset(list(range(int(sys.argv[1]))), make, progress=False)
batch = next(iter(DataLoader(ds, batch_size=64)))
seconds_to_batch = time.perf_counter() - began
assert all((image == at).all() for at, image in enumerate(batch))
tell(ds, to_batch=seconds_to_batch)
"""
ARTIFACTS, ITEMS, OBJECTS = 1000, 20, 10
ASKED = 9
URL = "s3://lab/prefix"
AIM_S, AIM_SPEED = 0.5, 0.8
RATES = math.inf, 2.5e9 / 8
"""Bytes a second: what two cores that are also the bucket's give, and a fast connection of a lab."""


def digest(*parts: object) -> str:
    return blake3(repr(parts).encode()).hexdigest()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def lay_out(s3: FakeS3, recipes: int) -> None:
    """Manifests of so many recipes, and a stand-in for each of their artifacts."""
    for recipe in range(recipes):
        rows = []
        for at in range(ARTIFACTS):
            name = digest("artifact", recipe, at)
            items = b"".join(blake3(b"%d %d %d" % (recipe, at, one)).digest() for one in range(ITEMS))
            rows.append(manifest.Row(Digest(name), 1000, items, 1.0))
            s3.objects[f"prefix/cas/v1/{name[:2]}/{name}"] = b""
        for part in range(OBJECTS):
            for data in manifest.encode(rows[part::OBJECTS]):
                s3.objects[f"prefix/manifests/v1/{digest(recipe)}/shared/{part:032x}.json"] = data


def serve(said: Connection) -> None:
    with fake_s3() as s3, contextlib.suppress(EOFError):
        said.send(s3.environ)
        while True:
            recipes, s3.rate = said.recv()
            lay_out(s3, recipes)
            said.send("done")


@contextlib.contextmanager
def bucket_process() -> Iterator[Connection]:
    """The bucket in a process of its own, which the environment names."""
    ours, its = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(its,), daemon=True)
    server.start()
    os.environ.update({**ours.recv(), "AWS_ALLOW_HTTP": "true"})
    yield ours
    server.terminate()


def be(bucket: Connection, recipes: int = 0, rate: float = math.inf) -> None:
    """Lays out so many recipes more, and limits the bytes that it sends a second."""
    bucket.send((recipes, rate))
    bucket.recv()


# -- the first batch


def first_batch(jobs: Jobs, folder: Path, count: int) -> list[float]:
    """Seconds to the first batch on a fresh machine: of its first job, and of one that finds all there."""
    script, found = jobs.write(FIRST_BATCH), []
    environ = {"PREPCACHED_TIER": URL, "PREPCACHED_MAX_BYTES": "16GiB"}
    with tempfile.TemporaryDirectory(dir=folder) as made, process(Path(made), environ=environ):
        for _ in range(2):
            told = jobs.begin(script, count, PREPCACHE_URL=f"unix://{made}/s.sock").facts()
            assert told["computed"] == 0, told
            found.append(told["to_batch"])
    return found


async def into_memory(store: Any, name: str) -> None:
    await (await obstore.get_async(store, name)).bytes_async()


async def into_file(store: Any, name: str) -> None:
    with tempfile.TemporaryFile() as file:
        async for piece in await obstore.get_async(store, name):
            file.write(piece)


def bare_s(prefix: str, download: Callable[[Any, str], Awaitable[None]] = into_memory) -> float:
    """Seconds that obstore takes to list and download what is under a prefix, all at once."""

    async def work() -> None:
        store = from_url(URL)
        names = [one["path"] async for page in obstore.list(store, prefix) for one in page]
        await asyncio.gather(*(download(store, name) for name in names))

    began = time.perf_counter()
    asyncio.run(work())
    return time.perf_counter() - began


def measure_first_batch(folder: Path, count: int, rounds: int, bucket: Connection) -> None:
    megabytes = count * IMAGE_BYTES / 1e6
    with sandbox() as its, contextlib.closing(Jobs(its)) as jobs:
        with serving(folder, tier={"url": URL}, max_bytes=16 << 30) as first:
            jobs.begin(jobs.write(FIRST_BATCH), count, PREPCACHE_URL=f"unix://{first.uds}").facts()
            first.http().post("/v1/tier/push", timeout=300)
            artifacts = first.store.stats().entries
        say(f"the bucket has {megabytes:,.0f} MB in {artifacts} artifacts")
        for rate in RATES:
            be(bucket, rate=rate)
            found = []
            for at in range(rounds):
                bares = [bare_s("cas/", download) for download in (into_memory, into_file)]
                found.append([*first_batch(jobs, folder, count), *bares])
                say(f"round {at + 1}: " + ", ".join(f"{one:.2f} s" for one in found[-1]))
            tell(found, megabytes, rate)
    be(bucket)


def tell(found: list[list[float]], megabytes: float, rate: float) -> None:
    line = "loopback" if rate == math.inf else f"a line of {rate * 8 / 1e9:.1f} Gbit/s"
    ours, again, *_ = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"first batch of {megabytes:,.0f} MB over {line}: {ours:.2f} s, {megabytes / ours:,.0f} MB/s")
    print(f"  of it {again:.2f} s where all of it is on the machine")
    for at, what in ((2, "into memory"), (3, "into files")):
        ratios = sorted(one[at] / one[0] for one in found)
        middle, low, high = statistics.median(ratios), ratios[0], ratios[-1]
        print(f"  {middle:.2f} ({low:.2f} to {high:.2f}; aim {AIM_SPEED}) of a bare download {what}")


# -- a large bucket


def asked_s(job: Job, recipe: int) -> float:
    """Seconds until a job is told that the bucket has none of its items."""
    job.recipe = digest(recipe)
    began = time.perf_counter()
    generation = job.resolve().json()["generation"]
    answer = job.lease(["nobody has made this"], generation).json()
    assert answer["granted"] == [0], answer
    return time.perf_counter() - began


def resident() -> int:
    """Bytes that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure_manifests(folder: Path, recipes: int, bucket: Connection) -> None:
    be(bucket, recipes)
    say(f"the bucket has {recipes * ARTIFACTS:,} artifacts in {recipes} recipes")
    before = resident()
    with serving(folder, tier={"url": URL}) as served:
        job = served.job()
        times = [asked_s(job, recipe) for recipe in range(ASKED)]
        grown = resident() - before
        bares = [bare_s(f"manifests/v1/{digest(recipe)}/") for recipe in range(ASKED)]
    median, floor = statistics.median(times), statistics.median(bares)
    print(f"of {recipes * ARTIFACTS:,} artifacts the {ARTIFACTS:,} of a recipe: {median:.3f} s")
    print(f"  ({min(times):.3f} to {max(times):.3f}; aim {AIM_S}), {median / floor:.1f} x a bare read")
    print(f"  resident: {grown / 1e6:.0f} MB more after {ASKED} recipes")


# -- machines that share a cold data set


def calls_per_item(folder: Path, seconds: int, with_lead: bool) -> float:
    """How often four machines that share a folder preprocess an item."""
    (folder / "bucket").mkdir()
    count = seconds * 10  # four jobs, 0.4 s an item
    with contextlib.ExitStack() as stack:
        jobs = Jobs(stack.enter_context(sandbox()))
        stack.callback(jobs.close)
        given = stack.enter_context(lead(folder / "lead"))[1] if with_lead else None
        boxes = [
            stack.enter_context(box(folder / f"box{at}", folder / "bucket", upstream=given))
            for at in range(4)
        ]
        script = jobs.write(JOB)
        urls = [f"unix://{one.uds}" for one in boxes for _ in range(4)]
        facts_together([jobs.start(script, count, PREPCACHE_URL=url) for url in urls])
        return sum(jobs.calls().values()) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int)
    options = parser.parse_args()
    if options.seconds is not None:
        for with_lead in (False, True):
            with tempfile.TemporaryDirectory() as made:
                ratio = calls_per_item(Path(made), options.seconds, with_lead)
            how = "with a lead" if with_lead else "without a lead"
            print(f"{options.seconds} s of work, four machines {how}: {ratio:.2f} calls an item", flush=True)
        return
    with bucket_process() as bucket, contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        measure_first_batch(folders[0], options.megabytes * 10**6 // IMAGE_BYTES, options.rounds, bucket)
        measure_manifests(folders[1], options.recipes, bucket)


if __name__ == "__main__":
    main()
