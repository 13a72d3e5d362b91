"""Recipes that have no artifacts: how long they stay, and what becomes of them when they come again."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from prepcache import errors
from prepcached.store import recipes
from prepcached.store.housekeeping import RECIPES_S
from prepcached.store.recipes import IDLE_S, SPARE_PAUSE_S, SPARE_S
from prepcached.store.records import Filter, Limits
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


def test_no_recipe_is_registered_on_a_full_disk(
    open_store: Callable[..., Store],
) -> None:
    store = open_store()
    store.register(RECIPE, "tests.recipe", {})
    store.set_limits(Limits(max_bytes=1 << 30, min_free_bytes=1 << 60))
    with pytest.raises(errors.Declined, match="recipe"):
        store.register(OTHER_RECIPE, "tests.other", {})
    assert store.stats().declined == 0, "nothing was made"
    store.register(RECIPE, "tests.recipe", {})
    assert names(store) == {RECIPE}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """A scope may have two recipes."""
    monkeypatch.setattr(recipes, "LEAST_BYTES", 2 * SIZE_BYTES)
    store.set_limits(Limits(max_bytes=100_000, min_free_bytes=0))


def register(store: Store, name: str, scope: str = "") -> str:
    """A recipe of SIZE_BYTES."""
    recipe = blake3(name.encode()).hexdigest() + scope
    store.register(recipe, name, TEXT)
    return recipe


@pytest.mark.usefixtures("few")
def test_the_recipes_of_one_user_leave_room_for_those_of_others(store: Store) -> None:
    register(store, "a", ".1001")
    known = register(store, "b", ".1001")
    with pytest.raises(errors.Declined, match=r"no room for another recipe: .*prepcache purge"):
        register(store, "c", ".1001")
    assert store.stats().declined == 0 and len(names(store)) == 2
    register(store, "b", ".1001")
    for scope in ("", ".1002"):
        register(store, "c", scope)
    assert store.is_registered(known) and len(names(store)) == 4


@pytest.mark.usefixtures("few")
def test_too_many_recipes_expire_sooner_without_artifacts(store: Store, clock: Clock) -> None:
    put(store, 1)
    idle, others = register(store, "idle"), register(store, "idle", ".1001")
    clock.now += SPARE_S - 1
    with pytest.raises(errors.Declined):
        register(store, "new")
    clock.now += SPARE_PAUSE_S
    new = register(store, "new")
    assert names(store) == {RECIPE, new, others}
    assert not store.is_registered(idle) and items_of(store) == [item(1)]


@pytest.mark.usefixtures("few")
def test_a_greater_budget_has_room_for_more_recipes(store: Store) -> None:
    store.set_limits(Limits(max_bytes=recipes.SHARE * 100_000, min_free_bytes=0))
    for name in "abcdef":
        register(store, name)
    assert len(names(store)) == 6


def test_what_the_index_and_the_recipes_take_is_told(store: Store, clock: Clock) -> None:
    assert store.stats().recipes_bytes == 0
    put(store, 1)
    kept_bytes = store.stats().recipes_bytes
    register(store, "idle")
    assert store.stats().recipes_bytes == kept_bytes + SIZE_BYTES
    on_disk = sum(path.stat().st_blocks * 512 for path in (Path(store.root) / "v1").glob("index.sqlite*"))
    assert store.stats().index_bytes == on_disk > 0
    clock.now += IDLE_S + DAY_S
    store.maintain()
    assert store.stats().recipes_bytes == kept_bytes
    store.close()
    again = Store(store.root, limits=Limits(max_bytes=1 << 30, min_free_bytes=0))
    assert again.stats().recipes_bytes == kept_bytes
    again.close()
