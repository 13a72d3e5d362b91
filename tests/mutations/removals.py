"""Removals: what goes, what may not, what is told of it, and what takes the place of what went."""

from __future__ import annotations

from mutations.mutant import mutants

UNIT = "tests/unit/store"
STORE = f"{UNIT}/test_store.py"
RECOVERY = f"{UNIT}/test_recovery.py"
MERGE = f"{UNIT}/test_store_merge.py"
EVICTION = f"{UNIT}/test_store_eviction.py"
REMOVAL = f"{UNIT}/test_store_removal.py"
RECENCY = f"{UNIT}/test_store_recency.py"
HOLDS = f"{UNIT}/test_store_holds.py"
SCRUB = f"{UNIT}/test_store_scrub.py"
ORDER = "tests/crash/test_store_order.py"

MUTANTS = [
    *mutants(
        "data/verify.py",
        "tests/unit/test_verify.py",
        {
            "what was removed before its turn": (
                "            return None\n        numbers",
                "            return []\n        numbers",
            ),
            "what is removed as it is looked up": ("        if len(slots) == len(rows):", "        if True:"),
        },
    ),
    *mutants(
        "removal.py",
        EVICTION,
        {
            "the doomed rows": (
                "            queries.delete(conn, rows)",
                "            pass",
                f"{STORE} -k purge",
            ),
            "the unlink": (
                "        unlink_object(core, row.digest.hex())\n    with core.memory:",
                "        pass\n    with core.memory:",
                f"{STORE} -k purge",
            ),
            "no holds on what goes": (
                "        core.holds.condemn(digests)",
                "        pass",
                f"{REMOVAL} -k is_being_removed",
            ),
            "the pardon": (
                "            core.holds.pardon(digests)",
                "            pass",
                f"{REMOVAL} -k held_again",
            ),
            "bytes of unlinked files": (
                "        core.ledger.unlinked_bytes = core.holds.unlinked_bytes()",
                "        pass",
                f"{STORE} -k purged_bytes",
            ),
            "the account": (
                "            account(core, row, -1)\n            core.used",
                "            core.used",
                f"{STORE} -k purged_bytes",
            ),
            "the word to the sessions": (
                "    core.notice([row.digest.hex() for row in rows], reason)",
                "    pass",
                f"{STORE} -k overrides",
            ),
            "what is held retires": (
                "retiring = [row for row in rows if core.holds.is_held(row.digest, now)]",
                "retiring = []",
                f"{STORE} -k is_replaced",
            ),
            "what is held does not go": (
                "going = [row for row in rows if not core.holds.is_held(row.digest, now)]",
                "going = list(rows)",
                f"{STORE} -k is_replaced",
            ),
            "the mark of the retired": (
                "os.chmod(core.layout.object_path(digest.hex()), RETIRED_MODE)",
                "pass",
                f"{RECOVERY} -k merged_parts",
            ),
            "the order of eviction": (
                "    write_recency(core)\n    with core.index.read() as conn:\n        return eviction",
                "    with core.index.read() as conn:\n        return eviction",
                f"{EVICTION} -k least_recently",
            ),
            "holds against eviction": (
                "            return core.holds.is_protected(digest, now)",
                "            return False",
                f"{EVICTION} --timeout=20 -k passed_over",
            ),
            "holds taken meanwhile": (
                "        if any(core.holds.is_protected(row.digest, now) for row in rows):",
                "        if False:",
                f"{REMOVAL} -k after_it_was_chosen",
            ),
            "what is used between two pieces": (
                "artifacts.c.used_at <= since",
                "artifacts.c.used_at >= 0",
                f"{EVICTION} -k between_two_pieces",
            ),
            "what is held between two pieces": (
                "if not (r.is_pinned or core.holds.is_protected(r.digest, now))",
                "if not r.is_pinned",
                f"{EVICTION} -k between_two_pieces",
            ),
            "what is pinned between two pieces": (
                "if not (r.is_pinned or core.holds",
                "if not (core.holds",
                f"{EVICTION} -k between_two_pieces",
            ),
            "the reservation's return": (
                "            core.ledger.reserved_bytes -= size_bytes\n",
                "            pass\n",
                f"{EVICTION} -k given_back",
            ),
            "the reservation": (
                "                core.ledger.reserved_bytes += size_bytes",
                "                pass",
                f"{EVICTION} -k given_back",
            ),
            "retired files make room": (
                "            drop_retired(core)\n            or drop_older",
                "            drop_older",
                f"{EVICTION} -k retired",
            ),
            "older layouts make room": (
                "            or drop_older_layouts(core)\n",
                "",
                f"{EVICTION} -k older",
            ),
            "the quarantine makes room": (
                "            or quarantined.give_way(core, short)\n",
                "",
                f"{EVICTION} -k quarantine",
            ),
            "newer layouts are no room": (
                "for version, _, size in found if version < VERSION)",
                "for version, _, size in found)",
                f"{EVICTION} -k newer",
            ),
            "only older layouts": (
                "            if version < VERSION:",
                "            if True:",
                f"{EVICTION} -k older",
            ),
            "what has a row stays": (
                "        if digest not in there:",
                "        if True:",
                f"{REMOVAL} -k retired_twin",
            ),
            "recency that could not be written": (
                "            core.used = {**used, **core.used}",
                "            pass",
                f"{RECENCY} -k could_not_be_written",
            ),
            "removals counted": (
                "            core.holds.pardon(digests)\n            core.removals += 1",
                "            core.holds.pardon(digests)",
                f"{REMOVAL} -k between_the_look",
            ),
            "the rows that newer ones replace": (
                "        queries.delete(conn, self.going)",
                "        pass",
                f"{STORE} -k other_bytes",
            ),
            "the held rows that newer ones replace": (
                "        queries.retire(conn, self.retiring)",
                "        pass",
                f"{STORE} -k is_replaced",
            ),
            "the files that newer ones replace": (
                "        finish(core, self.going, reason)",
                "        pass",
                f"{STORE} -k other_bytes",
            ),
            "the word that files retired": (
                "            core.holds.retired(digests)",
                "            pass",
                f"{STORE} -k is_replaced",
            ),
            "the account of the retired": (
                "account(core, row._replace(state=RETIRED), +1)",
                "pass",
                f"{STORE} -k is_replaced",
            ),
        },
    ),
    *mutants(
        "holds.py",
        HOLDS,
        {
            "the condemned": ("            if digest not in self._condemned:", "            if True:"),
            "idle holds": ("now - held[digest] < self.idle_s", "True"),
            "touches": ("        held.update(dict.fromkeys(touched, now))", "        pass"),
            "the last holder": ("free.difference_update(others)", "pass"),
            "the last holder, who has more": ("free = free.difference(others)", "pass"),
            "what took the place of what is held": (
                "return any(self.is_held(part, now) for part in self._places.get(digest, ()))",
                "return False",
            ),
            "what took the place of a merged one": (
                "for one in self._places.get(part, (part,)) if",
                "for one in (part,) if",
            ),
            "the bytes that it protects": (
                "is not None and digest not in self._places:",
                "is not None:",
            ),
            "bytes that one holds": (
                "for one, at in held.items() if now - at < self.idle_s",
                "for one in ()",
            ),
            "bytes that one who has more holds": (
                "for one in loose if now - held.get(one, -inf) < self.idle_s",
                "for one in ()",
            ),
            "bytes of the unlinked": (
                "                    self._gone.setdefault(session, {})[digest] = disk_bytes",
                "                    pass",
            ),
        },
    ),
    *mutants(
        "eviction.py",
        f"{UNIT}/test_eviction.py",
        {
            "what is protected": ("        if is_protected(candidate.digest):", "        if False:"),
            "all or nothing": (
                "return chosen if sum(candidate.disk_bytes for candidate in chosen) >= need_bytes else None",
                "return chosen",
            ),
            "staged bytes": ("            + self.staged_bytes\n", ""),
            "unlinked bytes": ("            + self.unlinked_bytes\n", ""),
            "retired bytes": ("            + self.retired_bytes\n", ""),
            "older layouts": ("            + self.older_layout_bytes\n", ""),
            "newer layouts": ("            + self.newer_layout_bytes\n", ""),
            "the quarantine": ("            + self.quarantine_bytes\n", ""),
            "reservations": (
                "self.on_disk + self.reserved_bytes + size_bytes",
                "self.on_disk + size_bytes",
                f"{UNIT}/test_eviction.py {EVICTION}",
            ),
            "min_free": ("self.on_disk + free_bytes - self.min_free_bytes", "self.on_disk + free_bytes"),
        },
    ),
    *mutants(
        "store/merge.py",
        MERGE,
        {
            "room beside parts that are held": (
                "int(core.ledger.limit(free) * FREE_SHARE) if is_held else 0",
                "0",
            ),
            "room that was taken while parts were read": (
                "if not stack.enter_context(removal.spare_room(core, size, kept_free)):",
                "if not stack.enter_context(removal.spare_room(core, 0, 0)):",
                f"{MERGE} -k nor_is_what_was_free",
            ),
            "the place of parts that are held": (
                "core.holds.take_place(bytes.fromhex(digest), disk_bytes, [row.digest for row in there])",
                "pass",
            ),
            "parts that changed meanwhile": (
                "if len(there) != len(rows) or any(row.is_pinned for row in there):",
                "if False:",
                f"{MERGE} -k change_meanwhile",
            ),
            "the doom of the merged file": (
                "                        queries.doom(conn, [bytes.fromhex(digest)])",
                "                        pass",
                f"{MERGE} -k lacks_its_row",
            ),
            "the rename": (
                "                    durable.place(path, core.layout.object_path(digest))",
                "                    pass",
                f"{MERGE} -k keeps_items",
            ),
            "the parts' rows": (
                "                    parts.write(conn)",
                "                    pass",
                f"{MERGE} -k keeps_items",
            ),
            "the row": (
                "                        queries.add_artifact(conn, values, header.producer)",
                "                        pass",
                f"{MERGE} -k keeps_items",
            ),
            "the parts' files": (
                '            parts.finish(core, "merge")',
                "            pass",
                f"{MERGE} -k keeps_items",
            ),
            "items that stand twice": (
                "            if np.isin(items, seen).any():",
                "            if False:",
                f"{MERGE} -k common_item",
            ),
            "bad parts": (
                "            if staging.hash_file(fd) != row.digest.hex():",
                "            if False:",
                f"{MERGE} -k bad_part",
            ),
            "lost parts": (
                "                    lose(self._core, row)\n",
                "",
                f"{MERGE} --timeout=20 -k lost_its_file",
            ),
            "unreadable parts": (
                "        self._left_out[row.id] = row.recipe_id, self._core.monotonic()",
                "        pass",
                f"{MERGE} --timeout=20 -k cannot_be_read",
            ),
            "unreadable for a moment": (
                "                self._todo.add(recipe_id)",
                "                pass",
                f"{MERGE} --timeout=20 -k for_a_moment",
            ),
            "fsync": ("            os.fsync(fd)", "            pass", f"{ORDER} -k merge"),
        },
    ),
    *mutants(
        "quarantine.py",
        f"{SCRUB} {RECOVERY}",
        {
            "the row": (
                "                queries.delete(conn, [row])",
                "                pass",
                f"{SCRUB} -k puts_it_away",
            ),
            "the file": (
                "os.rename(core.layout.object_path(digest), os.path.join(core.layout.quarantine, digest))",
                "pass",
                f"{SCRUB} -k puts_it_away",
            ),
            "what is no artifact": (
                "    os.rename(path, to)",
                "    pass",
                f"{RECOVERY} -k no_artifact",
            ),
        },
    ),
    *mutants(
        "quarantined.py",
        f"{EVICTION} -k quarantine",
        {
            "its bound": (
                "    for status, path in there[kept:]:",
                "    for status, path in ():",
                f"{RECOVERY} -k keeps_a_few",
            ),
            "that it goes in vain": (
                "        if not size_bytes or short_bytes > core.idle_bytes() + size_bytes:",
                "        if not size_bytes:",
            ),
        },
    ),
    *mutants(
        "store/purge.py",
        STORE,
        {
            "the removal": (
                '                removal.remove(core, rows, "purge")',
                "                pass",
                f"{STORE} -k overrides",
            ),
            "a dry run": ("            if not dry_run:", "            if True:", f"{STORE} -k overrides"),
        },
    ),
    *mutants(
        "store/staged_area.py",
        STORE,
        {
            "the files of dead sessions": (
                "                    os.unlink(os.path.join(self._folder, name))",
                "                    pass",
                f"{STORE} -k dead_sessions",
            ),
            "the files of live sessions": (
                "            if session_of(name) in sessions:",
                "            if True:",
                f"{STORE} -k dead_sessions",
            ),
            "bytes that are being taken": (
                "if entry.name in self._taking or entry",
                "if entry",
                f"{EVICTION} -k while_it_is_taken",
            ),
            "bytes that are being uploaded": (
                " or entry.name in self._uploading:",
                ":",
                f"{EVICTION} -k the_room_that_it_announced",
            ),
        },
    ),
]
