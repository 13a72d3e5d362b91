"""A fork server of daemons that copy into a bucket, and are killed at one of their steps there.

Orders are `{"folder", "bucket", "kill_at"}`. A child says `{"committed"}` for each commit, and `{"steps"}`
when it has ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepcached.tier import manifests
from prepcached.tier.bucket import Bucket
from support.fork_server import fork_for_orders, say
from support.serving import serving

FILLS = (["a", "b", "c"], ["d", "e"], ["f"])
STEPS = ("get", "put", "names", "delete")


def act(order: dict[str, Any]) -> None:
    steps = 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == order["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
            return await step(*args, **kwargs)

        return call

    for name in STEPS:
        setattr(Bucket, name, counted(getattr(Bucket, name)))
    manifests.COMPACTED_AT = 2
    with serving(order["folder"], tier={"url": f"file://{order['bucket']}"}) as served:
        job, http = served.job(), served.http()
        for names in FILLS:
            job.fill(served.store.staging, names)
            say({"committed": len(names)})
            assert http.post("/v1/tier/push").status_code == 200
    say({"steps": steps})


if __name__ == "__main__":
    fork_for_orders(lambda order: act({**order, "folder": Path(order["folder"])}))
