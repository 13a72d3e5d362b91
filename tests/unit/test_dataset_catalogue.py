"""Catalogues: items found only whole, moved when artifacts merge, missing when they go; they travel."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from prepcache.artifact.writer import Writer
from prepcache.digests import Digest, Key, RecipeDigest
from prepcache.errors import DaemonUnreachable
from prepcache.fill.pending import LocalFile
from prepcache.index.item_index import MISSING, Catalogue, Distinct, rows_of
from prepcache.index.recipe_index import RecipeIndex, open_or_miss
from prepcache.protocol import wire

RECIPE = RecipeDigest("ab" * 32)


def item(number: int) -> bytes:
    return blake3(b"%d" % number).digest()


class Index(RecipeIndex):
    """Artifacts that `open_ref` maps, without a daemon."""

    def __init__(self, open_ref: Any, *, keeps_all: bool = False) -> None:
        super().__init__(keeps_all=keeps_all)
        self.open_ref = open_ref

    def _open(self, ref: wire.ArtifactRef, verdicts: Any) -> Any:
        return self.open_ref(ref)


class Files:
    """Artifacts in a folder, by what is in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, edition: int = 0, **samples: list[Any]) -> wire.ArtifactRef:
        return self.put_digests({item(int(name[1:])): rows for name, rows in samples.items()}, edition)

    def put_digests(self, table: dict[bytes, list[Any]], edition: int = 0) -> wire.ArtifactRef:
        writer = Writer(RECIPE, edition)
        for digest, rows in table.items():
            writer.add(digest, rows, 1.0)
        name = Digest(os.urandom(32).hex())
        with open(self.folder / name, "w+b") as file:
            written = writer.write(file.fileno(), producer={})
            size_bytes = os.fstat(file.fileno()).st_size
        return wire.ArtifactRef(written.key, name, size_bytes, written.items, written.rows, 1.0, (), edition)

    def open(self, ref: wire.ArtifactRef) -> Any:
        return open_or_miss(ref, lambda ref: self.folder / ref.digest, RECIPE)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def digests(*names: int) -> Any:
    return np.frombuffer(b"".join(map(item, names)), "u1").reshape(-1, 32)


def catalogue(files: Files, count: int, *, is_expanded: bool = False) -> Catalogue:
    return Catalogue(Distinct(digests(*range(count))), Index(files.open), is_expanded=is_expanded)


def sample(found: Catalogue, index: int) -> Any:
    slot = found.slots[found.places.artifact[index]]
    return slot.artifact.sample(int(found.places.row[index]))


def test_items_are_found_and_useless_artifacts_named(files):
    one, two = files.put(i1=[1], i9=[9]), files.put(i0=[0])
    useless = files.put(i7=[7])
    found = catalogue(files, 3)
    assert found.index.take_in([one, two, useless]) == 2
    assert found.index.refs == [one, two]
    assert found.missing.tolist() == [2]
    assert (sample(found, 0), sample(found, 1)) == (0, 1)


def test_a_merged_artifact_takes_over_and_its_parts_are_dropped(files):
    one, two, merged = files.put(i0=[0]), files.put(i1=[1]), files.put(i0=[0], i1=[1], i5=[5])
    found = catalogue(files, 2)
    found.index.take_in([one, two])
    before = found.places
    assert found.index.take_in([merged], is_complete=True) == 0
    assert found.refs == found.index.refs == [merged]
    assert (sample(found, 0), sample(found, 1)) == (0, 1)
    assert before.artifact.tolist() == [0, 1], "who took the old places sees no change"


def local(*names: int) -> LocalFile:
    """What only this job has of some items."""
    writer = Writer(RECIPE)
    for name in names:
        writer.add(item(name), [name], 0.0)
    return LocalFile(writer, {})


@pytest.mark.parametrize("is_own", [False, True])
def test_a_jobs_own_samples_are_found_once_committed(files, is_own):
    found = catalogue(files, 3)
    found.add_local(local(0, 1))
    found.add_local(local(2))
    both = files.put(i0=[0], i1=[1], i5=[5])
    assert (found.index.take_in([both], is_own=is_own), found.refs) == (0, [both])
    assert found.is_shared(np.arange(3)).tolist() == [True, True, False]
    assert [sample(found, index) for index in range(3)] == [0, 1, 2]
    assert 0 not in found.slots and 1 in found.slots, "a file of which all is found goes"
    found.add_local(local(0, 1))
    assert 3 not in found.slots and found.is_shared(np.arange(2)).all(), "and one that comes too late"


