"""The rows of sessions and leases: what of them outlives the daemon, in the store's own SQLite file.

Invariants:
    1. A lease's row is written before its client hears of the lease, and gone, in the commit's own
       transaction, when its items are committed: after a restart no item is granted twice at once.
    2. Rows of another boot are of no process that lives; they are dropped at start. So are those of sessions
       that shared with others than they would by now: the settings changed (auth.py, invariant 4).
    3. Deadlines are not kept: a lease that outlived its daemon has one whole span to be beaten for, since
       nobody could beat while the daemon was away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from prepcache.digests import DIGEST_BYTES
from prepcached.leases import Lease
from prepcached.sessions import Session

METADATA = MetaData()

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", String, primary_key=True),
    Column("token", String, nullable=False),
    Column("name", String, nullable=False),
    Column("uid", Integer),
    Column("scope", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("reported_pid", Integer, nullable=False),
    Column("start_ticks", Integer, nullable=False),
    Column("host", String, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("boot", String, nullable=False),
    Column("holds", LargeBinary, nullable=False),
)

LEASES = Table(
    "leases",
    METADATA,
    Column("id", String, primary_key=True),
    Column("token", String, nullable=False),
    Column("session", String, nullable=False),
    Column("job", String, nullable=False),
    Column("recipe", String, nullable=False),
    Column("cost_s", Float, nullable=False),
    Column("items", LargeBinary, nullable=False),
)


def boot_id() -> str:
    """Names this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def add_session(conn: Connection, session: Session, boot: str) -> None:
    """Writes a session's row; a second time does nothing."""
    conn.execute(
        insert(SESSIONS)
        .prefix_with("OR IGNORE")
        .values(
            id=session.id,
            token=session.token,
            name=session.name,
            uid=session.uid,
            scope=session.scope,
            pid=session.pid,
            reported_pid=session.reported_pid,
            start_ticks=session.start_ticks,
            host=session.host,
            opened_at=session.opened_at,
            boot=boot,
            holds=_pack_hex(session.holds),
        )
    )


def save_holds(conn: Connection, holds: Iterable[tuple[str, Collection[str]]]) -> None:
    """Writes what sessions hold: (session id, digests)."""
    rows = [{"session_id": session_id, "held": _pack_hex(digests)} for session_id, digests in holds]
    if rows:
        statement = update(SESSIONS).where(SESSIONS.c.id == bindparam("session_id"))
        conn.execute(statement.values(holds=bindparam("held")), rows)


def drop_sessions(conn: Connection, session_ids: Collection[str]) -> None:
    """Drops sessions and all their leases."""
    if session_ids:
        conn.execute(delete(LEASES).where(LEASES.c.session.in_(session_ids)))
        conn.execute(delete(SESSIONS).where(SESSIONS.c.id.in_(session_ids)))


def add_lease(conn: Connection, lease: Lease) -> None:
    """Writes a lease's row, over one that an ended lease of its id may have left."""
    conn.execute(
        insert(LEASES)
        .prefix_with("OR REPLACE")
        .values(
            id=lease.id,
            token=lease.token,
            session=lease.session,
            job=lease.job,
            recipe=lease.recipe,
            cost_s=lease.cost_s,
            items=b"".join(lease.items),
        )
    )


def drop_leases(conn: Connection, lease_ids: Collection[str]) -> None:
    if lease_ids:  # one by one: a statement takes some ten thousand values, and many sessions may end at once
        statement = delete(LEASES).where(LEASES.c.id == bindparam("lease_id"))
        conn.execute(statement, [{"lease_id": lease_id} for lease_id in lease_ids])


def free_items(conn: Connection, leases: Iterable[Lease], committed: Collection[bytes]) -> None:
    """Takes committed items off their leases' rows; a row that is left without items goes."""
    ended = []
    for lease in leases:
        rest = lease.items.difference(committed)
        if rest:
            conn.execute(update(LEASES).where(LEASES.c.id == lease.id).values(items=b"".join(rest)))
        else:
            ended.append(lease.id)
    drop_leases(conn, ended)


def load(
    conn: Connection,
    boot: str,
    is_alive: Callable[[int, int], bool],
    scope_of: Callable[[int | None], str] = lambda _uid: "",
) -> tuple[list[Session], list[Lease]]:
    """The sessions that outlived the daemon, and their leases; the rows of all others are dropped.

    Args:
        boot: this boot.
        is_alive: whether a process (pid, start ticks) still lives; asked for those that were watched.
        scope_of: with whom a user shares by now. A session that shared with others has ended: its leases
            would commit to them.
    """
    live: dict[str, Session] = {}
    dead = []
    for row in conn.execute(select(SESSIONS)):
        if row.boot != boot or (row.pid and not is_alive(row.pid, row.start_ticks)):
            dead.append(row.id)
            continue
        if row.scope != scope_of(row.uid):
            dead.append(row.id)
            continue
        live[row.id] = Session(
            id=row.id,
            token=row.token,
            name=row.name,
            uid=row.uid,
            pid=row.pid,
            reported_pid=row.reported_pid,
            host=row.host,
            opened_at=row.opened_at,
            beat_at=0.0,
            start_ticks=row.start_ticks,
            holds={digest.hex() for digest in _split(row.holds)},
            scope=row.scope,
        )
    drop_sessions(conn, dead)
    leases = [
        Lease(
            id=row.id,
            token=row.token,
            session=row.session,
            job=row.job,
            recipe=row.recipe,
            items=set(_split(row.items)),
            cost_s=row.cost_s,
            deadline=0.0,
            progress_at=0.0,
        )
        for row in conn.execute(select(LEASES))
    ]
    drop_leases(conn, [lease.id for lease in leases if lease.session not in live])
    return list(live.values()), [lease for lease in leases if lease.session in live]


def _pack_hex(digests: Iterable[str]) -> bytes:
    return b"".join(bytes.fromhex(digest) for digest in digests)


def _split(packed: bytes) -> list[bytes]:
    return [packed[start : start + DIGEST_BYTES] for start in range(0, len(packed), DIGEST_BYTES)]
