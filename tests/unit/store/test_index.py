"""The index: writers one after another, readers of a snapshot."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from prepcache import errors
from prepcached.store import queries
from prepcached.store.db import Index


def test_readers_see_a_snapshot_and_a_writer_locks_at_once(tmp_path: Path) -> None:
    index = Index(str(tmp_path / "index.sqlite"))
    with index.read() as reader:
        assert queries.note(reader, "x") == 0
        with index.write() as conn:
            other = sqlite3.connect(index.path, timeout=0, isolation_level=None)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.close()
            queries.set_note(conn, "x", 1)
        assert queries.note(reader, "x") == 0
    with pytest.raises(errors.StoreError, match="readonly"), index.read() as reader:
        assert queries.note(reader, "x") == 1
        queries.set_note(reader, "x", 2)
    index.close()