def test_a_pickled_index_misses_what_went_meanwhile(files):
    one, two = files.put(i0=[0]), files.put(i1=[1])
    found = catalogue(files, 3)
    found.index.take_in([one, two])
    writer = Writer(RECIPE)
    writer.add(item(2), [2], 0.0)
    found.add_local(LocalFile(writer, {}))
    frozen = pickle.dumps(found)
    (files.folder / two.digest).unlink()
    there = pickle.loads(frozen)
    assert there.places.artifact[1] == MISSING
    assert (sample(there, 0), sample(there, 2)) == (0, 2)
    there.index.take_in([files.put(i1=[1])])
    assert sample(there, 1) == 1


def test_samples_made_while_a_data_set_is_sent_stay_themselves(files):
    found = catalogue(files, 2)

    class Meanwhile:  # another thread, between the index and what lies in it
        def __reduce__(self) -> Any:
            found.add_local(local(0))
            return list, ()

    index, _, there = pickle.loads(pickle.dumps((found.index, Meanwhile(), found)))
    index.take_in([files.put(i1=["another"])])
    index.take_in([files.put(i0=[0])])
    assert (sample(there, 0), sample(there, 1)) == (0, "another")


def test_samples_of_a_missing_file_are_missing(files):
    """The next file has the descriptor, and often the inode, of the one before."""

    def single(digest: bytes, value: int) -> LocalFile:
        writer = Writer(RECIPE)
        writer.add(digest, [value], 0.0)
        return LocalFile(writer, {})

    lost = catalogue(files, 2)
    lost.add_local(single(item(0), 1))
    frozen = pickle.dumps(lost)
    ((pid, fd, _),) = [slot.local.address for slot in lost.slots.values() if slot.local]
    del lost
    next_ones = [single(item(1), 2)]
    while next_ones[-1].address[1] < fd:  # what other threads of the process have closed comes first
        next_ones.append(single(item(1), 2))
    assert next_ones[-1].address[:2] == (pid, fd)
    there = pickle.loads(frozen)
    assert there.places.artifact.tolist() == [MISSING, MISSING]


def test_the_newest_edition_wins_in_any_order(files):
    old, new = files.put(i0=["old"], i1=["old"]), files.put(1, i0=["new"])
    merged = files.put(i0=["old"], i1=["old"], i2=["old"])
    for refs in ([old, new], [new, old]):
        found = catalogue(files, 2)
        found.index.take_in(refs)
        assert (sample(found, 0), sample(found, 1)) == ("new", "old")
        found.index.take_in([merged, new], is_complete=True)
        assert (sample(found, 0), sample(found, 1)) == ("new", "old"), "a merge of the old brings it back"
        found.index.take_in([files.put(1, i0=["new"], i3=["new"]), files.put(i0=["old"])], is_complete=True)
        assert sample(found, 0) == "new", "it moves to a merge of the old"


def test_an_unmappable_artifact_hides_lower_editions(files):
    """It is not known what it had replaced; what is made instead is of its edition, or is made again."""
    old, new, beside = files.put(i0=["old"], i1=["old"]), files.put(1, i0=["new"]), files.put(1, i2=["new"])
    (files.folder / new.digest).unlink()
    found = catalogue(files, 3)
    found.index.take_in([old, new, beside])
    assert found.missing.tolist() == [0, 1]
    assert sample(found, 2) == "new"
    assert found.index.refs == [beside]
    assert found.index.edition == 1


def test_a_refresh_begins_above_the_first_answer(files):
    found = catalogue(files, 2)
    found.index.edition, found.index._is_refreshing = 1, True
    old, older = files.put(4, i0=["old"]), files.put(i1=["older"])
    found.index.take_in([older, old])
    assert (found.missing.tolist(), found.index.edition) == ([0, 1], 5)
    found.index.take_in([files.put(5, i0=["new"]), files.put(4, i1=["merged"])])
    assert (sample(found, 0), found.missing.tolist()) == ("new", [1])
    assert pickle.loads(pickle.dumps(found.index)).edition == 5, "nor in another process"


