"""The stat cache, digests of files by stamp: the racy rule, many processes, corrupt files, and growth."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prepcache
from prepcache.keys.files import stat_cache
from prepcache.keys.files.stat_cache import Stamp, StatCache
from support.leaks import Leaks
from support.observing import told_by_child

DAY_NS = 86_400 * 10**9
NOW_NS = 20_000 * DAY_NS


class Clock:
    def __init__(self) -> None:
        self.now_ns = NOW_NS

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def stamp(number: int) -> Stamp:
    return (1, number, number * 3, NOW_NS - DAY_NS, NOW_NS - DAY_NS)


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def make(folder: Path, clock: Clock | None = None) -> StatCache:
    return StatCache(folder / "memo", clock=clock or Clock(), window_ns=lambda device: 2 * 10**9)


def fill(memo: StatCache, numbers: Any) -> None:
    for number in numbers:
        memo.add(stamp(number), digest(number), NOW_NS)


@pytest.mark.parametrize(("mtime_age_s", "ctime_age_s", "is_kept"), [
    (10, 10, True), (1, 10, False), (10, 1, False), (-100, 10, True), (10, -100, False), (2.1, 2.1, True),
    (-1, 10, False),
])  # fmt: skip
def test_a_young_stamp_is_not_recorded(tmp_path, mtime_age_s, ctime_age_s, is_kept):
    memo = make(tmp_path)
    young = (1, 2, 3, NOW_NS - int(mtime_age_s * 1e9), NOW_NS - int(ctime_age_s * 1e9))
    assert memo.add(young, digest(1), NOW_NS) is is_kept
    assert (memo.get(young) is not None) is is_kept


def test_the_age_that_must_pass_depends_on_the_filesystem(monkeypatch):
    table = [(os.makedev(0, 1), "ext4"), (os.makedev(0, 2), "nfs4"), (os.makedev(0, 3), "fuse.sshfs")]
    monkeypatch.setattr(stat_cache, "_windows", {})
    monkeypatch.setattr(stat_cache, "_mounted", lambda: table)
    windows = [stat_cache.racy_window_ns(os.makedev(0, n)) // 10**9 for n in (1, 2, 3, 4)]
    assert windows == [2, 60, 60, 60]


@pytest.mark.parametrize("kind", ["vfat", "exfat", "squashfs", "erofs", "iso9660"])
def test_no_stamp_is_recorded_without_change_times(tmp_path, monkeypatch, kind):
    """The file may be written anew with all its times as before."""
    device = os.makedev(0, 9)
    monkeypatch.setattr(stat_cache, "_windows", {})
    monkeypatch.setattr(stat_cache, "_mounted", lambda: [(device, kind)])
    memo = StatCache(tmp_path / "memo", clock=Clock())
    old = (device, 2, 3, 0, 0)
    assert not memo.add(old, digest(1), NOW_NS)
    assert memo.get(old) is None


def test_the_mount_table_of_this_machine_is_read():
    assert os.stat("/proc").st_dev in dict(stat_cache._mounted())


@pytest.mark.parametrize("is_of_another", [False, True])
def test_a_folder_that_others_may_write_to_is_not_believed(tmp_path, monkeypatch, is_of_another):
    memo = make(tmp_path)
    fill(memo, [1])
    memo.flush()
    assert (tmp_path / "memo").stat().st_mode & 0o777 == 0o700
    if is_of_another:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    else:
        (tmp_path / "memo").chmod(0o777)
    assert make(tmp_path).get(stamp(1)) is None


def test_a_segment_that_others_may_write_is_not_believed(tmp_path):
    memo = make(tmp_path)
    fill(memo, range(5))
    memo.flush()
    [segment] = (tmp_path / "memo").glob("*.seg")
    assert make(tmp_path).get(stamp(1)) == digest(1)
    segment.chmod(0o660)
    assert make(tmp_path).get(stamp(1)) is None
    segment.chmod(0o600)
    (tmp_path / "other name").hardlink_to(segment)
    assert make(tmp_path).get(stamp(1)) is None, "who has another name for it may hold it open"
    (tmp_path / "other name").unlink()
    assert make(tmp_path).get(stamp(1)) == digest(1)


def test_a_memo_that_cannot_be_written_forgets(tmp_path):
    (tmp_path / "memo").write_bytes(b"a file in the way")
    memo = make(tmp_path)
    fill(memo, [1])
    memo.flush()
    assert memo.get(stamp(1)) == digest(1)
    assert make(tmp_path).get(stamp(1)) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_corrupt_segment_never_answers_wrong(tmp_path, seed):
    memo = make(tmp_path)
    fill(memo, range(30))
    memo.flush()
    (segment,) = (tmp_path / "memo").glob("*.seg")
    rng = random.Random(seed)
    raw = bytearray(segment.read_bytes())
    kind = seed % 4
    if kind == 0:
        raw = raw[: rng.randrange(len(raw))]
    elif kind == 1:
        raw = bytearray(len(raw))
    elif kind == 2:
        raw += b"\0"
    else:
        for _ in range(40):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    segment.write_bytes(raw)
    damaged = make(tmp_path)
    for number in range(30):
        assert damaged.get(stamp(number)) in (None, digest(number))
    found, digests = damaged.lookup(np.array([stamp(n) for n in range(30)]))
    assert all(digests[n].tobytes() == digest(n) for n in np.flatnonzero(found).tolist())


def test_older_records_go_beyond_the_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(stat_cache, "MAX_RECORDS", 30)
    memo = make(tmp_path)
    for start in range(0, 100, 10):
        fill(memo, range(start, start + 10))
        memo.flush()
    later = make(tmp_path)
    kept = [number for number in range(100) if later.get(stamp(number)) is not None]
    assert kept[-10:] == list(range(90, 100))
    assert 10 <= len(kept) <= 40


def test_what_a_killed_writer_left_is_swept(tmp_path):
    clock = Clock()
    memo = make(tmp_path, clock)
    fill(memo, [1])
    memo.flush()
    left = tmp_path / "memo" / ".0-1-0.seg.tmp"
    left.write_bytes(b"half")
    os.utime(left, ns=(NOW_NS - 2 * DAY_NS, NOW_NS - 2 * DAY_NS))
    fill(memo, [2])
    memo.flush()
    assert not left.exists()


def test_many_processes_write_at_once_and_nothing_is_lost(tmp_path):
    script = (
        "import sys; from prepcache.keys.files.stat_cache import StatCache\n"
        "memo = StatCache(sys.argv[1], window_ns=lambda d: -10**20)\n"
        "n = int(sys.argv[2])\n"
        "for i in range(n, n + 200):\n"
        "    memo.add((1, i, 0, 0, 0), i.to_bytes(32, 'big'), 0)\n"
        "    if i % 10 == 0: memo.flush()\n"
        "memo.flush()\n"
    )
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    jobs = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "memo"), str(n)], env=env)
        for n in range(0, 800, 200)
    ]
    assert [job.wait() for job in jobs] == [0, 0, 0, 0]
    memo = make(tmp_path)
    assert [i for i in range(800) if memo.get((1, i, 0, 0, 0)) != digest(i)] == []
    assert len(list((tmp_path / "memo").glob("*.seg"))) < 40


def test_a_forked_child_does_not_write_what_its_parent_learned(tmp_path):
    memo = make(tmp_path)
    fill(memo, [1])
    assert told_by_child(lambda: [memo.flush(), *map(str, tmp_path.glob("memo/*.seg"))]) == [None]
    memo.flush()
    assert make(tmp_path).get(stamp(1)) == digest(1)


def test_a_segment_that_is_cut_short_in_use_knows_less(tmp_path):
    """A file that shrinks under a map would kill the process."""
    memo = make(tmp_path)
    fill(memo, range(2000))
    memo.flush()
    assert memo.get(stamp(7)) == digest(7)
    (segment,) = (tmp_path / "memo").glob("*.seg")
    os.truncate(segment, segment.stat().st_size // 2)
    stamps = np.array([stamp(number) for number in range(2000)])
    for asked in (stamps, stamps[:5]):
        found, digests = memo.lookup(asked)
        assert all(digests[n].tobytes() == digest(n) for n in np.flatnonzero(found).tolist())
        assert found.tolist() == [memo.get(tuple(one)) is not None for one in asked.tolist()]
    assert not memo.lookup(stamps)[0].all()
    segment.unlink()
    memo.refresh()
    assert memo.get(stamp(7)) is None


def text_of(item: int) -> str:
    return str(item)


def test_a_data_set_that_is_open_keeps_no_descriptor(tmp_path, monkeypatch):
    """A segment of the stat cache keeps one; a file among the items would write another once it is old."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PREPCACHE", "off")
    memo = StatCache(stat_cache.user_stat_cache().folder, window_ns=lambda _: 0)
    memo.add((1, 1, 1, 1, 1), bytes(32), 2)
    memo.flush()
    opened = [prepcache.CachedDataset([1], text_of, progress=False)]
    before = Leaks()
    opened += [prepcache.CachedDataset([1], text_of, progress=False) for _ in range(5)]
    assert not before.descriptors()
    assert [ds[0] for ds in opened] == ["1"] * 6
