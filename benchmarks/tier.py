"""The shared tier's figures: python -m benchmarks.tier [--recipes N] [--megabytes N]

A bucket on loopback, in a process of its own, holds RECIPES x 1,000 artifacts. Fresh machines, each a
process, fetch one large artifact, in turns with a bare download of it by obstore into memory, and into a
file. Then a daemon that has read nothing of the bucket is asked for items of a recipe: how long that takes
beside the bare list and download of the same manifest by obstore, and what the daemon has resident then.
With --seconds N, four machines without a lead, with four jobs each, prepare one cold data set that would take
each machine N seconds: how often an item was preprocessed.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
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
from support.fleet import box  # noqa: E402
from support.jobs import Jobs, facts_together  # noqa: E402
from support.sandbox import sandbox  # noqa: E402
from support.serving import Job, http_client, open_job, process, serving  # noqa: E402

JOB = """
def make(item):
    called(item)
    time.sleep(0.4)
    return np.full(4, item)

barrier()
tell(prepcache.CachedDataset(list(range(int(sys.argv[1]))), make, progress=False))
"""
ARTIFACTS, ITEMS, OBJECTS = 1000, 20, 10
ASKED = 9
ROUNDS = 7
URL = "s3://lab/prefix"
AIM_S = 0.5


def digest(*parts: object) -> str:
    return blake3(repr(parts).encode()).hexdigest()


def lay_out(s3: FakeS3, recipes: int) -> None:
    """Manifests of so many recipes, and a stand-in for each of their artifacts."""
    for recipe in range(recipes):
        rows = []
        for at in range(ARTIFACTS):
            name = digest("artifact", recipe, at)
            items = b"".join(bytes.fromhex(digest("item", recipe, at, one)) for one in range(ITEMS))
            rows.append(manifest.Row(Digest(name), 1000, items, 1.0))
            s3.objects[f"prefix/cas/v1/{name[:2]}/{name}"] = b""
        for part in range(OBJECTS):
            for data in manifest.encode(rows[part::OBJECTS]):
                s3.objects[f"prefix/manifests/v1/{digest(recipe)}/shared/{part:032x}.json"] = data


def serve(recipes: int, said: Connection) -> None:
    with fake_s3() as s3:
        lay_out(s3, recipes)
        said.send(s3.environ)
        with contextlib.suppress(EOFError):
            said.recv()


@contextlib.contextmanager
def bucket_process(recipes: int) -> Iterator[None]:
    """The bucket in a process of its own, which the environment names."""
    ours, its = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(recipes, its), daemon=True)
    server.start()
    os.environ.update({**ours.recv(), "AWS_ALLOW_HTTP": "true"})
    yield
    server.terminate()


def bare_s(prefix: str) -> float:
    """Seconds that obstore takes to list and download what is under a prefix."""
    began = time.perf_counter()
    store = from_url(URL)

    async def work() -> None:
        names = [one["path"] async for page in obstore.list(store, prefix) for one in page]
        for name in names:
            found = await obstore.get_async(store, name)
            await found.bytes_async()

    asyncio.run(work())
    return time.perf_counter() - began


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


def fetched(folder: Path, megabytes: int) -> tuple[float, float, float]:
    """Seconds in which a fresh machine fetches an artifact, and of a bare download into memory and a file.

    What each has written is deleted: memory that a virtual machine touches for the first time is slow.
    """
    with tempfile.TemporaryDirectory(dir=folder) as made, contextlib.ExitStack() as stack:
        stack.enter_context(process(Path(made), environ={"PREPCACHED_TIER": URL}))
        job = open_job(stack.enter_context(http_client(Path(made, "s.sock"))))
        generation = job.resolve().json()["generation"]
        began = time.perf_counter()
        while not job.lease(["large"], generation, wait_s=2.0).json()["look_again"]:
            pass
        ours = time.perf_counter() - began
    store = from_url(URL)
    [name] = [one["path"] for one in obstore.list(store, "cas/").collect() if one["size"] > megabytes << 20]
    began = time.perf_counter()
    obstore.get(store, name).bytes()
    in_memory = time.perf_counter() - began
    began = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        for piece in obstore.get(store, name).stream():
            file.write(piece)
        in_file = time.perf_counter() - began
    return ours, in_memory, in_file


def calls_per_item(folder: Path, seconds: int) -> float:
    """How often four machines that share a folder, and have no lead, preprocess an item."""
    (folder / "bucket").mkdir()
    count = seconds * 10  # four jobs, 0.4 s an item
    with contextlib.ExitStack() as stack:
        jobs = Jobs(stack.enter_context(sandbox()))
        stack.callback(jobs.close)
        boxes = [stack.enter_context(box(folder / f"box{at}", folder / "bucket")) for at in range(4)]
        script = jobs.write(JOB)
        urls = [f"unix://{one.uds}" for one in boxes for _ in range(4)]
        facts_together([jobs.start(script, count, PREPCACHE_URL=url) for url in urls])
        return sum(jobs.calls().values()) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--seconds", type=int)
    options = parser.parse_args()
    if options.seconds is not None:
        with tempfile.TemporaryDirectory() as made:
            ratio = calls_per_item(Path(made), options.seconds)
        print(f"{options.seconds} s of work, four machines without a lead: {ratio:.2f} calls an item")
        return
    with bucket_process(options.recipes), tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("box", "first"):
            (folder / name).mkdir()
        with serving(folder / "first", tier={"url": URL}, max_bytes=8 << 30) as first:
            job = first.job()
            job.fill(first.store.staging, ["large"], size_bytes=options.megabytes << 20, cost_s=60.0)
            assert first.http().post("/v1/tier/push", timeout=300).json()["artifacts"] == 1
        found = [fetched(folder, options.megabytes) for _ in range(ROUNDS)]
        speed = options.megabytes / statistics.median(ours for ours, _, _ in found)
        in_memory, in_file = ([one[at] / one[0] for one in found] for at in (1, 2))
        print(f"an artifact of {options.megabytes} MiB: {speed:.0f} MiB/s;")
        for ratios, what in ((in_memory, "into memory"), (in_file, "into a file")):
            low, high = min(ratios), max(ratios)
            print(f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) of a bare download {what}")
        print(f"{options.recipes * ARTIFACTS:,} artifacts in {options.recipes} recipes")
        before = resident()
        with serving(folder / "box", tier={"url": URL}) as served:
            job = served.job()
            times: list[Any] = [asked_s(job, recipe) for recipe in range(ASKED)]
            bares = [bare_s(f"manifests/v1/{digest(recipe)}/") for recipe in range(ASKED)]
        median, floor = statistics.median(times), statistics.median(bares)
        print(f"a recipe of {ARTIFACTS:,}: {median:.3f} s (aim {AIM_S}), {median / floor:.1f} x a bare read")
        print(f"resident: {(resident() - before) / 1e6:.0f} MB more after {ASKED} recipes")


if __name__ == "__main__":
    main()
