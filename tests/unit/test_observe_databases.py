"""Databases that a function reads by sqlite3, which opens their files in C."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

READ = """
import sqlite3
from contextlib import closing

def f(x):
    with closing(sqlite3.connect({target})) as db:
        return db.execute("SELECT n FROM t").fetchall()
"""
OWN = """
import sqlite3
from contextlib import closing

def f(x):
    for _ in range(2):
        with closing(sqlite3.connect(HERE / "own.db")) as db:
            db.execute("CREATE TABLE IF NOT EXISTS t (n)")
            db.execute("INSERT INTO t VALUES (1)")
            db.commit()
"""


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.fixture(name="database")
def database_fixture(project: Project) -> Path:
    path = project.folder / "a.db"
    execute(path, "CREATE TABLE t (n)", "INSERT INTO t VALUES (1)")
    return path


@pytest.fixture(name="writer")
def writer_fixture(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection that leaves what it commits in the log, as one that stays open does."""
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        yield db


@pytest.mark.parametrize(
    "target", ["HERE / 'a.db'", "f'file:{HERE}/a.db?mode=ro', uri=True"], ids=["path", "uri"]
)
def test_a_database_is_seen_and_checked(project, database, target):
    watched = Watched(project, READ.format(target=target))
    assert watched.names == ["project:a.db", "project:a.db-wal"]
    assert watched.changed() is None
    execute(database, "INSERT INTO t VALUES (2)")
    assert watched.changed() == "project:a.db"


def test_what_lies_in_the_log_beside_a_database_counts(project, database, writer):
    watched = Watched(project, READ.format(target="HERE / 'a.db'"))
    assert watched.changed() is None
    before = database.read_bytes()
    writer.execute("INSERT INTO t VALUES (2)")
    writer.commit()
    assert database.read_bytes() == before
    assert watched.changed() == "project:a.db-wal"


def test_a_log_that_holds_nothing_is_none(project, database):
    """A reader makes one, and removes it when it closes the database."""
    execute(database, "PRAGMA journal_mode=WAL")
    kept: list[sqlite3.Connection] = []
    source = "import sqlite3\ndef f(x):\n    x.append(sqlite3.connect(HERE / 'a.db'))\n"
    watched = Watched(project, source + "    return x[0].execute('SELECT n FROM t').fetchall()", kept)
    assert (project.folder / "a.db-wal").exists()
    assert watched.changed() is None
    kept[0].close()
    assert not (project.folder / "a.db-wal").exists()
    assert watched.changed() is None


@pytest.mark.parametrize(
    "attach",
    [
        "f\"ATTACH '{HERE}/a.db' AS a\"",
        "'attach ? as a', [f'{HERE}/a.db']",
        "'attach (?) as a', [f'{HERE}/a.db']",
        "' '.join(['ATTACH', 'DATABASE', repr(f'{HERE}/a.db'), 'AS', 'a'])",
    ],
)
def test_a_sample_made_of_attached_databases_is_not_stored(project, database, attach):
    """Their files are opened in C, under names that no event tells."""
    lines = ["db = sqlite3.connect(':memory:')", f"db.execute({attach})", "db.close()"]
    watched = Watched(project, "import sqlite3\ndef f(x):\n" + "".join(f"    {line}\n" for line in lines))
    assert watched.failure == "it attaches databases in SQL"
    beside = "def attach_to(x): 'Of what is attached.'; return 'attachments'\n"
    assert Watched(project, beside + READ.format(target="HERE / 'a.db'")).failure == ""


def test_a_database_that_the_function_makes_is_no_input(project):
    assert Watched(project, OWN).names == []
