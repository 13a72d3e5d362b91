"""The stat cache against a dict: it answers what was added, whatever is flushed, merged or reopened."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prepcache.keys.files.stat_cache import Stamp, StatCache

NOW_NS = 10**18

stamps = st.builds(
    lambda device, inode, size, age: (device, inode, size, NOW_NS - age * 10**9, NOW_NS - age * 10**9),
    st.sampled_from([1, -1, 2**40]),
    st.integers(0, 5) | st.sampled_from([-(2**63), 2**63 - 1]),
    st.integers(0, 2),
    st.sampled_from([0, 1, 3, 100, 10**9 + 5]),
)


class StatCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.memos = [self.open(), self.open()]
        self.truth: dict[Stamp, bytes] = {}
        """A stamp belongs to one content: the same stamp is always added with the same digest."""

    def open(self) -> StatCache:
        return StatCache(self.folder / "memo", clock=lambda: NOW_NS, window_ns=lambda device: 2 * 10**9)

    @rule(stamp=stamps, which=st.integers(0, 1))
    def add(self, stamp: Stamp, which: int) -> None:
        digest = repr(stamp).encode().ljust(32)[:32]
        is_young = NOW_NS - stamp[4] < 2 * 10**9
        assert self.memos[which].add(stamp, digest, NOW_NS) is not is_young
        if not is_young:
            self.truth[stamp] = digest

    @rule(which=st.integers(0, 1))
    def flush(self, which: int) -> None:
        self.memos[which].flush()

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.memos[which] = self.open()

    @rule(which=st.integers(0, 1))
    def refresh(self, which: int) -> None:
        self.memos[which].refresh()

    @rule(which=st.integers(0, 1), asked=st.lists(stamps, min_size=1, max_size=5))
    def look_up(self, which: int, asked: list[Stamp]) -> None:
        found, digests = self.memos[which].lookup(np.array(asked, np.int64))
        for row, stamp in enumerate(asked):
            one = self.memos[which].get(stamp)
            assert one == (digests[row].tobytes() if found[row] else None)
            assert one is None or one == self.truth[stamp]

    @invariant()
    def segments_stay_few(self) -> None:
        if (self.folder / "memo").exists():
            assert len(list((self.folder / "memo").glob("*.seg"))) <= 12

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


TestStatCache = StatCacheMachine.TestCase
TestStatCache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
