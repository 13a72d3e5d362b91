"""Recovery: what a start, a check, the upkeep and the scrub mend, and put away."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

UNIT = "tests/unit/store"
STORE = f"{UNIT}/test_store.py"
RECOVERY = f"{UNIT}/test_recovery.py"
REMOVAL = f"{UNIT}/test_store_removal.py"
CHECK = f"{UNIT}/test_store_check.py"
RECIPES = f"{UNIT}/test_store_recipes.py"
SCRUB = f"{UNIT}/test_store_scrub.py"

MUTANTS = [
    *mutants(
        "recovery.py",
        RECOVERY,
        {
            "half-written files": (
                'done["temporary"] = _empty(core.layout.tmp)',
                "pass",
                f"{RECOVERY} -k half",
            ),
            "deletes under way": (
                'done["doomed"] = finish_doomed(core)',
                "pass",
                f"{RECOVERY} -k lacks_its_unlink",
            ),
            "retired rows": (
                '        removal.remove(core, retired, "merge")',
                "        pass",
                f"{RECOVERY} -k merged_parts",
            ),
            "commits under way": (
                "    done.update(adopt(core, folder, sorted(names - rows), damaged))",
                "    pass",
                f"{RECOVERY} -k lacks_its_row",
            ),
            "rows without files": (
                '        removal.remove(core, lost, "quarantine")',
                "        pass",
                f"{RECOVERY} -k row_without",
            ),
            "generations beyond any that was seen": (
                '        queries.set_note(conn, "generation_base", int(core.clock() * 1000))',
                "        pass",
                f"{RECOVERY} -k lost_index",
            ),
            "recipes without artifacts": (
                "                queries.add_recipe(conn, scopes.packed(recipe), recipe_name(core, recipe), core.clock())",
                "                pass",
                f"{RECOVERY} -k without_artifacts",
            ),
            "the unlink for good": (
                "        durable.fsync_folder(folder)",
                "        pass",
                "tests/crash/test_store_order.py -k delete",
            ),
            "the end of a doom": (
                "        queries.spare(conn, gone)",
                "        pass",
                f"{RECOVERY} -k lacks_its_unlink",
            ),
        },
    ),
    *mutants(
        "store/adoption.py",
        RECOVERY,
        {
            "the digest of a file": (
                "    if staging.hash_file(fd) != name:",
                "    if False:",
                f"{RECOVERY} -k no_artifact",
            ),
            "the header of a file": (
                "    header = artifact.check(fd)",
                "    header = artifact.read_header(fd)",
                f"{RECOVERY} -k lead_outside",
            ),
            "the name of a file": (
                "if not is_hex64(name) or name[:2] != os.path.basename(folder):",
                "if False:",
                f"{RECOVERY} -k not_its_own",
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
                "        if edition > highest.get(one, -1):",
                "        if True:",
                f"{RECOVERY} -k one_key",
            ),
            "the owner of a copy": (
                "        return int(os.getxattr(fd, staging.OWNER_XATTR))",
                "        pass",
                f"{RECOVERY} -k for_its_owner",
            ),
            "the generation of what is indexed": (
                "recipe_id: queries.raise_generation(conn, recipe_id, is_removal=False)",
                "recipe_id: 0",
                f"{RECOVERY} -k lacks_its_row",
            ),
            "two files of one key at once": (
                "            highest[one], best[one] = edition, found",
                "            best[one] = found",
                f"{RECOVERY} -k one_key",
            ),
            "every batch": (
                "range(0, len(names), BATCH)",
                "range(0, 1)",
                f"{RECOVERY} -k batch",
            ),
        },
    ),
    *mutants(
        "store/check.py",
        CHECK,
        {
            "half-written files": (
                "            os.unlink(os.path.join(core.layout.tmp, name))",
                "            pass",
                f"{CHECK} -k temporary-file",
            ),
            "deletes under way": (
                "        recovery.finish_doomed(core)",
                "        pass",
                f"{CHECK} -k doomed-file",
            ),
            "commits under way": (
                '            is_mended = not adopt(core, folder, [name], set())["unreadable"]',
                "            is_mended = True",
                f"{CHECK} -k file-without-row",
            ),
            "rows without files": (
                '            removal.remove(core, [rows[digest]], "quarantine")',
                "            pass",
                f"{CHECK} -k row-without-file",
            ),
            "sizes": (
                '            quarantine(core, [row], "its size is wrong")',
                "            pass",
                f"{CHECK} -k wrong-size",
            ),
            "headers": (
                "            quarantine(core, [row], wrong)",
                "            pass",
                f"{CHECK} -k not-an-artifact",
            ),
            "blocks": (
                "            upkeep.set_disk_bytes(core, row, on_disk)",
                "            pass",
                f"{CHECK} -k wrong-blocks",
            ),
            "rows from the future": (
                "conn.execute(recipes.update().where(recipes.c.id == recipe_id).values(values))",
                "pass",
                f"{CHECK} -k future-row",
            ),
            "sums": (
                "        if repair:\n            core.count_again()\n        yield",
                "        yield",
                f"{CHECK} -k wrong_sums",
            ),
        },
    ),
    *mutants(
        "store/upkeep.py",
        CHECK,
        {
            "the row's blocks": (
                "conn.execute(artifacts.update().where(artifacts.c.id == row.id).values(disk_bytes=disk_bytes))",
                "pass",
                f"{CHECK} -k wrong-blocks",
            ),
            "doomed files": (
                "                recovery.finish_doomed(core)",
                "                pass",
                f"{REMOVAL} -k is_tried_again",
            ),
            "recipes that nobody asks for": (
                "                registry.sweep(core)",
                "                pass",
                f"{RECIPES} -k nobody_asks",
            ),
            "retired files": (
                "            removal.drop_retired(core)",
                "            pass",
                f"{STORE} -k is_replaced",
            ),
        },
    ),
    *mutants(
        "store/registry.py",
        RECIPES,
        {
            "that a recipe is asked for": (
                "        os.utime(path, (core.clock(), core.clock()))",
                "        pass",
            ),
            "recipes that were asked for lately": (
                "os.stat(path).st_mtime > before:",
                "False:",
            ),
            "room for a recipe": ("        _check_room(core, len(data))", "        pass"),
            "a user's share for recipes": (
                "        _check_share(core, scopes.scope_of(recipe), len(data))",
                "",
            ),
            "recipes of one scope": ("scopes.scope_of(scopes.text(found.digest)) != scope", "False"),
        },
    ),
    *mutants(
        "queries.py",
        RECIPES,
        {
            "recipes that got artifacts": (
                "recipes.c.id == recipe.id, ~has_any",
                "recipes.c.id == recipe.id",
            ),
            "generations of recipes that went": ("recipe.generation + 1))", "0))"),
        },
    ),
    *mutants(
        "store/scrub.py",
        SCRUB,
        {
            "its position": (
                "            queries.set_note(conn, POSITION, self._position)",
                "            pass",
                f"{SCRUB} -k remembers",
            ),
            "its round": (
                "            queries.set_note(conn, ROUND_AT, self._round_at)",
                "            pass",
                f"{SCRUB} -k remembers",
            ),
            "the digest": (
                "        if reading.digest != reading.row.digest.hex():",
                "        if False:",
                f"{SCRUB} -k small_steps",
            ),
            "the digest of a verify": (
                "    if reading.digest == row.digest.hex():",
                "    if True:",
                f"{SCRUB} -k finds_the_bad_one",
            ),
        },
    ),
]
