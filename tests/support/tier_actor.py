"""A daemon that copies into a bucket, and is killed at one of its steps there.

Run as a program with a folder, a bucket and that step; says `{"committed"}` for each commit, and `{"steps"}`
at its end.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepcached.tier import manifests
from prepcached.tier.bucket import Bucket
from support.job_server import say
from support.serving import serving

FILLS = (["a", "b", "c"], ["d", "e"], ["f"])
STEPS = ("get", "put", "names", "delete")


def act(folder: Path, bucket: str, kill_at: int) -> None:
    steps = 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return await step(*args, **kwargs)

        return call

    for name in STEPS:
        setattr(Bucket, name, counted(getattr(Bucket, name)))
    manifests.COMPACTED_AT = 2
    with serving(folder, tier={"url": f"file://{bucket}"}) as served:
        job, http = served.job(), served.http()
        for names in FILLS:
            job.fill(served.store.staging, names)
            say(committed=len(names))
            assert http.post("/v1/tier/push").status_code == 200
    say(steps=steps)
    os._exit(0)


if __name__ == "__main__":
    act(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
