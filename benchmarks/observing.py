"""What observation costs: outside of a watch, and for an item that reads one file, as ratios within one run.

    python -m benchmarks.observing [--limits]

Each row is measured in this process before anything was observed, in a child that has an audit hook that does
nothing, and again in this process after a function was watched, when our hook is there for good; the smallest
of many rounds counts. `--limits` ends with 1 where a ratio is over its limit.
"""

import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe

ROUNDS = 60
OPENS_LIMIT = 1.5
"""Of `os.open` beside an open data set, at any depth of the stack."""
OTHERS_LIMIT = 1.2
WATCHED_LIMIT = 1.4
"""Of an item that reads one file."""
_log = logging.getLogger("benchmarks.observing")
_FILE = Path(tempfile.gettempdir()) / f"observing-{os.getpid()}"


def read_one(item: Any) -> int:
    """An item that reads one file of 100 kB and adds it up."""
    with open(f"{_FILE}", "rb") as file:
        return sum(file.read())


def opened() -> None:
    os.close(os.open(_FILE_NAME, os.O_RDONLY))


_FILE_NAME = os.fspath(_FILE)
CALLS: dict[str, tuple[Callable[[], Any], float]] = {
    "os.open": (opened, OPENS_LIMIT),
    "os.open, 60 frames deep": (lambda: _deep(60, opened), OPENS_LIMIT),
    "id(x)": (lambda: [id(_log) for _ in range(20)], OTHERS_LIMIT),
    "sys._getframe()": (lambda: [sys._getframe() for _ in range(20)], OTHERS_LIMIT),
    "log.debug": (lambda: _log_all(), OTHERS_LIMIT),
    "os.path.join": (lambda: [os.path.join("a", "b") for _ in range(20)], OTHERS_LIMIT),  # noqa: PTH118 - what is measured
    "Path.stat": (lambda: [_FILE.stat() for _ in range(20)], OTHERS_LIMIT),
    "an item that reads one file": (lambda: read_one(0), WATCHED_LIMIT),
}


def _log_all() -> None:
    for _ in range(20):
        _log.debug("x")


def _deep(left: int, call: Callable[[], Any]) -> Any:
    return _deep(left - 1, call) if left else call()


def _time(call: Callable[[], Any], count: int = 20) -> float:
    best = 1e9
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - began)
    return best / count


def _time_all(*, is_hooked: bool = False) -> dict[str, float]:
    if is_hooked:
        sys.addaudithook(lambda *_: None)
    return {name: _time(call) for name, (call, _) in CALLS.items()}


def main() -> int:
    _FILE.write_bytes(bytes(100_000))
    try:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            hooked = pool.apply(_time_all, kwds={"is_hooked": True})
        before = _time_all()
        observer = Observer(recipe(read_one))

        def watched() -> None:
            with observer.watching([], read_one):
                read_one(0)

        item_s = _time(watched)
        after = _time_all() | {"an item that reads one file": item_s}
    finally:
        _FILE.unlink()
    is_over = False
    for name, (_, limit) in CALLS.items():
        one, empty, ours = before[name], hooked[name], after[name]
        is_over |= ours / one > limit
        times = "".join(f"{s * 1e6:8.2f} us" for s in (one, empty, ours))
        print(f"{name:28}{times}{ours / one:6.2f} (at most {limit}); ours / empty hook {ours / empty:.2f}")
    return int(is_over and "--limits" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
