"""A job that fills a cache, so that a test can kill it at any system call.

Run as a program with `{"salt", "items", "cut", "is_shared"}` it opens a data set of so many items. One that
is to be cut short says `{"ready": thread}` where "the job" or "its commit" begins, and waits for the line
"go": by then strace is attached to that thread, and counts from here. It then checks its samples and says
`{"hit", "computed"}`.
"""

import contextlib
import json
import os
import sys
import threading
from typing import Any
from unittest import mock

import numpy as np

import prepcache
from prepcache.daemon.transfer import SharedFolder
from prepcache.fill.commit import Committer
from support.job_server import hear, say


def make(item: int, salt: int) -> dict[str, Any]:
    return {"x": np.full(8000, item * salt), "name": str(item)}


def main(order: dict[str, Any]) -> None:
    with contextlib.ExitStack() as stack:
        if order["cut"] == "the job":
            _await_strace()
        if method := {"its file": "keep", "its commit": "_offer"}.get(order["cut"]):
            true = getattr(Committer, method)
            stack.enter_context(mock.patch.object(Committer, method, _announced(true)))
        if not order["is_shared"]:
            stack.enter_context(mock.patch.object(SharedFolder, "find", lambda *_: None))
        salt, items = order["salt"], range(order["items"])
        ds = prepcache.CachedDataset(items, make, {"salt": salt}, code=None, version="1", progress=False)
        for item in items:
            want, got = make(item, salt), ds[item]
            assert got["name"] == want["name"] and np.array_equal(got["x"], want["x"]), item
        report = ds.report()
        say(hit=report.hit, computed=report.computed)
    os._exit(0)


def _announced(commit: Any) -> Any:
    is_awaited = False

    def announced(self: Committer, *args: Any) -> Any:
        nonlocal is_awaited
        if not is_awaited:
            is_awaited = True
            _await_strace()
        return commit(self, *args)

    return announced


def _await_strace() -> None:
    say(ready=threading.get_native_id())
    hear("go")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
