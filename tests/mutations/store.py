"""The store: fsyncs, renames, rows, generations, holds, dooms, and what a staged file must be.

The order of system calls is read off by strace, as root: without them those mutants survive.
"""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

UNIT = "tests/unit/store"
STORE = f"{UNIT}/test_store.py"
STAGING = f"{UNIT}/test_staging.py"
RECOVERY = f"{UNIT}/test_recovery.py"
MERGE = f"{UNIT}/test_store_merge.py"
EVICTION = f"{UNIT}/test_store_eviction.py"
HOLDS = f"{UNIT}/test_store_holds.py"
ROOT = f"{UNIT}/test_store_root.py"
INDEX = f"{UNIT}/test_index.py"
LAYOUT = f"{UNIT}/test_store_layout.py"
SCRUB = f"{UNIT}/test_store_scrub.py"
ORDER = "tests/crash/test_store_order.py"

MUTANTS = [
    *mutants(
        "durable.py",
        f"{ORDER} -k commit",
        {
            "fsync of a folder": ("        os.fsync(fd)\n    finally:", "        pass\n    finally:"),
            "fsync of a small file": (
                "        os.fsync(fd)\n        place(path",
                "        place(path",
                f"{ORDER} -k register",
            ),
            "fsync of a new name": ("    fsync_folder(os.path.dirname(dst))", "    pass"),
            "rename": ("    os.rename(src, dst)", "    __import__('shutil').copyfile(src, dst)"),
            "the end of a temporary file": (
                "            os.unlink(path)",
                "            pass",
                f"{UNIT}/test_durable.py",
            ),
            "the mode of a small file": (
                "        os.fchmod(fd, mode)",
                "        pass",
                f"{ROOT} {STORE} {UNIT}/test_durable.py -k 'modes or parts or written'",
            ),
        },
    ),
    *mutants(
        "staging.py",
        STAGING,
        {
            "fsync": ("        os.fsync(fd)", "        pass", f"{ORDER} -k commit"),
            "O_NOFOLLOW": ("os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_RDONLY | os.O_NONBLOCK"),
            "O_NONBLOCK": ("os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_NOFOLLOW"),
            "the name": ("name = staged_name(staged.name)", "name = staged.name"),
            "a regular file": ("if not stat.S_ISREG(status.st_mode):", "if False:"),
            "the owner": ("if status.st_uid not in (owner_uid, os.geteuid()):", "if False:"),
            "one link": ("if status.st_nlink != 1:", "if False:"),
            "the size before": (
                "    if status.st_size != staged.size_bytes:\n        return",
                "    if False:\n        return",
            ),
            "the size after": ("        if before.st_size != staged.size_bytes:", "        if False:"),
            "the stat after the hash": ("if identity(before) != identity(after):", "if False:"),
            "the look before the rename": ("    if now != file.identity:", "    if False:"),
            "the copy of another user's file": ("if os.fstat(fd).st_uid != os.geteuid():", "if False:"),
            "the mode of an artifact": ("        os.fchmod(fd, 0o440)", "        pass"),
            "the group of a copy": (
                "            os.fchown(copy_fd, -1, os.fstat(fd).st_gid)",
                "            pass",
            ),
            "the owner of a copy": ("os.setxattr(copy_fd, OWNER_XATTR, str(owner_uid).encode())", "pass"),
            "the digest of all bytes": (
                "        offset += n\n    return Digest",
                "        break\n    return Digest",
                f"{STORE} -k resolved_and_lies",
            ),
            "the check of the header": (
                "        return artifact.check(fd)",
                "        return artifact.read_header(fd)",
                f"{STAGING} {STORE}",
            ),
        },
    ),
    *mutants(
        "store/commit.py",
        STORE,
        {
            "the recipe": ("    if header.recipe != recipe:", "    if False:"),
            "the items of the leases": (
                "    if not is_allowed.all():",
                "    if False:",
                f"{STORE} -k no_lease_names",
            ),
            "the bound of an artifact": ("if core.artifact_bytes is not None and", "if False and", STAGING),
            "a registered recipe": ("    if row is None:", "    if False:", f"{STORE} -k unregistered"),
            "the reservation": (
                "removal.room(core, max(durable.disk_bytes(status), status.st_size)),",
                "contextlib.nullcontext(),",
                EVICTION,
            ),
            "the look before the rename": ("            staging.still_the_same(file)\n", "", STAGING),
            "the rename": (
                "durable.place(file.path, core.layout.object_path(file.digest))",
                "pass",
                f"{STORE} -k resolved_and_lies",
            ),
            "the row": (
                "                queries.add_artifact(conn, {**values",
                "                dict({**values",
                f"{STORE} -k resolved_and_lies",
            ),
            "the generation": (
                "generation = queries.raise_generation(conn, recipe.id, is_removal=False)",
                "pass",
                f"{STORE} -k 'new_since'",
            ),
            "the generation of a row": (
                '{**values, "generation": generation}',
                '{**values, "generation": recipe.generation}',
                f"{STORE} -k 'new_since'",
            ),
            "what goes with it": (
                "                in_transaction(conn)",
                "                pass",
                f"{STORE} -k 'daemons_tables or failure_in'",
            ),
            "the older rows of the key": (
                "            old.write(conn)",
                "            pass",
                f"{STORE} -k other_bytes",
            ),
            "the older files of the key": (
                '        old.finish(core, "replace")',
                "        pass",
                f"{STORE} -k other_bytes",
            ),
            "the pin of the key": ('"is_pinned": values["key"] in pinned,', '"is_pinned": False,', STORE),
            "the file when the row fails": (
                "        removal.unlink_if_absent(core, [file.digest for file in placed])",
                "        pass",
                f"{STORE} -k failure_in",
            ),
            "bytes that are there": (
                "        if file.digest not in known:",
                "        if True:",
                f"{STORE} -k 'same_bytes'",
            ),
            "the staged file's end": (
                "            core.staged_area.unlink(file.name)",
                "            pass",
                f"{STAGING} {STORE} -k 'same_bytes or copied'",
            ),
            "the holds": (
                "core.holds.take(holder, ((d, n, d in pinned_digests) for d, n in found), core.clock())",
                "pass",
                f"{STORE} {EVICTION} tests/contract/test_api_lifetimes.py -k 'held or holds'",
            ),
            "the account": (
                "            removal.account_new(core, values, known)",
                "            pass",
                f"{EVICTION} -k 'to_the_block'",
            ),
            "a full disk declines": (
                'if error.data.get("errno") not in _NO_SPACE',
                "if True",
                "tests/crash/test_store_errors.py -k full_disk",
            ),
        },
    ),
    *mutants(
        "queries.py",
        STORE,
        {
            "the doom of a delete": (
                "        doom(conn, [row.digest for row in chunk])",
                "        pass",
                "tests/crash/test_store_kill.py -k delete",
            ),
            "the row's delete": (
                "        conn.execute(artifacts.delete().where(artifacts.c.id.in_([row.id for row in chunk])))",
                "        pass",
                f"{STORE} -k purge",
            ),
            "the generation of a delete": (
                "([row.id for row in chunk])))\n    for recipe_id in sorted({",
                "([row.id for row in chunk])))\n    for recipe_id in sorted(set() and {",
                f"{STORE} -k after_a_removal",
            ),
            "the generation of a retirement": (
                "is_pinned=False))\n    for recipe_id in sorted({",
                "is_pinned=False))\n    for recipe_id in sorted(set() and {",
                f"{RECOVERY} {MERGE} {EVICTION} {STORE}",
            ),
            "the retirement": (
                "values(state=RETIRED, is_pinned=False)",
                "values(is_pinned=False)",
                f"{MERGE} -k retire",
            ),
            "the generation of removals": (
                'values["removed_generation"] = recipes.c.generation + 1',
                "pass",
                f"{STORE} -k after_a_removal",
            ),
            "the raise": (
                '{"generation": recipes.c.generation + 1}',
                '{"generation": recipes.c.generation}',
                f"{STORE} -k new_since",
            ),
            "the start of generations": (
                'base = note(conn, "generation_base")',
                "base = 0",
                f"{RECOVERY} {STORE} -k 'lost_index or future or rebuild'",
            ),
            "what is new since": (
                '    .where(artifacts.c.generation > sa.bindparam("since"))\n',
                "",
                f"{STORE} -k new_since",
            ),
            "what is live": (
                "    .where(IS_LIVE)\n    .order_by",
                "    .order_by",
                f"{RECOVERY} {MERGE} {EVICTION} {STORE}",
            ),
            "what is idle": (
                'sa.text("artifacts.state = 0 AND artifacts.is_pinned = 0")',
                'sa.text("artifacts.state = 0")',
                f"{RECOVERY} {MERGE} {EVICTION} {STORE}",
            ),
            "the retired twin": (
                'artifacts.delete().where(artifacts.c.digest == values["digest"], artifacts.c.state == RETIRED)',
                "sa.select(1)",
                f"{RECOVERY} {MERGE} {EVICTION} {STORE}",
            ),
            "doom that has a row": (
                ".where(~has_row)",
                "",
                f"{RECOVERY} {MERGE} {STORE} {UNIT} -k 'doom or again or restart or spare'",
            ),
            "dooms that are done": (
                "conn.execute(doomed.delete().where(doomed.c.digest.in_(chunk)))",
                "pass",
                f"{RECOVERY} {UNIT}/test_store_check.py",
            ),
            "recency that does not go back": (
                ', artifacts.c.used_at < sa.bindparam("t"))',
                ")",
                f"{STORE} -k recency",
            ),
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
                f"{STORE} tests/unit/store -k 'hold or condemned or threads'",
            ),
            "removals counted before": (
                "        core.holds.condemn(digests)\n        core.removals += 1",
                "        core.holds.condemn(digests)",
                f"{UNIT} -k 'hold or threads'",
            ),
            "the pardon": (
                "            core.holds.pardon(digests)",
                "            pass",
                f"{UNIT} -k 'hold or again or came_back'",
            ),
            "bytes of unlinked files": (
                "        core.ledger.unlinked_bytes = core.holds.unlinked_bytes()",
                "        pass",
                f"{STORE} -k purged_bytes",
            ),
            "the account": (
                "            account(core, row, -1)\n            core.used",
                "            core.used",
                EVICTION,
            ),
            "the word to the sessions": (
                "    core.notice([row.digest.hex() for row in rows], reason)",
                "    pass",
                f"{STORE} -k tells",
            ),
            "what is held retires": (
                "retiring = [row for row in rows if core.holds.is_held(row.digest, now)]",
                "retiring = []",
                f"{MERGE} {STORE} -k 'retire or replaced'",
            ),
            "what is held does not go": (
                "going = [row for row in rows if not core.holds.is_held(row.digest, now)]",
                "going = list(rows)",
                f"{MERGE} {STORE} -k 'retire or replaced'",
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
                "            return core.holds.is_held(digest, now)",
                "            return False",
                f"{EVICTION} -k 'least_recently or held'",
            ),
            "holds taken meanwhile": (
                "        if any(core.holds.is_held(row.digest, now) for row in rows):",
                "        if False:",
                f"{UNIT} -k 'hold or held or threads'",
            ),
            "the reservation's return": (
                "            core.ledger.reserved_bytes -= size_bytes",
                "            pass",
                f"{EVICTION} -k given_back",
            ),
            "the reservation": (
                "                core.ledger.reserved_bytes += size_bytes",
                "                pass",
                f"{EVICTION}",
            ),
            "retired files make room": ("drop_retired(core) or ", "", f"{EVICTION} -k retired"),
            "older layouts make room": ("drop_older_layouts(core) or ", "", f"{EVICTION} -k older"),
            "only older layouts": (
                "            if version < VERSION:",
                "            if True:",
                f"{EVICTION} -k older",
            ),
            "what has a row stays": ("        if digest not in there:", "        if True:", STORE),
            "recency that could not be written": (
                "            core.used = {**used, **core.used}",
                "            pass",
                STORE,
            ),
        },
    ),
    *mutants(
        "recovery.py",
        RECOVERY,
        {
            "half-written files": (
                'done["temporary"] = _empty(core.layout.tmp)',
                "pass",
                f"{RECOVERY} -k half",
            ),
            "deletes under way": ('done["doomed"] = finish_doomed(core)', "pass", f"{RECOVERY} -k delete"),
            "retired rows": (
                '        removal.remove(core, retired, "merge")',
                "        pass",
                f"{RECOVERY} {MERGE}",
            ),
            "commits under way": (
                "        done[adopt(core, folder, name)] += 1",
                "        pass",
                f"{RECOVERY} -k lacks_its_row",
            ),
            "rows without files": (
                '        removal.remove(core, lost, "quarantine")',
                "        pass",
                f"{RECOVERY} -k row_without",
            ),
            "the digest of a file": (
                "    if staging.hash_file(fd) != name:",
                "    if False:",
                f"{RECOVERY} -k no_artifact",
            ),
            "the header of a file": (
                "    header = artifact.check(fd)",
                "    header = artifact.read_header(fd)",
                f"{RECOVERY}",
            ),
            "the name of a file": (
                "if not is_hex64(name) or name[:2] != os.path.basename(folder):",
                "if False:",
                f"{RECOVERY} -k no_artifact",
            ),
            "links": (
                "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
                "os.O_RDONLY | os.O_NONBLOCK",
                f"{RECOVERY} -k no_artifact",
            ),
            "the mark of the retired": (
                "    if status.st_mode & stat.S_ISVTX:",
                "    if False:",
                f"{RECOVERY} -k merged_parts",
            ),
            "one entry for a key": (
                "    if any(twin.edition >= header.edition for twin in twins):",
                "    if False:",
                RECOVERY,
            ),
            "generations beyond any that was seen": (
                '        queries.set_note(conn, "generation_base", int(core.clock() * 1000))',
                "        pass",
                f"{RECOVERY} -k lost_index",
            ),
            "recipes without artifacts": (
                "                queries.add_recipe(conn, bytes.fromhex(digest), recipe_name(core, digest), core.clock())",
                "                pass",
                f"{RECOVERY} -k without_artifacts",
            ),
            "the owner of a copy": (
                "        return int(os.getxattr(fd, staging.OWNER_XATTR))",
                "        pass",
                f"{RECOVERY} {STAGING}",
            ),
        },
    ),
    *mutants(
        "root.py",
        ROOT,
        {
            "flock": ("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", f"{ROOT} -k second_daemon"),
            "network filesystems": ("            if network is not None:", "            if False:"),
            "one filesystem": (
                "            if os.stat(path).st_dev != home:",
                "            if False:",
                "tests/crash/test_store_errors.py -k split",
            ),
            "the remembered budget": (
                "self._remember(self.layout.budget, lambda: str(min(200 * GIB, free // 4)))",
                "min(200 * GIB, free // 4)",
            ),
            "modes": ("    os.chmod(path, mode)", "    pass"),
        },
    ),
    *mutants(
        "store/layout.py",
        LAYOUT,
        {
            "64 hex digits": ("    if not is_hex64(digest):", "    if False:"),
            "names of staged files": ("    if _STAGED.match(name) is None:", "    if False:"),
            "the version constant": ("VERSION = 1", "VERSION = 2"),
        },
    ),
    *mutants(
        "holds.py",
        HOLDS,
        {
            "the condemned": ("            if digest not in self._condemned:", "            if True:"),
            "idle holds": ("now - held[digest] < self.idle_s", "True"),
            "touches": ("        held.update(dict.fromkeys(touched, now))", "        pass"),
            "the last holder": (
                "if held.pop(digest, None) is not None and not self.is_known(digest):",
                "if held.pop(digest, None) is not None:",
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
                "            return chosen\n    return None",
                "            return chosen\n    return chosen",
            ),
            "staged bytes": ("            + self.staged_bytes\n", ""),
            "unlinked bytes": ("            + self.unlinked_bytes\n", ""),
            "retired bytes": ("            + self.retired_bytes\n", ""),
            "older layouts": ("            + self.older_layout_bytes\n", ""),
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
        "store/index.py",
        INDEX,
        {
            "BEGIN IMMEDIATE": (
                'self._writer = self._engine("BEGIN IMMEDIATE"',
                'self._writer = self._engine("BEGIN"',
            ),
            "synchronous=FULL": ('synchronous: str = "FULL"', 'synchronous: str = "NORMAL"'),
            "WAL": ('dbapi.execute("PRAGMA journal_mode = WAL")', "pass"),
            "readers that cannot write": ("cache_kib=1024, query_only=True", "cache_kib=1024"),
            "the version": ("if version not in (0, tables.VERSION):", "if False:"),
            "the quick check": (
                '        if found != "ok":',
                "        if False:",
                f"{INDEX} {RECOVERY} -k corrupt",
            ),
            "damage told from absence": (
                "if code in _DAMAGED or _is_unreadable_schema(error):",
                "if False:",
                f"{INDEX} {RECOVERY} -k corrupt",
            ),
        },
    ),
    *mutants(
        "store/merge.py",
        MERGE,
        {
            "parts that changed meanwhile": (
                "if len(there) != len(rows) or any(row.is_pinned for row in there):",
                "if False:",
            ),
            "the doom of the merged file": (
                "                        queries.doom(conn, [bytes.fromhex(digest)])",
                "                        pass",
                f"{RECOVERY} {MERGE} {ORDER} -k 'merge'",
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
            "the removal's generation": (
                "queries.raise_generation(conn, recipe_id, is_removal=True)",
                "queries.raise_generation(conn, recipe_id, is_removal=False)",
                f"{MERGE} -k 'whole_list or retire'",
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
            "its bound": (
                "    for _, path in there[KEPT:]:",
                "    for _, path in ():",
                f"{RECOVERY} -k keeps_a_few",
            ),
        },
    ),
    *mutants(
        "store/store.py",
        STORE,
        {
            "parts before the first artifact": (
                "json.dumps(document, indent=1).encode(),",
                "b'',",
                f"{STORE} -k parts_are_on_disk",
            ),
            "a generation from the future": (
                "                if since > generation:",
                "                if False:",
                f"{STORE} -k future",
            ),
            "the whole list after a removal": (
                "is_complete = since == 0 or since < row.removed_generation",
                "is_complete = since == 0",
                f"{STORE} -k after_a_removal",
            ),
            "holds in one step": (
                "                    core.holds.take(holder, found, now)",
                "                    pass",
                f"{EVICTION} {STORE} -k held",
            ),
            "what is being removed": (
                "if not core.holds.is_condemned(f[0])]",
                "]",
                f"{UNIT} -k 'condemned or hold or threads'",
            ),
            "recency": (
                "                core.used.update((entry[0], now) for entry in found)",
                "                pass",
                f"{EVICTION} {STORE} -k 'least_recently or recency'",
            ),
            "recency at the end": (
                "                removal.write_recency(self._core)\n        finally",
                "                pass\n        finally",
                f"{STORE} {RECOVERY} {EVICTION}",
            ),
        },
    ),
]
