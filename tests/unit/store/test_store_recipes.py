"""Recipes that have no artifacts: how long they stay, and what becomes of them when they come again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def files(store: Store) -> set[str]:
    return set(os.listdir(Path(store.root) / "v1" / "recipes"))


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
    assert files(store) == {f"{RECIPE}.json"}
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


def test_a_recipe_that_got_an_artifact_after_it_was_chosen_stays(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.register(RECIPE, "tests.recipe", {"format": 1})
    clock.now += IDLE_S + DAY_S
    look = recipes.queries.empty_recipes

    def look_then_commit(*given: Any) -> object:
        found = look(*given)
        monkeypatch.setattr(store, "register", lambda *_: None)
        put(store, 1)
        return found

    monkeypatch.setattr(recipes.queries, "empty_recipes", look_then_commit)
    store.maintain()
    assert store.recipe(RECIPE).parts == {"format": 1}


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
    assert files(store) == {f"{RECIPE}.json"}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """A scope may have two recipes."""
    monkeypatch.setattr(recipes, "LEAST_BYTES", 8200)
    store.set_limits(Limits(max_bytes=100_000, min_free_bytes=0))


def register(store: Store, name: str, scope: str = "") -> str:
    """A recipe that takes a page of the disk."""
    recipe = blake3(name.encode()).hexdigest() + scope
    store.register(recipe, name, {})
    return recipe


@pytest.mark.usefixtures("few")
def test_the_recipes_of_one_user_leave_room_for_those_of_others(store: Store) -> None:
    register(store, "a", ".1001")
    known = register(store, "b", ".1001")
    with pytest.raises(errors.Declined, match=r"take 8.0 KiB of 8.0 KiB; .*prepcache purge"):
        register(store, "c", ".1001")
    assert store.stats().declined == 0 and len(files(store)) == 2
    register(store, "b", ".1001")
    for scope in ("", ".1002"):
        register(store, "c", scope)
    assert store.is_registered(known) and len(files(store)) == 4


@pytest.mark.usefixtures("few")
def test_too_many_recipes_expire_sooner_without_artifacts(store: Store, clock: Clock) -> None:
    put(store, 1)
    idle, others = register(store, "idle"), register(store, "idle", ".1001")
    clock.now += SPARE_S - 1
    with pytest.raises(errors.Declined):
        register(store, "new")
    clock.now += SPARE_PAUSE_S
    new = register(store, "new")
    assert files(store) == {f"{one}.json" for one in (RECIPE, new, others)}
    assert not store.is_registered(idle) and items_of(store) == [item(1)]


@pytest.mark.usefixtures("few")
def test_a_greater_budget_has_room_for_more_recipes(store: Store) -> None:
    store.set_limits(Limits(max_bytes=recipes.SHARE * 100_000, min_free_bytes=0))
    for name in "abcdef":
        register(store, name)
    assert len(files(store)) == 6


def test_what_the_index_and_the_recipes_take_is_told(store: Store, clock: Clock) -> None:
    def on_disk(folder: Path, pattern: str) -> int:
        return sum(path.stat().st_blocks * 512 for path in folder.glob(pattern))

    assert store.stats().recipes_bytes == 0
    put(store, 1)
    store.register(OTHER_RECIPE, "tests.other", {"text": "x" * 10_000})
    versioned = Path(store.root) / "v1"
    assert store.stats().recipes_bytes == on_disk(versioned / "recipes", "*") >= 10_000
    assert store.stats().index_bytes == on_disk(versioned, "index.sqlite*") > 0
    clock.now += IDLE_S + DAY_S
    store.maintain()
    assert not store.is_registered(OTHER_RECIPE)
    assert store.stats().recipes_bytes == on_disk(versioned / "recipes", "*") < 10_000
    store.close()
    again = Store(store.root, limits=Limits(max_bytes=1 << 30, min_free_bytes=0))
    assert again.stats().recipes_bytes == on_disk(versioned / "recipes", "*")
    again.close()
