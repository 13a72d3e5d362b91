"""The index: its queries, how it is opened, who is answered what by it, and the root that it lies in."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

UNIT = "tests/unit/store"
STORE = f"{UNIT}/test_store.py"
RECOVERY = f"{UNIT}/test_recovery.py"
DAMAGED = f"{UNIT}/test_damaged_index.py"
MERGE = f"{UNIT}/test_store_merge.py"
EVICTION = f"{UNIT}/test_store_eviction.py"
REMOVAL = f"{UNIT}/test_store_removal.py"
RECENCY = f"{UNIT}/test_store_recency.py"
ROOT = f"{UNIT}/test_store_root.py"
INDEX = f"{UNIT}/test_index.py"
LAYOUT = f"{UNIT}/test_store_layout.py"

MUTANTS = [
    *mutants(
        "store/observed.py",
        f"{UNIT}/test_store_observed.py",
        {
            "what artifacts name stays": (" - used - set(kept)", " - set(kept)"),
            "what the new ones name stays": (" - used - set(kept)", " - used"),
            "what nothing names goes": ("    if idle:\n", "    if False:\n"),
            "the recipe of a chunk": (
                "    statement = sa.select(observed.c.digest, observed.c.id).where(observed.c.recipe_id == recipe_id)\n",
                "    statement = sa.select(observed.c.digest, observed.c.id)\n",
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
                f"{REMOVAL} -k will_not_go",
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
                f"{STORE} -k than_a_replacement",
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
                f"{RECOVERY} -k lost_index",
            ),
            "what is new since": (
                '    .where(artifacts.c.generation > sa.bindparam("since"))\n',
                "",
                f"{STORE} -k new_since",
            ),
            "what is live": ("    .where(IS_LIVE)\n    .order_by", "    .order_by", f"{MERGE} -k retire"),
            "what is idle": (
                'sa.text("artifacts.state = 0 AND artifacts.is_pinned = 0")',
                'sa.text("artifacts.state = 0")',
                f"{EVICTION} -k passed_over",
            ),
            "the retired twin": (
                "artifacts.delete().where(artifacts.c.digest.in_(digests), artifacts.c.state == RETIRED)",
                "sa.select(1)",
                f"{REMOVAL} -k had_retired",
            ),
            "doom that has a row": (".where(~has_row)", "", f"{REMOVAL} -k became_of_its_doom"),
            "dooms that are done": (
                "conn.execute(doomed.delete().where(doomed.c.digest.in_(chunk)))",
                "pass",
                f"{RECOVERY} -k lacks_its_unlink",
            ),
            "recency that does not go back": (
                ', artifacts.c.used_at < sa.bindparam("t"))',
                ")",
                f"{RECENCY} -k written_behind",
            ),
            "doom of what came again": (
                "    conn.execute(doomed.delete().where(doomed.c.digest.in_(digests)))",
                "    pass",
                f"{REMOVAL} -k came_again",
            ),
            "the producer's row": (
                '    conn.execute(producers.insert().prefix_with("OR IGNORE"), [{"json": text} for text in distinct])',
                "    pass",
                f"{STORE} -k says_what_it_is",
            ),
            "the recipe's row": (
                '        recipes.insert().prefix_with("OR IGNORE"),',
                "        sa.select(1),",
                f"{STORE} -k says_what_it_is",
            ),
            "the artifact's row": (
                "    conn.execute(artifacts.insert(), new)",
                "    pass",
                f"{STORE} -k says_what_it_is",
            ),
            "notes": (
                '    conn.execute(notes.insert().prefix_with("OR REPLACE"), {"name": name, "value": value})',
                "    pass",
                f"{RECOVERY} -k lost_index",
            ),
        },
    ),
    *mutants(
        "store/index.py",
        INDEX,
        {
            "BEGIN IMMEDIATE": (
                'self._writer = self._engine("BEGIN IMMEDIATE"',
                'self._writer = self._engine("BEGIN"',
                f"{INDEX} -k takes_its_lock",
            ),
            "synchronous=FULL": (
                'synchronous: str = "FULL"',
                'synchronous: str = "NORMAL"',
                f"{INDEX} -k durable",
            ),
            "WAL": ('dbapi.execute("PRAGMA journal_mode = WAL")', "pass", f"{INDEX} -k durable"),
            "readers that cannot write": (
                "cache_kib=256, query_only=True",
                "cache_kib=256",
                f"{INDEX} -k durable",
            ),
            "the version": (
                "if version not in (0, tables.VERSION):",
                "if False:",
                f"{INDEX} -k another_version",
            ),
            "the quick check": ('        if found != "ok":', "        if False:", f"{DAMAGED} -k empty"),
            "the mark of a damaged one": (
                "        if os.path.exists(path + _MARK):\n",
                "        if False:\n",
                f"{DAMAGED} -k log_of",
            ),
            "the small tables of a large one": (
                "            self._quick_check(conn, name)\n",
                "            pass\n",
                f"{DAMAGED} -k large_index",
            ),
            "damage told from absence": (
                "if _is_damage(error.orig):",
                "if False:",
                f"{INDEX} -k foreign",
            ),
        },
    ),
    *mutants(
        "root.py",
        ROOT,
        {
            "flock": ("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", f"{ROOT} -k second_daemon"),
            "network filesystems": (
                "            if network is not None:",
                "            if False:",
                f"{ROOT} -k network",
            ),
            "network filesystems behind FUSE": (
                "return name if name in NETWORK_FUSE else None",
                "return None",
                f"{ROOT} -k fuse",
            ),
            "one filesystem": (
                "            if os.stat(path).st_dev != home:",
                "            if False:",
                "tests/crash/test_store_errors.py -k split",
            ),
            "the remembered budget": (
                "self._remember(self.layout.budget, lambda: str(min(200 * GIB, free // 4)))",
                "min(200 * GIB, free // 4)",
                f"{ROOT} -k budget",
            ),
            "modes": ("    os.chmod(path, mode)", "    pass", f"{ROOT} -k modes"),
            "fsync of new folders": (
                "            durable.fsync_folder(path)",
                "            pass",
                f"{ROOT} -k are_durable",
            ),
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
        "store/registry.py",
        STORE,
        {
            "parts before the first artifact": (
                "json.dumps(document, indent=1).encode()",
                "b''",
                f"{STORE} -k parts_are_on_disk",
            ),
            "the recipe's row": (
                "            queries.add_recipe(conn, scopes.packed(recipe), name, core.clock())",
                "            pass",
                f"{STORE} -k parts_are_on_disk",
            ),
        },
    ),
    *mutants(
        "store/reading.py",
        RECENCY,
        {
            "a generation from the future": (
                "            if since > generation:",
                "            if False:",
                f"{STORE} -k future",
            ),
            "the whole list after a removal": (
                "is_complete = since == 0 or since < row.removed_generation",
                "is_complete = since == 0",
                f"{STORE} -k after_a_removal",
            ),
            "holds in one step": (
                "                core.holds.take(holder, found, core.monotonic())",
                "                pass",
                f"{RECENCY} -k uses_and_holds",
            ),
            "what is being removed": (
                "if not core.holds.is_condemned(f[0])]",
                "]",
                f"{REMOVAL} -k is_being_removed",
            ),
            "recency": (
                "            core.used.update((entry[0], now) for entry in found)",
                "            pass",
                f"{RECENCY} -k uses_and_holds",
            ),
            "removals between the look and the hold": (
                "            if holder is not None and core.removals != removals:",
                "            if False:",
                f"{REMOVAL} -k between_the_look",
            ),
            "what is being removed is not held": (
                "there = {row.digest for row in rows if not core.holds.is_condemned(row.digest)}",
                "there = {row.digest for row in rows}",
                f"{REMOVAL} -k is_being_removed",
            ),
            "removals between the look and the hold of a digest": (
                "            if core.removals != removals:\n                continue  # NOTE",
                "            if False:\n                continue  # NOTE",
                f"{REMOVAL} -k between_the_look",
            ),
        },
    ),
    *mutants(
        "store/pins.py",
        STORE,
        {
            "the pin": (
                "artifacts.update().where(artifacts.c.id == row.id).values(is_pinned=is_pinned)",
                "sa.select(1)",
                f"{STORE} -k other_bytes",
            ),
        },
    ),
    *mutants(
        "store/opening.py",
        DAMAGED,
        {
            "another index": (
                "        _set_aside(root.layout, damage)",
                "        raise",
                f"{DAMAGED} -k made_again",
            ),
            "check leaves it": ("        if not recover:\n", "        if False:\n", f"{DAMAGED} -k check"),
            "the log goes along": (
                '    for suffix in ("-wal", ""):',
                '    for suffix in ("",):',
                f"{DAMAGED} -k log",
            ),
            "what was set aside before": (
                "        with contextlib.suppress(FileNotFoundError):\n            os.rename",
                "        with contextlib.suppress(KeyError):\n            os.rename",
                f"{DAMAGED} -k killed",
            ),
        },
    ),
    *mutants(
        "store/store.py",
        DAMAGED,
        {
            "the mark at the end": (
                "                mark_damaged(self._core.layout.index)\n",
                "                pass\n",
                f"{DAMAGED} -k proves_damaged_later",
            ),
        },
    ),
    *mutants(
        "store/store.py",
        RECENCY,
        {
            "recency at the end": (
                "                removal.write_recency(self._core)\n        finally",
                "                pass\n        finally",
                f"{RECENCY} -k at_the_end",
            ),
        },
    ),
]
