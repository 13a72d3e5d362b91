"""An index that is damaged: a start makes it again, keeps the damaged one, and says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from prepcache import errors
from prepcached.store import db
from prepcached.store.db import Index
from prepcached.store.offline import check_root, rebuild
from prepcached.store.store import Store
from support import stores
from support.stores import RECIPE, item


def damage_index(root: Path, damage: str, suffix: str = "") -> bytes:
    path = root / "v1" / f"index.sqlite{suffix}"
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[:100] = b"x" * 100
    elif damage == "middle":
        data[4096:] = b"\x5a" * (len(data) - 4096)
    elif damage == "zeros":
        data[200:] = bytes(len(data) - 200)
    elif damage == "empty-page":
        data[4096:8192] = b"\xff" * 4096
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("damage", ["header", "middle", "zeros", "empty-page", "cut"])
def test_a_damaged_index_is_made_again(
    root: Path, open_store: Callable[..., Store], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage_index(root, damage)
    store = open_store()
    assert stores.items_of(store) == sorted([item(1), item(2)])
    assert store.stats().recovered == {"damaged index": 1, "indexed": 3}
    assert store.resolve(RECIPE, 2).is_complete, "a client of the old index must take the whole list"
    [said] = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert "is damaged" in said and "pins" in said
    assert open_store().stats().recovered == {}


@pytest.mark.parametrize(
    ("text", "instead"),
    [(b"disk_bytes", b"disk_bytez"), (b"CREATE TABLE notes", b"CREATE \xdb\xffBLE notes")],
)
def test_a_damaged_schema_is_damage(
    root: Path, open_store: Callable[..., Store], text: bytes, instead: bytes
) -> None:
    path = root / "v1" / "index.sqlite"
    assert text in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(text, instead))
    assert open_store().stats().recovered == {"damaged index": 1, "indexed": 3}


def test_an_index_found_damaged_later_is_rebuilt_at_start(
    root: Path, open_store: Callable[..., Store]
) -> None:
    store = open_store()
    assert not store.is_damaged()
    damage_index(root, "middle")
    damage_index(root, "header", "-wal")
    with pytest.raises(errors.IndexCorrupt):
        store.check()
    assert store.is_damaged()
    store.close()
    assert not list((root / "v1").glob("index.sqlite*")), "the next start may read no page that is damaged"
    assert open_store().stats().recovered == {"indexed": 3}
    assert open_store().stats().recovered == {}


def test_what_only_looks_like_damage_is_none(root: Path, open_store: Callable[..., Store]) -> None:
    store = open_store()
    with pytest.raises(errors.IndexCorrupt), store.snapshot() as conn:
        conn.exec_driver_sql("SELECT * FROM a_table_that_is_not_there")
    assert not store.is_damaged()


def test_a_disk_that_fails_at_a_start_makes_no_index_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite calls a page malformed that the disk did not give."""

    def fail(*_: object) -> None:
        raise errors.IndexCorrupt("the index is damaged: the next start")

    with monkeypatch.context() as patch:
        patch.setattr(Index, "_check", fail)
        with pytest.raises(
            errors.StoreError, match="is whole where it can be read: the disk is failing"
        ) as caught:
            Store(root, limits=stores.ROOMY)
    assert not isinstance(caught.value, errors.IndexCorrupt)


@pytest.mark.parametrize(
    ("damage", "is_proved"), [("none", False), ("middle", True), ("header", True), ("zeros", True)]
)
def test_damage_is_proved_by_the_file(root: Path, damage: str, is_proved: bool) -> None:
    if damage != "none":
        damage_index(root, damage)
    assert db.proves_damaged(str(root / "v1" / "index.sqlite")) == is_proved


def test_where_the_file_cannot_be_opened_nothing_is_proved(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")  # no descriptor is left

    damage_index(root, "middle")
    monkeypatch.setattr(sqlite3, "connect", fail)
    assert not db.proves_damaged(str(root / "v1" / "index.sqlite"))


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_an_index_removed_under_its_store_is_rebuilt_at_start(
    root: Path, open_store: Callable[..., Store], suffix: str
) -> None:
    store = open_store()
    (root / "v1" / f"index.sqlite{suffix}").unlink()
    assert store.is_damaged()
    assert open_store().stats().recovered == {"indexed": 3}


def test_a_large_index_is_looked_at_where_it_is_small(
    root: Path, open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "QUICK_CHECK_BYTES", 0)
    path = root / "v1" / "index.sqlite"
    with sqlite3.connect(path) as conn:
        found = conn.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'notes'").fetchone()[0]
        size = conn.execute("PRAGMA page_size").fetchone()[0]
    conn.close()
    data = bytearray(path.read_bytes())
    data[(found - 1) * size : found * size] = b"\xff" * size
    path.write_bytes(data)
    assert open_store().stats().recovered == {"damaged index": 1, "indexed": 3}


def test_check_leaves_a_damaged_index_and_rebuild_mends_it(root: Path) -> None:
    damaged = damage_index(root, "middle")
    for repair in (False, True):
        with pytest.raises(errors.IndexCorrupt, match="prepcached rebuild"):
            check_root(root, repair=repair)
    assert (root / "v1" / "index.sqlite").read_bytes() == damaged
    assert rebuild(root) == {"indexed": 3}
    assert check_root(root) == []
