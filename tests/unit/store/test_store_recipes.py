"""Recipes that have no artifacts: how long they stay, and what becomes of them when they come again."""

from __future__ import annotations

import json
import random
import zlib

import pytest
from blake3 import blake3

from prepcache import errors
from prepcache.digests import RecipeDigest
from prepcached.store import recipes, relatives
from prepcached.store.housekeeping import RECIPES_S
from prepcached.store.recipes import IDLE_S
from prepcached.store.records import Filter
from prepcached.store.store import Store
from support.stores import OTHER_RECIPE, RECIPE, Clock, item, items_of, put

DAY_S = 86_400
TEXT = {"text": random.Random(0).randbytes(4000).hex()}
SIZE_BYTES = len(zlib.compress(json.dumps(TEXT).encode()))


def names(store: Store) -> set[str]:
    return {one.digest + one.scope for one in store.recipes()[0]}


def test_an_unused_recipe_without_artifacts_is_deleted(store: Store, clock: Clock) -> None:
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


def test_a_recipe_that_is_asked_for_stays_as_it_is(store: Store, clock: Clock) -> None:
    store.register(RECIPE, "tests.recipe", {"format": 1})
    for _ in range(20):
        clock.now += 2 * DAY_S
        store.register(RECIPE, "another name", {})
        store.maintain()
    record = store.recipe(RECIPE)
    assert (record.name, record.parts) == ("tests.recipe", {"format": 1})


def test_a_recipe_that_returns_has_a_newer_generation(store: Store, clock: Clock) -> None:
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


def register(store: Store, name: str, scope: str = "") -> str:
    """A recipe of SIZE_BYTES."""
    recipe = blake3(name.encode()).hexdigest() + scope
    store.register(recipe, name, TEXT)
    return recipe


def test_too_many_recipes_without_artifacts_leave_the_latest(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "IDLE_BYTES", 2 * SIZE_BYTES)
    put(store, 1)
    others = register(store, "a", ".1001")
    first, second = register(store, "a"), register(store, "b")
    clock.now += 1
    assert store.is_registered(first)
    third = register(store, "c")
    assert names(store) == {RECIPE, others, first, third}
    assert not store.is_registered(second) and items_of(store) == [item(1)]


def test_damaged_parts_of_a_recipe_are_not_known(store: Store) -> None:
    put(store, 1)
    with store._core.index.write() as conn:
        conn.exec_driver_sql("UPDATE recipes SET parts = x'00'")
    assert store.recipe(RECIPE).parts is None
    with store.snapshot() as conn:
        found = relatives.relatives(conn, None, "tests.recipe", "")
        assert len(found) == 1 and list(relatives.with_parts(conn, found, "")) == []


def test_what_relatives_unpack_to_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few packed bytes may be megabytes."""
    large = {"text": "x" * 1000}
    for name in ("a", "b"):
        put(store, name, recipe=RecipeDigest(blake3(name.encode()).hexdigest()), parts=large)
    monkeypatch.setattr(relatives, "MAX_READ_BYTES", 1500)
    with store.snapshot() as conn:
        found = relatives.relatives(conn, None, "tests.recipe", "")
        assert len(found) == 2 and len(list(relatives.with_parts(conn, found, ""))) == 1