def unreachable(*_: Any) -> Any:
    raise DaemonUnreachable("it closed the connection")


@pytest.mark.parametrize("told", ["another recipe's", "another entry's", "without its inputs"])
def test_a_file_that_is_not_what_the_daemon_told_of_it_is_a_miss(files, told, caplog):
    """Items of two recipes have the same digests: another recipe's samples would be taken for this one's."""
    writer = Writer(RecipeDigest("cd" * 32) if told == "another recipe's" else RECIPE)
    writer.add(item(0), [13], 1.0)
    inputs = [{"kind": "file", "name": "labels.txt", "digest": "ef" * 32}]
    with open(files.folder / ("12" * 32), "w+b") as file:
        seen = inputs if told == "without its inputs" else ()
        written = writer.write(file.fileno(), producer={}, observed=seen)
    key = Key("34" * 32) if told == "another entry's" else written.key
    ref = wire.ArtifactRef(key, Digest("12" * 32), os.stat(file.name).st_size, 1, 1, 1.0)
    found = catalogue(files, 1)
    found.index.take_in([ref])
    assert found.index.refs == [] and found.missing.tolist() == [0]
    assert "counts as a miss" in caplog.text


def test_what_cannot_be_fetched_just_now_is_not_gone(files):
    one, two = files.put(edition=1, i0=[0]), files.put(i1=[1])
    found = catalogue(files, 2)
    index = found.index = Index(
        lambda ref: files.open(ref) if ref == one else open_or_miss(ref, unreachable, RECIPE)
    )
    index.catalogues.add(found)
    with pytest.raises(DaemonUnreachable):
        found.index.take_in([one, two])
    assert found.missing.tolist() == [0, 1] and found.refs == []
    index.open_ref = files.open
    assert found.index.take_in([one, two]) == 2


# --- streams: catalogues of chunks, over one index that keeps all ---


def of_chunk(index: RecipeIndex, *names: int) -> list[Any]:
    """The samples of these numbers; None where one is missing."""
    chunk = Catalogue(Distinct(digests(*names)), index)
    slots, rows = rows_of(chunk.distinct.inverse, chunk.places)
    return [
        None if slot == MISSING else chunk.slots[slot].artifact.sample(row)
        for slot, row in zip(slots.tolist(), rows.tolist(), strict=True)
    ]


def test_a_chunk_finds_items_in_all_artifacts_in_any_order(files):
    index = Index(files.open, keeps_all=True)
    for n in range(30):
        index.take_in([files.put(**{f"i{name}": [(name, n)] for name in range(10 * n, 10 * n + 10)})])
        assert of_chunk(index, 10 * n) == [(10 * n, n)]
    assert index.items == 300
    assert of_chunk(index, 155, 12, 7, 299, 12, 300) == [(155, 15), (12, 1), (7, 0), (299, 29), (12, 1), None]


def test_what_is_let_go_is_missing_in_the_next_chunk(files):
    index = Index(files.open, keeps_all=True)
    one, two = files.put(**{f"i{n}": ["a"] for n in range(100)}), files.put(i50=["b"], i51=["b"])
    index.take_in([one, two])
    reading = Catalogue(Distinct(digests(10)), index)
    index.lose([one.digest, "unknown"])
    assert index.digests == {two.digest}
    assert of_chunk(index, 10, 51) == [None, "b"]
    assert sample(reading, 0) == "a", "a chunk keeps what it has found"
    merged = files.put(i10=["c"])
    index.take_in([merged], is_complete=True)
    assert index.refs == [merged], "a whole answer takes away what it lacks"
    assert of_chunk(index, 10, 51) == ["c", None]


def random_digests(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32), dtype="u1")


def test_digests_that_share_their_first_bytes_are_told_apart():
    own = random_digests(40)
    own[:20, :8] = 7
    twice = np.concatenate([own, own[::-1]])
    distinct = Distinct(twice)
    assert len(distinct) == 40
    assert (distinct.find(own) == np.arange(40)).all()
    stranger = own[:1].copy()
    stranger[0, 31] ^= 1
    assert distinct.find(stranger).tolist() == [MISSING]
