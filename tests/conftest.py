"""For all tests: a cache folder of their own, interruptible children, and which nightly cases run today.

NOTE [ Nightly cases ]
A case marked `nightly` is long, or one of many alike. `make nightly` runs all of them. Every other run takes
an eighth, chosen by the date (UTC): one case of eight of each test, so that eight days run everything.
`NIGHTLY=0` to `7`, `all` or `none` in the environment chooses otherwise. A case named with `::` always runs.

`@pytest.mark.nightly(daily=["id", ...])` marks all cases of a parametrised test except those with these ids:
every promise keeps at least one test that runs each time.
"""

import datetime
import gc
import os
import shutil
import signal
import tempfile
import zlib
from collections import defaultdict

import pytest
from hypothesis import Phase, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background commands so, and their children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# That an example fails is enough of a sabotaged product: shrinking it takes minutes.
phases = [Phase.explicit, Phase.generate] if "SABOTAGE" in os.environ else settings.default.phases
settings.register_profile("alike", derandomize=True, phases=phases)
if not os.environ.get("PREPCACHE_SOAK"):
    settings.load_profile("alike")

PARTS = 8
CHOICES = [*map(str, range(PARTS)), "all", "none"]

gc.disable()  # until all tests are collected: nothing of that is garbage


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the part once: workers inherit the environment, and a run may cross midnight."""
    today = datetime.datetime.now(datetime.UTC).date()
    chosen = os.environ.setdefault("NIGHTLY", str(today.toordinal() % PARTS))
    if chosen not in CHOICES:
        raise pytest.UsageError(f"NIGHTLY={chosen}: must be one of {', '.join(CHOICES)}")
    if not hasattr(config, "workerinput"):  # workers inherit this, too
        # A job that is given no daemon would use, or start, the one of whoever runs the tests.
        folder = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cache-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_report_header() -> str:
    chosen = os.environ["NIGHTLY"]
    part = f"part {chosen} of 0-{PARTS - 1}" if chosen.isdecimal() else chosen
    return f"nightly cases: {part} (NIGHTLY=N, all or none chooses)"


@pytest.hookimpl(tryfirst=True)  # sees every case, before -k and -m leave some out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any("::" in name for name in config.args):
        return
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("nightly") and not item.get_closest_marker("soak"):
            tests[item.nodeid.partition("[")[0]].append(item)
    left_out = [item for test, cases in tests.items() for item in _left_out(test, cases)]
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=left_out)


def _left_out(test: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """The cases of one nightly test that do not run today."""
    named = {case: case.nodeid[len(test) + 1 : -1] for case in cases}
    marks = [mark for case in cases for mark in case.iter_markers("nightly")]
    daily = {name for mark in marks for name in mark.kwargs.get("daily", ())}
    if unknown := daily - {*named.values()}:
        raise pytest.UsageError(f"{test}: no case has the id {', '.join(sorted(unknown))}")
    long = [case for case, name in named.items() if name not in daily]
    return [case for at, case in enumerate(long) if not _is_chosen(zlib.crc32(test.encode()) + at)]


def _is_chosen(number: int) -> bool:
    chosen = os.environ["NIGHTLY"]
    return chosen == "all" or str(number % PARTS) == chosen


def pytest_collection_finish() -> None:
    """What is loaded by now stays. A full collection would look through it for a quarter of a second."""
    gc.collect()
    gc.freeze()
    gc.enable()
