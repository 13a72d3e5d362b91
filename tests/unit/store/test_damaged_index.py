"""An index that is damaged, lost or of another version: a start makes it again, and says so."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from prepcache import errors
from prepcached.store import db
from prepcached.store.store import check_root, rebuild
from support import stores
from support.stores import RECIPE, item, put

MADE_AGAIN = {"new index": 1, "indexed": 3}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "header": lambda data: b"x" * 100 + data[100:],
    "middle": lambda data: data[:4096] + b"\x5a" * (len(data) - 4096),
    "zeros": lambda data: data[:200] + bytes(len(data) - 200),
    "empty-page": lambda data: data[:4096] + b"\xff" * 4096 + data[8192:],
    "schema": lambda data: data.replace(b"disk_bytes", b"disk_bytez"),
    "schema-text": lambda data: data.replace(b"CREATE TABLE notes", b"CREATE \xdb\xffBLE notes"),
    "cut": lambda data: data[: len(data) // 2],
    "foreign": lambda data: data[:60] + bytes(4) + data[64:].replace(b"disk_bytes", b"anything_s"),
}


def damage_index(root: Path, damage: str) -> bytes:
    path = root / "v1" / "index.sqlite"
    path.write_bytes(data := DAMAGES[damage](path.read_bytes()))
    return data


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_made_again(root, open_store, clock, damage, caplog):
    store = open_store()
    seen = store.generation(RECIPE)
    store.close()
    clock.now += 1
    damage_index(root, damage)
    store = open_store()
    assert stores.items_of(store) == sorted([item(1), item(2)])
    assert store.stats().recovered == MADE_AGAIN
    assert store.resolve(RECIPE, seen).is_complete, "a client of the old index must take the whole list"
    [said] = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert "is damaged" in said and "pins" in said
    assert open_store().stats().recovered == {}


def test_an_index_of_another_version_is_no_error(root, open_store, caplog):
    """It is planned, as each upgrade that changes the tables."""
    conn = sqlite3.connect(root / "v1" / "index.sqlite")
    conn.execute("PRAGMA user_version = 999")
    conn.close()
    assert open_store().stats().recovered == MADE_AGAIN
    [said] = [line for line in caplog.records if line.levelname in ("WARNING", "ERROR")]
    assert said.levelname == "WARNING" and "is of version 999" in said.getMessage()


def test_an_index_lost_without_artifacts_goes_on_beyond_all_seen(tmp_path, open_store, clock):
    store = open_store()
    put(store, 1)
    seen = store.resolve(RECIPE).generation
    for path in (tmp_path / "root" / "v1" / "objects").glob("*/*"):
        path.unlink()
    store.close()
    db.discard(str(tmp_path / "root" / "v1" / "index.sqlite"))
    clock.now += 1
    again = open_store()
    assert again.stats().recovered == {}
    assert put(again, 2).generation > seen
    assert again.resolve(RECIPE, seen).is_complete


def test_check_leaves_a_damaged_index_and_rebuild_mends_it(root):
    damaged = damage_index(root, "middle")
    for repair in (False, True):
        with pytest.raises(errors.IndexCorrupt, match="prepcached rebuild"):
            check_root(root, repair=repair)
    assert (root / "v1" / "index.sqlite").read_bytes() == damaged
    assert rebuild(root) == {"indexed": 3}
    assert check_root(root) == []
