"""What a crash left: swept or indexed at every start. And `rebuild`: the same, from an empty index.

What may lie there after a crash (NOTE [ Commit order ] in durable.py), and what becomes of it:
    a file in tmp/                          half-written: unlinked
    a doomed digest                         a delete was under way: its file is unlinked
    a file in objects/ without a row        a commit was under way: read, hashed and indexed (adoption.py);
                                            what is not a whole artifact is unlinked
    a row without its file                  not by our doing (somebody deleted it): removed, and said
Staged files belong to sessions, which may have outlived the daemon: the daemon sweeps them when it
knows who lives (`Daemon.sweep`).

A folder that cannot be listed is an error, not an empty folder.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable

from prepcached.store import durable, queries, removal
from prepcached.store.adoption import adopt, note_damaged
from prepcached.store.core import Core, io_told, log
from prepcached.store.layout import OBJECT_FOLDERS
from prepcached.store.models import artifacts

Progress = Callable[[int, float], None]
"""(artifacts indexed, which share of the store was looked through), after each folder."""


def recover(core: Core, progress: Progress | None = None) -> dict[str, int]:
    """Makes the index and the disk agree; returns what was done, by name, for the log and stats."""
    done: Counter[str] = Counter()
    damaged: set[str] = set()
    with io_told("the store could not be scanned"), core.writer:
        done["temporary"] = _empty(core.layout.tmp)
        done["doomed"] = finish_doomed(core)
        for number, (prefix, folder) in enumerate(core.layout.object_folders(), 1):
            _agree(core, prefix, folder, done, damaged)
            if progress is not None:
                progress(done["indexed"], number / OBJECT_FOLDERS)
        if done["damaged"] or done["unreadable"]:  # one may have been what replaced another
            with core.index.read() as conn:
                below = queries.below_others(conn)
            removal.remove(core, below)
            done["replaced"] = len(below)
            note_damaged(core, damaged)
    return {name: count for name, count in done.items() if count}


def begin(core: Core) -> None:
    """A new index: where artifacts lie, it takes the place of a lost one.

    Its generations then start beyond any that a client can have seen: at the time in milliseconds.
    """
    is_first = not any(os.listdir(folder) for _, folder in core.layout.object_folders())
    with core.index.write() as conn:
        if not is_first:
            queries.set_note(conn, "generation_base", int(core.clock() * 1000))
        core.index.finish(conn)


def finish_doomed(core: Core) -> int:
    """Unlinks what was doomed and is still there, and makes that durable. Call it with the writer lock."""
    with core.index.read() as conn:
        doomed = queries.doomed_digests(conn)
    if not doomed:
        return 0
    gone = [digest for digest in doomed if removal.unlink_object(core, digest.hex())]
    for folder in {core.layout.object_folder(digest.hex()) for digest in gone}:
        durable.fsync_folder(folder)
    with core.index.write() as conn:
        queries.spare(conn, gone)
    return len(gone)


def _agree(core: Core, prefix: str, folder: str, done: Counter[str], damaged: set[str]) -> None:
    names = set(os.listdir(folder))
    with core.index.read() as conn:
        rows = queries.digests_between(conn, prefix)
    done.update(adopt(core, folder, sorted(names - rows), damaged))
    dangling = sorted(rows - names)
    if dangling:
        log.warning("%d entries have lost their files, such as %s", len(dangling), dangling[0])
        lost = removal.rows_of(core, artifacts.c.digest, [bytes.fromhex(digest) for digest in dangling])
        removal.remove(core, lost)
        done["lost"] += len(lost)


def _empty(folder: str) -> int:
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    return len(entries)
