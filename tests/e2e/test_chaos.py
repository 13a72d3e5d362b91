"""Whatever is killed, stopped, purged or restarted: jobs get the right samples, and nothing is left over."""

import os

import pytest

from prepcache.daemon.client import Client
from prepcached.store.layout import Layout
from prepcached.store.records import Limits
from prepcached.store.store import Store
from support import serving, stores
from support.chaos import DAEMON_COUNTS, Chaos
from support.chaos_jobs import SALTS
from support.leaks import descriptors
from support.sandbox import Sandbox

LONG_S = 600.0
SPAN = 400
BUDGET_BYTES = int(0.6 * SALTS * (2 * SPAN * 3072 + 1.5 * 1.5 * SPAN * 3072))
"""60 % of what all recipes' data take: 2 spans of samples, and 1.5 spans of items of 1.5 samples each."""
PRESSURE = (
    "kill a job", "kill a worker", "stop", "stop for long", "continue", "purge one", "purge all", "verify",
    "kill the daemon", "stop the daemon", *DAEMON_COUNTS,
)  # fmt: skip
"""What a long run must have seen, or it proves nothing."""


CASES = [
    pytest.param(3, 15.0, marks=pytest.mark.nightly),
    pytest.param(11, LONG_S, marks=[pytest.mark.soak, pytest.mark.timeout(LONG_S + 280)]),
]


@pytest.mark.parametrize(("seed", "seconds"), CASES)
def test_every_job_ends_well_and_nothing_is_left(box, seed, seconds):
    chaos = Chaos(box, seed, span=SPAN, rounds=2, budget_bytes=BUDGET_BYTES)
    try:
        chaos.run(seconds)
        assert all(job.ended for job in chaos.jobs), "every job has ended well at least once"
        assert serving.wait_until(chaos.is_quiet, 30), f"every worker ends with its job\n{chaos.stacks()}"
        check_nothing_is_left(chaos)
        chaos.stop_daemon()
        check_the_store(box)
        print(dict(chaos.tally.most_common()), [job.ended for job in chaos.jobs])
        assert seconds < LONG_S or not [what for what in PRESSURE if not chaos.tally[what]]
    finally:
        chaos.close()


def check_nothing_is_left(chaos: Chaos) -> None:
    """No session, lease, hold, staging file or descriptor, as the daemon itself says within two seconds."""
    client = Client(chaos.url)
    root = chaos.box.folder / "root"

    def is_clean() -> bool:
        stats = client.stats()
        entries = list(client.entries())
        return (
            (stats["sessions"], stats["leases"], stats["waiting"], stats["held_bytes"]) == (0, 0, 0, 0)
            and (stats["staged_bytes"], stats["reserved_bytes"]) == (0, 0)
            and (stats["unlinked_bytes"], stats["damaged"]) == (0, 0)
            and not any(entry.holds for entry in entries)
            and not os.listdir(Layout(os.fspath(root)).staging)
        )

    assert serving.wait_until(is_clean, 5), (client.stats(), client.sessions())
    client.close()

    def is_closed() -> bool:
        opened = [target for _, target in descriptors(chaos.daemon.pid)]
        return not any("pidfd" in name or "/objects/" in name or "/staging/" in name for name in opened)

    assert serving.wait_until(is_closed, 5), "descriptors of jobs and artifacts are closed"
    assert not list(chaos.temporary.glob("prepcache-*")), "what a job kept to itself is gone"


def check_the_store(box: Sandbox) -> None:
    """After the daemon: `check` finds nothing, and disk use is the index's sum."""
    root = box.folder / "root"
    box.python("-m", "prepcached", "check", "--root", root)
    store = Store(root, limits=Limits(max_bytes=BUDGET_BYTES, min_free_bytes=0))
    try:
        assert store.stats().disk_bytes == stores.disk_use(store) <= BUDGET_BYTES
        assert store.verify().bad == ()
    finally:
        store.close()
