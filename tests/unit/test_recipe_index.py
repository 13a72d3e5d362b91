"""The index of a stream: items found among many artifacts, as a catalogue of known items finds them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache import artifact
from prepcache.digests import RecipeDigest
from prepcache.fill.overflow import Spilled
from prepcache.index.item_index import MISSING, Distinct, rows_of
from prepcache.protocol.wire import ArtifactRef
from prepcache.streaming.recipe_index import ChunkCatalogue, RecipeIndex
from support.artifacts import RECIPE, digest


class Store:
    """Artifacts of numbers, whose sample is the number and the artifact's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[str] = []

    def ref(self, name: str, numbers: Any, edition: int = 0) -> ArtifactRef:
        writer = artifact.Writer(RecipeDigest(RECIPE), edition)
        for number in numbers:
            writer.add(digest(number), [np.array([number, len(name)])], 1.0)
        with open(self.folder / name, "wb") as file:
            written = writer.write(file, producer={})
        return ArtifactRef(
            written.key, name, written.size_bytes, len(numbers), len(numbers), 1.0, edition=edition
        )  # type: ignore[arg-type]

    def open(self, ref: ArtifactRef, *_: Any) -> Any:
        self.opened.append(ref.digest)
        return artifact.open(self.folder / ref.digest) if (self.folder / ref.digest).exists() else None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def digests(*numbers: int) -> Any:
    return np.frombuffer(b"".join(map(digest, numbers)), "u1").reshape(-1, 32)


def found(index: RecipeIndex, *numbers: int) -> list[Any]:
    """The samples of these numbers; None where one is missing."""
    chunk = ChunkCatalogue(Distinct(digests(*numbers)), index, is_expanded=False)
    slots, rows = rows_of(chunk.distinct.inverse, chunk.places)
    return [
        None if slot == MISSING else tuple(chunk.slots[slot].artifact.sample(row).tolist())  # type: ignore[union-attr]
        for slot, row in zip(slots.tolist(), rows.tolist(), strict=True)
    ]


def test_items_are_found_in_all_artifacts_in_any_order(store: Store) -> None:
    index = RecipeIndex(store.open)
    refs = [store.ref("x" * n, range(10 * n, 10 * n + 10)) for n in range(1, 30)]
    for ref in refs:
        index.absorb([ref])
    index.absorb(refs)
    assert store.opened == [ref.digest for ref in refs] and index.items == 290
    assert found(index, 155, 12, 7, 299, 12, 300) == [(155, 15), (12, 1), None, (299, 29), (12, 1), None]


def test_the_highest_edition_that_has_an_item_gives_it(store: Store) -> None:
    index = RecipeIndex(store.open)
    index.absorb([store.ref("a", [1, 2])])
    index.absorb([store.ref("newer", [2, 3], edition=2), store.ref("mid", [1, 3], edition=1)])
    assert found(index, 1, 2, 3) == [(1, 3), (2, 5), (3, 5)]
    gone = ArtifactRef(index.refs[0].key, "gone", 1, 1, 1, 1.0, edition=2)  # type: ignore[arg-type]
    assert index.absorb([gone])[1] == [gone]
    assert found(index, 1, 2, 3) == [None, (2, 5), (3, 5)], "what it replaced stays replaced"


def test_released_artifacts_are_missing_and_free_their_place(store: Store) -> None:
    index = RecipeIndex(store.open)
    one, two = store.ref("a", range(100)), store.ref("bb", range(50, 60))
    index.absorb([one, two])
    assert index.let_go(["a", "unknown"]) == [one] and not index.knows("a")
    assert found(index, 10, 55) == [None, (55, 2)]
    assert len(index._run[0]) == 10
    merged = store.ref("ccc", range(20))
    assert index.absorb([merged], is_complete=True)[1] == [two], "a whole answer takes away what it lacks"
    assert found(index, 10, 55) == [(10, 3), None] and index.refs == [merged]


def test_a_jobs_own_samples_of_a_chunk_are_found(store: Store) -> None:
    index = RecipeIndex(store.open)
    chunk = ChunkCatalogue(Distinct(digests(1, 2, 3)), index, is_expanded=False)
    for number in (1, 2):
        writer = artifact.Writer(RecipeDigest(RECIPE))
        writer.add(digest(number), [np.array([number, 0])], 1.0)
        chunk.add_local([Spilled(writer, {})])
    chunk.absorb([store.ref("a", [5])])
    assert chunk.is_shared(np.arange(3)).tolist() == [False] * 3
    assert chunk.absorb([store.ref("bb", [1, 3])])[0].tolist() == [2], "which was missing"
    assert chunk.is_shared(np.arange(3)).tolist() == [True, False, True]
    assert chunk.slots[0] is None and chunk.slots[1] is not None, "a file of which all is found goes"


def test_another_process_begins_with_the_edition_alone(store: Store) -> None:
    index = RecipeIndex(store.open)
    index.refresh()
    index.absorb([store.ref("a", [1], edition=4)])
    assert index.edition == 5 and found(index, 1) == [None]
    sent = pickle.loads(pickle.dumps(index))
    assert sent.edition == 5 and sent.refs == []
    sent.opens_with(store.open)
    sent.absorb([store.ref("bb", [1], edition=5)])
    assert found(sent, 1) == [(1, 2)]
