"""The index: how it is opened, what its errors mean, and which of its indexes its queries use."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from prepcache import errors
from prepcached.store import db, listing, queries
from prepcached.store.db import Index
from prepcached.store.records import Filter


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


def test_writers_that_read_first_never_fail(index: Index) -> None:
    def raise_it() -> None:
        for _ in range(20):
            with index.write() as conn:
                queries.set_note(conn, "n", queries.note(conn, "n") + 1)

    threads = [threading.Thread(target=raise_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with index.read() as conn:
        assert queries.note(conn, "n") == 80


def test_hot_queries_use_their_indexes(index: Index) -> None:
    a = db.artifacts
    hot = {
        "artifacts_coldest": sa.select(a.c.id).where(queries._IS_UNPINNED).order_by(a.c.used_at),
        "artifacts_recipe": queries._RESOLVE,
        "artifacts_key": queries._DOOMABLE.where(a.c.key == b""),
    }
    with index.read() as conn:
        for name, statement in hot.items():
            sql = str(statement.compile(conn, compile_kwargs={"render_postcompile": True}))
            params = [1] * sql.count("?")
            plan = conn.exec_driver_sql("EXPLAIN QUERY PLAN " + sql, tuple(params)).all()
            assert name in str(plan), f"{name} is not used: {plan}"


def test_a_purge_by_producer_looks_at_each_row_once(index: Index) -> None:
    where = listing.conditions(Filter(produced_by="train.py"), 0.0)
    statement = sa.select(db.artifacts.c.id).where(*where).order_by(db.artifacts.c.id).limit(1)
    with index.read() as conn:
        sql = str(statement.compile(conn))
        found = conn.exec_driver_sql("EXPLAIN QUERY PLAN " + sql, (1,) * sql.count("?")).all()
    plan = [str(row[-1]) for row in found]
    assert "SEARCH producers USING INTEGER PRIMARY KEY (rowid=?)" in plan
    assert not any("LIST SUBQUERY" in step or "TEMP B-TREE" in step for step in plan)
