"""What artifacts observed, in the index: kept once, however many artifacts name it."""

import pytest
import sqlalchemy as sa

from prepcache import errors
from prepcache.protocol.wire import CHUNK_INPUTS
from prepcached.store import commit
from prepcached.store.db import observed
from prepcached.store.records import Filter
from prepcached.store.store import IDLE_S, Store, rebuild
from support import stores
from support.stores import OTHER_RECIPE, RECIPE, put


def masks(count: int, edited: int | None = None) -> list[dict[str, str]]:
    """Inputs of a function that opened so many masks, the last one last."""
    return [
        {"kind": "file", "name": f"items:{n}.png", "digest": ("bb" if n == edited else "aa") * 32}
        for n in range(count)
    ]


def seen(store: Store, since: int = 0) -> list[list[dict[str, str]]]:
    """What the artifacts of the recipe observed, in the order of their commits."""
    told = store.resolve(RECIPE, since)
    return [[dict(row) for name in ref.observed for row in told.observed[name]] for ref in told.artifacts]


def kept_bytes(store: Store) -> int:
    with store.index.read() as conn:
        return sum(map(len, conn.execute(sa.select(observed.c.json)).scalars()))


def test_a_file_for_each_item_costs_no_more_with_each_artifact(store, monkeypatch):
    """Whole lists came to half a megabyte here, and a look-up would not have told of them."""
    monkeypatch.setattr(commit, "MAX_OBSERVED_BYTES", 500_000)
    steps = range(250, 2001, 250)
    for count in steps:
        put(store, count, observed=masks(count))
    assert seen(store) == [masks(count) for count in steps]
    whole = len(str(masks(2000)))
    assert kept_bytes(store) < 1.5 * whole < sum(len(str(masks(count))) for count in steps) / 2
    shown = store.entries().entries
    assert [entry.observed for entry in shown] == [()] * len(steps), "a page of them would be half a megabyte"
    assert sorted(len(store.entry(entry.key).observed) for entry in shown) == list(steps)


def test_a_partial_look_up_tells_all_inputs_that_it_names(store):
    generation = put(store, 1, observed=masks(600)).generation
    put(store, 2, observed=masks(601))
    assert seen(store, since=generation) == [masks(601)]


def test_chunks_go_with_their_recipe(store, clock):
    key = put(store, 1, observed=masks(CHUNK_INPUTS)).artifact.key
    put(store, 2, observed=masks(CHUNK_INPUTS), recipe=OTHER_RECIPE)
    before = kept_bytes(store)
    store.purge(Filter(keys=[key]))
    clock.now += IDLE_S + 86_400
    store.maintain()
    assert kept_bytes(store) == before / 2


def test_a_rebuilt_index_tells_the_same(open_store):
    store = open_store()
    odd = [{"kind": "file", "name": f"items:\udcff {n}", "digest": "aa" * 32} for n in range(400)]
    for count in (10, 700, 1500):
        put(store, count, observed=masks(count))
    put(store, "none")
    put(store, "odd", observed=odd)
    before = sorted(seen(store), key=len)
    root = store.root
    store.close()
    rebuild(root)
    assert sorted(seen(open_store()), key=len) == before == [[], masks(10), odd, masks(700), masks(1500)]


def test_what_a_recipe_observed_fits_into_one_answer(store, monkeypatch):
    monkeypatch.setattr(commit, "MAX_OBSERVED_BYTES", 2500)
    one, two = ([{"kind": "file", "name": x * 1000, "digest": "00" * 32}] for x in "xy")
    put(store, 1, observed=one)
    put(store, 2, observed=one)
    put(store, 3, observed=two)
    with pytest.raises(errors.TooLarge, match="put their paths in the items"):
        put(store, 4, observed=[*one, *two])
    put(store, 4)
    put(store, 5, observed=one, recipe=OTHER_RECIPE)
    with pytest.raises(errors.TooLarge, match="put their paths in the items"):
        for number in range(6, 99):  # what they name is told once, that they name it each time
            put(store, number, observed=one)
    told = store.resolve(RECIPE).artifacts
    assert 4 < len(told) < 10 and sum(len(ref.observed) * 68 for ref in told) <= 2500 - 2 * 1000
    store.purge(Filter(keys=[ref.key for ref in told[4:]]))
    assert len(stores.digests_on_disk(store)) == 5
    store.sweep_staging("s".__ne__)
