"""Fixtures of the store's tests: a store in a folder, and a clock."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prepcached.store.records import Limits
from prepcached.store.store import Store
from support import stores
from support.stores import OTHER_RECIPE, Clock, put


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: nothing is cut short here, so what each test syncs need not wait for a disk."""
    with tempfile.TemporaryDirectory(dir=stores.MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., Store]]:
    """Opens the test's root; whatever is open at the end must pass its own check."""
    opened: list[Store] = []

    def open_it(limits: Limits = stores.ROOMY) -> Store:
        for store in opened:
            store.close()
        opened[:] = [Store(tmp_path / "root", limits=limits, clock=clock, monotonic=clock)]
        return opened[0]

    yield open_it
    for store in opened:
        if not store.is_closed:
            findings, is_counted = store.check(), stores.sums_agree(store)
            store.close()
            assert findings == [] and is_counted


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def root(open_store: Callable[..., Store], tmp_path: Path) -> Path:
    """A closed root with two artifacts of one recipe and one of another."""
    store = open_store()
    put(store, 1)
    put(store, 2)
    put(store, 3, recipe=OTHER_RECIPE)
    store.close()
    return tmp_path / "root"
