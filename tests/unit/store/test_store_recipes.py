"""Recipes that have no artifacts: how long they stay, and what becomes of them when they come again."""

import random

import pytest
from blake3 import blake3

from prepcache import errors
from prepcache.digests import RecipeDigest
from prepcached.store import listing
from prepcached.store.records import Filter
from prepcached.store.store import IDLE_S, RECIPES_S, Store
from support.stores import OTHER_RECIPE, RECIPE, item, items_of, put

DAY_S = 86_400


def names(store: Store) -> set[str]:
    return {one.digest + one.scope for one in store.recipes()[0]}


def test_an_unused_recipe_without_artifacts_is_deleted(store, clock):
    put(store, 1)
    store.register(OTHER_RECIPE, "tests.other", {})
    store.maintain()
    clock.now += IDLE_S - 1
    store.maintain()
    assert store.recipe(OTHER_RECIPE).name == "tests.other"
    clock.now += RECIPES_S
    store.maintain()
    assert not store.is_registered(OTHER_RECIPE)
    assert names(store) == {RECIPE}
    assert store.is_registered(RECIPE)
    assert items_of(store) == [item(1)]


def test_the_first_registration_stands(store):
    store.register(RECIPE, "tests.recipe", {"format": 1})
    store.register(RECIPE, "another name", {})
    record = store.recipe(RECIPE)
    assert (record.name, record.parts) == ("tests.recipe", {"format": 1})


def test_a_recipe_that_returns_has_a_newer_generation(store, clock):
    for name in range(5):
        put(store, name)
    store.purge(Filter())
    seen = store.generation(RECIPE)
    clock.now += IDLE_S + DAY_S
    store.maintain()
    assert store.generation(RECIPE) == 0
    with pytest.raises(errors.FutureGeneration):
        store.resolve(RECIPE, seen)
    assert put(store, 1).generation > seen
    assert store.resolve(RECIPE, seen).is_complete
    assert items_of(store) == [item(1)]


def test_damaged_parts_of_a_recipe_are_not_known(store):
    put(store, 1)
    with store.index.write() as conn:
        conn.exec_driver_sql("UPDATE recipes SET parts = x'00'")
    assert store.recipe(RECIPE).parts is None
    assert [parts for _, parts in store.relatives(None, "tests.recipe", "")[1]] == [None]


def test_what_is_read_of_relatives_is_bounded(store, monkeypatch):
    for name, size in (("a", 100), ("b", 1000)):
        parts = {"text": random.Random(name).randbytes(size).hex()}
        put(store, name, recipe=RecipeDigest(blake3(name.encode()).hexdigest()), parts=parts)
    monkeypatch.setattr(listing, "MAX_PARTS_BYTES", 500)
    found = store.relatives(None, "tests.recipe", "")[1]
    assert [parts is not None for _, parts in found] == [True, False]
