"""Data sets whose items expand: shared as any, the same positions in every process, none left out."""

import errno
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from prepcache import CachedDataset
from support.serving import wait_until

EXPANDED = """
def lines(path, width):
    called(path)
    for line in path.read_text().splitlines():
        yield np.frombuffer(line[:width].ljust(width).encode(), "u1"), len(line)

folder = Path(sys.argv[1])
ds = prepcache.CachedDataset(sorted(folder.iterdir()), lines, {"width": 8}, root=folder, expand=True,
                             progress=False)
want = [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
assert len(ds) == len(want)
assert [(bytes(row).decode(), size) for row, size in ds] == [(w[:8].ljust(8), len(w)) for w in want]
assert [size for _, size in ds.__getitems__([len(want) - 1, 0])] == [len(want[-1]), len(want[0])]
tell(ds, samples=len(ds))
"""


def test_expanding_items_are_shared_and_work_without_a_daemon(jobs):
    folder = jobs.box.folder / "texts"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text("\n".join(f"{number} line {n}" for n in range(number * 3)))
    script = jobs.write(EXPANDED)
    without = jobs.run(script, folder, PREPCACHE="off")
    assert without["samples"] == 45
    jobs.forget()
    assert jobs.run(script, folder)["computed"] == 6
    assert jobs.calls().total() == 6
    jobs.forget()
    assert jobs.run(script, folder)["hit"] == 6
    assert jobs.run(script, folder, PREPCACHE="readonly")["samples"] == 45
    assert jobs.calls() == Counter()


EXPANDED_ELSEWHERE = """
import pickle

def make(item):
    for number in range(3):
        yield item * 10 + number

def main():
    prepcache.CachedDataset([0, 1], make, expand=True, progress=False)
    ds = prepcache.CachedDataset([0, 1, 2, 3], make, expand=True, progress=False)
    samples = list(ds)
    sent = pickle.dumps(ds)
    ref = next(ref for ref in ds._samples.catalogue.refs if ref.items == 2)
    prepcache.Client().verify([ref.key], differs="to see what a worker does that comes late")
    late = pickle.loads(sent)
    assert list(late) == samples and len(late) == len(samples), list(late)
    tell(ds)

if __name__ == "__main__":
    main()
"""


def test_expanded_positions_survive_a_lost_artifact(jobs):
    jobs.run(jobs.write(EXPANDED_ELSEWHERE))


def test_expanded_samples_that_cannot_be_kept_are_reported(monkeypatch):
    monkeypatch.setenv("PREPCACHE", "off")
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left"))
    monkeypatch.setattr("prepcache.fill.pending.nameless", full)
    make = mock.Mock(side_effect=lambda item: [item, item], __name__="make")
    with pytest.raises(OSError, match="TMPDIR") as told:
        CachedDataset([1, 2], make, expand=True, code=None, version="1", progress=False)
    assert (told.value.errno, make.call_count) == (errno.ENOSPC, 2)


def test_a_large_item_that_no_folder_takes_is_told(client, monkeypatch, caplog):
    monkeypatch.setattr("prepcache.fill.pending.COMMIT_BYTES", 20_000)
    monkeypatch.setattr("prepcache.fill.call.PART_BYTES", 4_000)
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left"))
    monkeypatch.setattr("prepcache.fill.pending.Writer.spill", full)
    options: Any = {"expand": True, "code": None, "version": "1", "progress": False, "client": client}

    def parts(item: int) -> Iterator[Any]:
        yield from np.zeros((1 + 100 * item, 125))

    with pytest.raises(OSError, match=r"fit neither into the cache nor into .*set TMPDIR"):
        CachedDataset([0, 1], parts, **options)
    assert "the samples of 1 item are dropped" in caplog.text and ": free space there" in caplog.text
    assert CachedDataset([0], parts, **options).report().hit == 1


def test_expanded_samples_that_are_always_purged_are_kept(client, monkeypatch):
    for limit in ("fill.share.COMMIT_S", "fill.share.COMMIT_SHARE", "fill.share.CHUNK_S",
                  "daemon.waits.BEAT_SHORTEST_S", "daemon.waits.BEAT_LONGEST_S"):  # fmt: skip
        monkeypatch.setattr(f"prepcache.{limit}", 0.02 * ("BEAT" in limit))
    opened = list[Any]()

    def purge() -> None:
        assert wait_until(lambda: opened[0].on_access.committer.is_idle)
        client.purge(everything=True)
        assert wait_until(lambda: not opened[0].catalogue.refs)

    def parts(item: int) -> Iterator[int]:
        if opened:
            purge()
        yield from (item, item)

    ds = CachedDataset(range(3), parts, code=None, version="1", expand=True, progress=False, client=client)
    opened.append(ds._samples)
    purge()
    ds.prepare()
    assert list(ds) == [0, 0, 1, 1, 2, 2]


def test_what_a_large_expanded_item_read_is_checked(client, tmp_path, monkeypatch):
    monkeypatch.setattr("prepcache.fill.pending.COMMIT_BYTES", 20_000)
    monkeypatch.setattr("prepcache.fill.call.PART_BYTES", 4_000)
    folder, vocabulary = str(tmp_path), tmp_path / "vocab.txt"

    def parts(item: int) -> Iterator[Any]:
        with open(folder + "/vocab.txt") as file:  # a path in the closure would count in the key
            offset = float(file.read())
        for number in range(100):
            yield np.full(125, offset + number)

    def first() -> float:
        ds = CachedDataset([1], parts, expand=True, progress=False, client=client)
        return float(ds[0][0])

    vocabulary.write_text("1")
    assert [first(), first()] == [1.0, 1.0]
    vocabulary.write_text("2000")
    assert first() == 2000.0
