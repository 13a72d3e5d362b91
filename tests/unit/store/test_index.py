"""The index: writers one after another, readers of a snapshot."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcache import errors
from prepcached.store import db, queries
from prepcached.store.db import Index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(str(tmp_path / "index.sqlite"))
    yield index
    index.close()


def test_it_is_durable_and_readers_cannot_write(index: Index) -> None:
    for connect in (index.write, index.read):
        with connect() as conn:
            assert conn.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
            assert conn.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    with pytest.raises(errors.StoreError, match="readonly"), index.read() as conn:
        conn.execute(db.doomed.delete())


def test_a_writer_takes_its_lock_before_it_reads(index: Index) -> None:
    with index.write() as conn:
        other = sqlite3.connect(index.path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()
        assert queries.note(conn, "x") == 0


def test_readers_see_a_snapshot_and_do_not_wait(index: Index) -> None:
    with index.read() as reader:
        assert queries.note(reader, "x") == 0
        with index.write() as conn:
            queries.set_note(conn, "x", 1)
        assert queries.note(reader, "x") == 0
    with index.read() as reader:
        assert queries.note(reader, "x") == 1
