"""The shared tier's figures: python -m benchmarks.tier [--recipes N] [--megabytes N]

A bucket on loopback holds RECIPES x 1,000 artifacts. A daemon that has read nothing of it is asked for items
of a recipe: how long that takes beside the bare list and download of the same manifest by obstore, and what
the daemon has resident afterwards. Then a machine fetches one large artifact, beside a bare download of it
into memory, and into a file.
With --seconds N, four machines without a lead, with four jobs each, prepare one cold data set that would take
each machine N seconds: how often an item was preprocessed.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
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
from support.serving import Job, serving  # noqa: E402

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


def bare_s(prefix: str) -> float:
    """Seconds that obstore takes to list and download what is under a prefix."""
    began = time.perf_counter()
    store = from_url("s3://lab/prefix")

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


def fetched(folder: Path, s3: FakeS3, megabytes: int) -> tuple[float, float, float]:
    """Bytes a second of a machine that fetches an artifact, and of a bare download into memory and a file."""
    tier = {"url": "s3://lab/prefix"}
    with serving(folder / "first", tier=tier, max_bytes=8 << 30) as first:
        first.job().fill(first.store.staging, ["large"], size_bytes=megabytes << 20, cost_s=60.0)
        assert first.http().post("/v1/tier/push", timeout=300).json()["artifacts"] == 1
    [(name, size)] = [(key, len(s3.objects[key])) for key in s3.objects if len(s3.objects[key]) > 1 << 20]
    with serving(folder / "second", tier=tier, max_bytes=8 << 30) as second:
        job = second.job()
        began = time.perf_counter()
        generation = job.resolve().json()["generation"]
        while not job.lease(["large"], generation, wait_s=2.0).json()["look_again"]:
            pass
        ours = size / (time.perf_counter() - began)
    began = time.perf_counter()
    obstore.get(from_url("s3://lab/prefix"), name.removeprefix("prefix/")).bytes()
    in_memory = size / (time.perf_counter() - began)
    began = time.perf_counter()
    with (folder / "download").open("wb") as file:
        for piece in obstore.get(from_url("s3://lab/prefix"), name.removeprefix("prefix/")).stream():
            file.write(piece)
    return ours, in_memory, size / (time.perf_counter() - began)


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
    with fake_s3() as s3, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ.update({**s3.environ, "AWS_ALLOW_HTTP": "true"})
        for name in ("box", "first", "second"):
            (folder / name).mkdir()
        ours, in_memory, in_file = fetched(folder, s3, options.megabytes)
        print(
            f"an artifact of {options.megabytes} MiB: {ours / 1e6:.0f} MB/s, {ours / in_memory:.2f} of a bare"
        )
        print(f"download into memory, {ours / in_file:.2f} of one into a file")
        lay_out(s3, options.recipes)
        print(f"{options.recipes * ARTIFACTS:,} artifacts in {options.recipes} recipes")
        before = resident()
        with serving(folder / "box", tier={"url": "s3://lab/prefix"}) as served:
            job = served.job()
            times: list[Any] = [asked_s(job, recipe) for recipe in range(ASKED)]
            bares = [bare_s(f"manifests/v1/{digest(recipe)}/") for recipe in range(ASKED)]
        median, floor = statistics.median(times), statistics.median(bares)
        print(f"a recipe of {ARTIFACTS:,}: {median:.3f} s (aim {AIM_S}), {median / floor:.1f} x a bare read")
        print(f"resident: {(resident() - before) / 1e6:.0f} MB more after {ASKED} recipes")


if __name__ == "__main__":
    main()
