"""`check` finds each kind of disagreement, and `repair` leaves nothing to find."""

import errno
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from prepcached.store import staging
from prepcached.store.store import Store, check_root
from support import stores
from support.stores import item, put


def sql(store: Store, statement: str) -> None:
    with store.index.write() as conn:
        conn.exec_driver_sql(statement)


def first_object(store: Store) -> Path:
    with store.index.read() as conn:
        digest = conn.exec_driver_sql("SELECT lower(hex(digest)) FROM artifacts WHERE id = 1").scalar_one()
    return Path(store.objects) / digest[:2] / digest


def lengthen(path: Path) -> None:
    path.chmod(0o640)
    path.write_bytes(path.read_bytes() + b"x")


DELETE = "DELETE FROM artifacts WHERE id = 1"
DOOM = "INSERT INTO doomed SELECT digest FROM artifacts WHERE id = 1"
SPOILERS: dict[str, Callable[[Store], object]] = {
    "file-without-row": lambda store: sql(store, DELETE),
    "row-without-file": lambda store: first_object(store).unlink(),
    "wrong-size": lambda store: lengthen(first_object(store)),
    "temporary-file": lambda store: (Path(store.root) / "v1" / "tmp" / "half").write_text("half"),
    "doomed-file": lambda store: (sql(store, DOOM), sql(store, DELETE)),
}
AT_A_START = {"temporary-file": "temporary", "doomed-file": "doomed", "file-without-row": "indexed",
              "row-without-file": "lost"}  # fmt: skip


@pytest.mark.parametrize("code", SPOILERS)
@pytest.mark.parametrize("by", ["check", "a start"])
def test_each_disagreement_is_found_and_mended(open_store, code, by):
    store = open_store()
    put(store, 1)
    put(store, 2)
    SPOILERS[code](store)
    store.close()
    found = check_root(store.root)
    assert [(finding.code, finding.is_repaired) for finding in found] == [(code, False)]
    if by == "check" or code not in AT_A_START:
        assert [finding.is_repaired for finding in check_root(store.root, repair=True)] == [True]
    else:
        assert open_store().stats().recovered == {AT_A_START[code]: 1}
        open_store().close()
    assert check_root(store.root) == []
    is_kept = code in ("temporary-file", "file-without-row")
    assert stores.items_of(open_store()) == sorted(map(item, (1, 2) if is_kept else (2,)))


def test_what_cannot_be_read_is_left_and_not_called_mended(open_store, monkeypatch):
    store = open_store()
    put(store, 1)
    SPOILERS["file-without-row"](store)
    store.close()
    with monkeypatch.context() as failing:
        failing.setattr(staging, "hash_file", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        assert [finding.is_repaired for finding in check_root(store.root, repair=True)] == [False]
    assert [finding.is_repaired for finding in check_root(store.root, repair=True)] == [True]
