"""Commits: fsyncs, renames, rows, and what a staged file must be.

The order of system calls is read off by strace, as root: without them those mutants survive.
"""

from __future__ import annotations

from mutations.mutant import mutants

UNIT = "tests/unit/store"
STORE = f"{UNIT}/test_store.py"
STAGING = f"{UNIT}/test_staging.py"
EVICTION = f"{UNIT}/test_store_eviction.py"
DURABLE = f"{UNIT}/test_durable.py"
ORDER = "tests/crash/test_store_order.py"

MUTANTS = [
    *mutants(
        "control/beat.py",
        "tests/unit/test_beat_taking_in.py",
        {
            "that one answer is waited for once": (
                "            for one in awaited:\n                one.is_awaited = False",
                "            pass",
            ),
            "that polls are not waited for": (
                "one.is_awaited, one.polls, one.dropped = not polls,",
                "one.is_awaited, one.polls, one.dropped = True,",
            ),
            "that answers of polls are": (
                "                one.is_awaited, one.polls = True, False",
                "                pass",
            ),
            "that nobody waits for who waits": (
                "                mine.is_awaited = False",
                "                pass",
                "tests/unit/test_beat_taking_in.py -k two_that --timeout=40",
            ),
            "drops beside an answer": (
                "                one.dropped |= told",
                "                pass",
                "tests/e2e/test_session.py -k takes_no_hold",
            ),
        },
    ),
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
                f"{DURABLE} -k after_a_failure",
            ),
            "the mode of a small file": (
                "        os.fchmod(fd, 0o640)",
                "        pass",
                f"{DURABLE} -k written_file",
            ),
        },
    ),
    *mutants(
        "staging.py",
        STAGING,
        {
            "fsync": ("        os.fsync(fd)", "        pass", f"{ORDER} -k commit"),
            "O_NOFOLLOW": (
                "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
                "os.O_RDONLY | os.O_NONBLOCK",
                f"{STAGING} -k symlink",
            ),
            "O_NONBLOCK": (
                "os.O_NOFOLLOW | os.O_NONBLOCK",
                "os.O_NOFOLLOW",
                f"{STAGING} --timeout=20 -k no_regular",
            ),
            "the name": ("name = staged_name(staged.name)", "name = staged.name", f"{STAGING} -k no_name"),
            "a regular file": (
                "if not stat.S_ISREG(status.st_mode):",
                "if False:",
                f"{STAGING} -k no_regular",
            ),
            "the owner": (
                "if status.st_uid not in (owner_uid, os.geteuid()):",
                "if False:",
                f"{STAGING} -k another_users_file_is_refused",
            ),
            "one link": ("if status.st_nlink != 1:", "if False:", f"{STAGING} -k hard_link"),
            "the size before": (
                "    if status.st_size != staged.size_bytes:\n        return",
                "    if False:\n        return",
                f"{STAGING} -k another_length",
            ),
            "the size after": (
                "        if before.st_size != staged.size_bytes:",
                "        if False:",
                f"{STAGING} -k another_size",
            ),
            "the stat after the hash": (
                "if identity(before) != identity(after):",
                "if False:",
                f"{STAGING} -k while_it_is_hashed",
            ),
            "the look before the rename": (
                "    if now != file.identity:",
                "    if False:",
                f"{STAGING} -k after_the_hash",
            ),
            "the copy of another user's file": (
                "if os.fstat(fd).st_uid != os.geteuid():",
                "if False:",
                f"{STAGING} -k copied",
            ),
            "the mode of an artifact": (
                "        os.fchmod(fd, 0o440)",
                "        pass",
                f"{STAGING} -k taken_by_rename",
            ),
            "the group of a copy": (
                "            os.fchown(copy_fd, -1, os.fstat(fd).st_gid)",
                "            pass",
                f"{STAGING} -k copied",
            ),
            "the owner of a copy": (
                "os.setxattr(fd, OWNER_XATTR, str(owner_uid).encode())",
                "pass",
                f"{STAGING} -k copied",
            ),
            "the digest of all bytes": (
                "        offset += n\n    return Digest",
                "        break\n    return Digest",
                f"{STAGING} -k digest_is_that",
            ),
            "the check of the header": (
                "        return artifact.check(fd, max_items=MAX_ITEMS)",
                "        return artifact.read_header(fd)",
                f"{STAGING} -k lead_outside",
            ),
        },
    ),
    *mutants(
        "store/commit.py",
        STORE,
        {
            "the recipe": (
                "    if header.recipe != scopes.digest(recipe):",
                "    if False:",
                f"{STORE} -k several_files",
            ),
            "the items of the leases": (
                "    if not is_allowed.all():",
                "    if False:",
                f"{STORE} -k no_lease_names",
            ),
            "the bound of an artifact": (
                "if core.artifact_bytes is not None and",
                "if False and",
                f"{STAGING} -k over_the_bound",
            ),
            "a registered recipe": ("    if row is None:", "    if False:", f"{STORE} -k unregistered"),
            "the reservation": (
                "removal.room(core, max(durable.disk_bytes(status), status.st_size)),",
                "contextlib.nullcontext(),",
                f"{EVICTION} -k over_the_whole",
            ),
            "the look before the rename": (
                "            staging.still_the_same(file)\n",
                "",
                f"{STAGING} -k after_the_hash",
            ),
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
                f"{STORE} -k daemons_tables",
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
            "the pin of the key": (
                '"is_pinned": values["key"] in pinned,',
                '"is_pinned": False,',
                f"{STORE} -k other_bytes",
            ),
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
            "bytes that were lost": (
                "not durable.is_there(core.layout.object_path(row.digest.hex()))",
                "False",
                f"{STORE} -k lost_its_file",
            ),
            "the staged file's end": (
                "            core.staged_area.unlink(file.name)",
                "            pass",
                f"{STORE} -k same_bytes",
            ),
            "the holds": (
                "core.holds.take(holder, ((d, n, d in pinned_digests) for d, n in found), core.monotonic())",
                "pass",
                f"{STORE} -k purged_bytes",
            ),
            "the account": (
                "            removal.account_new(core, values, known)",
                "            pass",
                f"{EVICTION} -k 'to_the_block'",
            ),
            "a full disk declines": (
                'if error.data.get("errno") not in _NO_SPACE',
                "if True",
                f"{STORE} -k no_space",
            ),
            "a full index declines": (
                ' and not error.data.get("is_full")',
                "",
                f"{STORE} -k cannot_grow",
            ),
        },
    ),
]
