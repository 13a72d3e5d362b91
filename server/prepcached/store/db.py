"""The index: SQLite by SQLAlchemy Core. Its tables, connections, transactions, and what errors mean.

Invariants:
    1. Writers begin with BEGIN IMMEDIATE: a deferred transaction that reads, then writes, fails under
       other writers. Readers get a snapshot and cannot write.
    2. WAL with synchronous=FULL, and a row names a file that is there: NOTE [ Commit order ] in durable.py.
    3. An index that is damaged, or of another version, is `IndexCorrupt`, any other failure `StoreError`;
       neither is ever "no rows".
    4. Among a recipe's rows a key is unique, and so is a digest among all rows.
    5. `recipes.generation` rises in the same transaction as every commit and every removal;
       `removed_generation` is its value at the last removal: who has seen less must take the whole list.
    6. `doomed` names files whose rows were deleted and which may not have been unlinked yet.

Everything here but pins and times of use can be made again from the files.

Locking: SQLite serialises writers; the store's writer lock comes before (core.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from prepcache import errors
from prepcached.store import durable

log = logging.getLogger("prepcached.store")

BUSY_TIMEOUT_S = 30.0
QUICK_CHECK_BYTES = 32 << 20
"""Up to here the whole index is checked at every start (0.1 s); a larger one as it is read."""
_FILES = ("-wal", "-shm", "")  # in this order they go: a log that is left would be taken for the next index's
_OTHER_SCHEMA = re.compile(r"no such (table|column)|table \S+ has no column")
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}


VERSION = 14
"""`PRAGMA user_version`; an index of another version is deleted and made again."""

metadata = sa.MetaData()


def _columns(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


recipes = sa.Table(
    "recipes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    *_columns(sa.LargeBinary(32), "digest"),
    *_columns(sa.Text, "scope", "name"),  # scopes.py
    *_columns(sa.Integer, "generation", "removed_generation"),
    *_columns(sa.Float, "created_at"),
    sa.Column("parts", sa.LargeBinary),  # JSON, compressed; NULL where only artifacts are known
    sqlite_autoincrement=True,
)
sa.Index("recipes_digest", recipes.c.digest, recipes.c.scope, unique=True)

producers = sa.Table(
    "producers",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("json", sa.Text, nullable=False, unique=True),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    *_columns(sa.LargeBinary(32), "key", "digest"),
    *_columns(sa.Integer, "recipe_id", "generation", "size_bytes", "disk_bytes", "items", "rows"),
    *_columns(sa.Integer, "owner", "producer_id"),
    *_columns(sa.Integer, "edition"),  # refreshes before it
    *_columns(sa.Float, "cost_s", "created_at", "used_at"),
    *_columns(sa.Boolean(create_constraint=False), "is_pinned"),
    sa.Column("observed", sa.Text),  # names of chunks: queries.py; NULL when nothing was observed
    sqlite_autoincrement=True,
)
sa.Index("artifacts_digest", artifacts.c.digest, unique=True)
sa.Index("artifacts_key", artifacts.c.key, artifacts.c.recipe_id, unique=True)
sa.Index("artifacts_recipe", artifacts.c.recipe_id, artifacts.c.generation)
sa.Index("artifacts_edition", artifacts.c.recipe_id, artifacts.c.edition)
sa.Index("artifacts_coldest", artifacts.c.used_at)
sa.Index("artifacts_owner", artifacts.c.owner, artifacts.c.used_at)

observed = sa.Table(
    "observed",
    metadata,
    sa.Column("recipe_id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.LargeBinary(32), primary_key=True),
    *_columns(sa.Text, "json"),
)

doomed = sa.Table("doomed", metadata, sa.Column("digest", sa.LargeBinary(32), primary_key=True))
history = sa.Table(
    "history",
    metadata,
    sa.Column("at", sa.Float, primary_key=True),
    *_columns(sa.Float, "hit_items", "miss_items", "saved_s", "disk_bytes"),
)
notes = sa.Table(
    "notes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    *_columns(sa.Integer, "value"),
)


class Index:
    """An open index, made if absent. `is_new` until `finish`: a crash may come in between."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_damaged = False
        with contextlib.suppress(OSError):  # it names all artifacts, and who knows a name may read them
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.chmod(path, 0o600)  # its log has the same mode
        self._writer = self._engine("BEGIN IMMEDIATE", pool_size=1, max_overflow=4, cache_kib=1024)
        self._reader = self._engine("BEGIN", pool_size=4, max_overflow=60, cache_kib=256, query_only=True)
        try:
            with self.write() as conn:
                version = conn.exec_driver_sql("PRAGMA user_version").scalar_one()
                if version not in (0, VERSION):
                    why = f"is of version {version}, not {VERSION}"
                    raise self._corrupt(why, version=version)
                self.is_new = version == 0
                if os.path.getsize(path) <= QUICK_CHECK_BYTES:
                    found = "\n".join(conn.exec_driver_sql("PRAGMA quick_check(1)").scalars())
                    if found != "ok":
                        raise self._corrupt(f"is damaged ({found})")
                if self.is_new:
                    metadata.create_all(conn)
        except BaseException:
            self.close()
            raise

    def finish(self, conn: sa.Connection) -> None:
        """Marks a new index as one that holds what it must hold from its beginning."""
        conn.exec_driver_sql(f"PRAGMA user_version = {VERSION}")

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that may write; committed at the end, rolled back by an exception."""
        with self.errors_told(), self._writer.begin() as conn:
            yield conn

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A snapshot: what is read in it belongs together."""
        with self.errors_told(), self._reader.begin() as conn:
            yield conn

    @contextlib.contextmanager
    def errors_told(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            extended = getattr(error.orig, "sqlite_errorcode", 0)
            code = extended & 0xFF
            if _is_damage(error.orig):
                raise self._corrupt(f"is damaged ({error.orig})") from error
            is_full = code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE
            mend = ""
            if is_full:
                mend = ": the disk is full, free some space on it"
            elif code == sqlite3.SQLITE_IOERR:
                mend = ": the disk is failing; see the kernel's log (dmesg)"
            raise errors.StoreError(
                f"the index {self.path} could not be read or written: {error.orig}{mend}",
                path=self.path,
                is_full=is_full,
            ) from error
        except UnicodeDecodeError as error:
            raise self._corrupt(f"is damaged: it holds a name that is not text ({error})") from error
        except sa.exc.TimeoutError as error:
            raise errors.StoreError(f"the index {self.path} is too busy: {error}", path=self.path) from error

    def disk_bytes(self) -> int:
        total = 0
        for suffix in _FILES:
            with contextlib.suppress(FileNotFoundError):
                total += durable.disk_bytes(os.stat(self.path + suffix))
        return total

    def close(self) -> None:
        """Closes every connection; the last one folds the write-ahead log in."""
        self._reader.dispose()
        self._writer.dispose()

    def _corrupt(self, why: str, **data: Any) -> errors.IndexCorrupt:
        self.is_damaged = True
        return errors.IndexCorrupt(
            f"the index {self.path} {' '.join(why.split())[:500]}: the next start of the daemon, or "
            "`prepcached rebuild`, rebuilds it from the artifacts; pins and times of last use are lost",
            path=self.path,
            **data,
        )

    def _engine(self, begin: str, *, cache_kib: int, query_only: bool = False, **pool: Any) -> sa.Engine:
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=self.path),
            poolclass=QueuePool,
            pool_timeout=BUSY_TIMEOUT_S,
            connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S, "isolation_level": None},
            **pool,
        )

        @sa.event.listens_for(engine, "connect")
        def _on_connect(dbapi: sqlite3.Connection, _: object) -> None:
            dbapi.execute("PRAGMA journal_mode = WAL")
            dbapi.execute("PRAGMA synchronous = FULL")
            dbapi.execute(f"PRAGMA cache_size = -{cache_kib}")
            dbapi.execute(f"PRAGMA query_only = {int(query_only)}")

        @sa.event.listens_for(engine, "begin")
        def _on_begin(conn: sa.Connection) -> None:
            conn.exec_driver_sql(begin)

        return engine


def _is_damage(error: BaseException | None) -> bool:
    """A page of zeros reads as a database without tables: SQLite then says "no such table"."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    is_schema = isinstance(error, sqlite3.OperationalError) and _OTHER_SCHEMA.match(str(error)) is not None
    return code in _DAMAGED or is_schema


def discard(path: str) -> None:
    """Deletes an index and its log."""
    for suffix in _FILES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)
