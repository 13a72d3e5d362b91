"""Leases and sessions: what fences them."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

LEASES = "tests/unit/test_leases_daemon.py"
ROWS = "tests/unit/test_rows_daemon.py"
SESSIONS = "tests/unit/test_sessions_daemon.py"
FILLING = "tests/contract/test_api_filling.py"
LIFETIMES = "tests/contract/test_api_lifetimes.py"
DATA = "tests/contract/test_api_data.py"
FILL = "tests/unit/test_fill_daemon_trouble.py"
ALONE = "tests/unit/test_filling_daemon.py"

MUTANTS = [
    *mutants(
        "prepcached/leases.py",
        LEASES,
        {
            "the token": (
                "is_own = lease is not None and secrets.compare_digest(lease.token.encode(), token.encode())",
                "is_own = True",
            ),
            "the session": ("or not is_own or lease.session != session:", "or not is_own:"),
            "one lease for an item": (
                "            if lease is None and item not in taken and",
                "            if item not in taken and",
            ),
            "an item once in a lease": (
                "lease is None and item not in taken and",
                "lease is None and",
            ),
            "as many as wanted": (" and len(granted) < want:", ":"),
            "the generation": ("        if generation < self.generation(recipe):", "        if False:"),
            "the generation of a commit": (
                "            self._generations[commit.recipe] = generation",
                "            pass",
            ),
            "generations that do not go back": (
                "if generation > self._generations.get(recipe, -1):",
                "if True:",
            ),
            "the bound of leases": ("len(mine) >= self._limits.leases or ", ""),
            "the bound of items": (" or leased >= self._limits.items:", ":"),
            "the deadline": ("if lease.deadline <= now and not lease.is_committing]", "if False]"),
            "a commit under way at the deadline": (
                "if lease.deadline <= now and not lease.is_committing]",
                "if lease.deadline <= now]",
            ),
            "a commit under way at the session's end": (
                "            if lease.is_committing:\n                lease.is_orphaned = True",
                "            if False:\n                lease.is_orphaned = True",
            ),
            "items of an ended session after its commit": (
                "if not lease.items or lease.is_orphaned:",
                "if not lease.items:",
            ),
            "a commit begun twice": (
                "            if lease.is_committing:\n                raise LeaseLapsed(\n                    f",
                "            if False:\n                raise LeaseLapsed(\n                    f",
            ),
            "a release during a commit": (
                "        if lease.is_committing:\n            raise LeaseLapsed(f",
                "        if False:\n            raise LeaseLapsed(f",
            ),
            "leases of one recipe": ("if len(recipes) != 1 or", "if not recipes or"),
            "each lease once": (" or len({lease.id for lease in leases}) != len(leases):", ":"),
            "items that were committed": ("lease = by_item.pop(item, None)", "lease = by_item.get(item)"),
            "items that were not": (
                "                lease.items.discard(item)",
                "                lease.items.clear()",
            ),
            "the stall of a holder": ("min(now + lease.span_s, stall_at)", "now + lease.span_s"),
            "beats": (
                "            lease.deadline = max(lease.deadline, min",
                "            max(lease.deadline, min",
            ),
            "lapsing before a commit": (
                "        self.lapse()\n        leases = tuple",
                "        leases = tuple",
            ),
            "lapsing before a release": (
                "        self.lapse()\n        lease = self._fenced",
                "        lease = self._fenced",
            ),
            "the word that items are free": (
                "        for recipe in recipes:\n            self._on_change(recipe)",
                "        pass",
            ),
            "the word of a commit": (
                "                self._free(lease)\n        self._on_change(commit.recipe)",
                "                self._free(lease)",
            ),
        },
    ),
    *mutants(
        "prepcached/sessions.py",
        SESSIONS,
        {
            "the token": (
                "is_own = session is not None and secrets.compare_digest(session.token.encode(), token.encode())",
                "is_own = True",
            ),
            "the user": (" or session.uid != uid:", ":"),
            "the bound over all": ("if len(self) >= self._max_sessions or own", "if own"),
            "the bound of a user": (" or own >= self._max_per_user:", ":"),
            "silence": (
                "if now - session.beat_at > (WATCHED",
                "if False and now - session.beat_at > (WATCHED",
            ),
            "the longer silence of a watched process": (
                "(WATCHED_LAPSE_S if session.is_watched else self._lapse_s)",
                "self._lapse_s",
            ),
            "beats": ("        session.beat_at = self._clock()\n        moved", "        moved"),
            "control characters": (
                '"".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT])',
                "text[:MAX_TEXT]",
            ),
        },
    ),
    *mutants(
        "filling.py",
        FILLING,
        {
            "whose files are committed": (
                'if not file.name.startswith(session.id + "."):',
                "if False:",
                f"{FILLING} -k another_session_staged",
            ),
            "the items of the leases": (
                "return np.fromiter((item in commit.items for item in items), bool, len(items))",
                "return np.ones(len(items), bool)",
                f"{FILLING} -k no_lease_names",
            ),
            "rows of committed items": (
                "            rows.free_items(conn, commit.leases, commit.items.intersection(seen))",
                "            pass",
                f"{LIFETIMES} -k rows_are",
            ),
            "the leases of a failed commit": (
                "forget_generation(commit.recipe)\n            daemon.leases.abort_commit(commit)",
                "forget_generation(commit.recipe)",
                f"{LIFETIMES} -k failed_commit",
            ),
            "what a failed commit may have brought": (
                "            daemon.leases.forget_generation(commit.recipe)\n",
                "",
                f"{ALONE} -k its_very_end",
            ),
            "a commit whose answer was lost": (
                "if asked == request and not _has_failed(task)",
                "if False",
                f"{ALONE} -k asked_for_again",
            ),
            "a commit that failed, and is asked for again": (
                " and not _has_failed(task)",
                "",
                f"{ALONE} -k asked_for_again",
            ),
            "a commit whose client hung up": (
                "return await asyncio.shield(task)",
                "return await task",
                f"{ALONE} -k hangs_up",
            ),
            "a lease whose client hung up": (
                "        if not await is_awaited():\n            self._daemon.leases.withdraw(lease)",
                "        if False:\n            pass",
                f"{LIFETIMES} -k hung_up",
            ),
            "the row of a lease that is given back": (
                "        self._daemon.leases.release(session.id, lease_id, token)\n        await self._daemon.write_owed()",
                "        self._daemon.leases.release(session.id, lease_id, token)",
                f"{ALONE} -k given_back",
            ),
            "the lease's row": (
                "is_live = await self._daemon.save_lease(lease)",
                "is_live = True",
                f"{LIFETIMES} -k rows_are",
            ),
            "a registered recipe": (
                "            await self._check_recipe(session, recipe)",
                "            pass",
                f"{FILLING} -k nobody_registered",
            ),
            "a generation from the future": (
                "        if request.generation > newest:",
                "        if False:",
                f"{FILLING} -k future",
            ),
            "the store's generation": (
                "self._daemon.leases.raise_generation(recipe, newest)",
                "self._daemon.leases.raise_generation(recipe, request.generation)",
                f"{LIFETIMES} -k new_daemon",
            ),
            "room": ("if request.nbytes else", "if False else", f"{FILLING} -k no_room"),
            "the bound of staged bytes": (
                "        if others + size_bytes > self._max_staged_bytes:",
                "        if False:",
                f"{DATA} -k bound",
            ),
            "the bound of a commit": (
                "if sum(file.size_bytes for file in staged) > self._max_staged_bytes:",
                "if False:",
                f"{ALONE} -k may_stage",
            ),
            "holds of a session that has ended": (
                "            await self._daemon.quick(self._daemon.store.release, session.id)",
                "            pass",
                f"{ALONE} -k just_ended",
            ),
        },
    ),
    *mutants(
        "server/rows.py",
        ROWS,
        {
            "another boot": ("if row.boot != boot or", "if"),
            "a process that is gone": (" or (row.pid and not is_alive(row.pid, row.start_ticks)):", ":"),
            "rows of leases": (
                "        conn.execute(delete(LEASES).where(LEASES.c.session.in_(session_ids)))",
                "        pass",
            ),
            "rows of sessions": (
                "        conn.execute(delete(SESSIONS).where(SESSIONS.c.id.in_(session_ids)))",
                "        pass",
            ),
            "rows of lapsed leases": (
                '        conn.execute(statement, [{"lease_id": lease_id} for lease_id in lease_ids])',
                "        pass",
            ),
            "items that are left": ('values(items=b"".join(rest))', "values(items=LEASES.c['items'])"),
            "holds": (
                '        conn.execute(statement.values(holds=bindparam("held")), rows)',
                "        pass",
            ),
            "a session's row": (
                "    conn.execute(\n        insert(SESSIONS)",
                "    (\n        insert(SESSIONS)",
            ),
            "a lease's row": ("    conn.execute(\n        insert(LEASES)", "    (\n        insert(LEASES)"),
            "leases of nobody": (
                "    drop_leases(conn, [lease.id for lease in leases if lease.session not in live])",
                "    pass",
            ),
        },
    ),
    *mutants(
        "protocol/processes.py",
        "tests/unit/test_peer.py",
        {
            "the start of a process": ("int(fields[_START_TICKS_FIELD]) == ticks and", ""),
            "zombies": (' and fields[_STATE_FIELD] not in "ZX"', ""),
        },
    ),
    *mutants(
        "prepcached/daemon.py",
        LIFETIMES,
        {
            "a session's row": (
                "        await self.quick(self._write, rows.add_session, session, self._boot)",
                "        pass",
                f"{LIFETIMES} --timeout=30 -k rows_are",
            ),
            "the row of a session that has ended meanwhile": (
                "            await self.quick(self._write, rows.drop_sessions, [session.id])",
                "            pass",
                f"{ALONE} -k ended_while",
            ),
            "the row of a lease that has ended meanwhile": (
                "        self._ended_leases.append(lease.id)  # it",
                "        # it",
                f"{ALONE} -k came_too_late",
            ),
            "the row of a lapsed lease before that of the next": (
                "        await self.write_owed()\n        await self.quick(self._write, rows.add_lease",
                "        await self.quick(self._write, rows.add_lease",
                f"{ALONE} -k granted_again",
            ),
            "the rows of an ended session": (
                "        self._write(rows.drop_sessions, [session_id])",
                "        pass",
                f"{LIFETIMES} --timeout=30 -k rows_are",
            ),
            "the holds of an ended session": (
                "        self.store.release(session_id)\n        self.store.discard",
                "        self.store.discard",
                f"{LIFETIMES} --timeout=30 -k holds_end",
            ),
            "the files of an ended session": (
                "        self.store.discard_staged(session_id)",
                "        pass",
                f"{LIFETIMES} --timeout=30 -k session_dies",
            ),
            "the rows of ended leases": (
                "            rows.drop_leases(conn, ended)",
                "            pass",
                f"{LIFETIMES} --timeout=30 -k lapsed",
            ),
            "the holds that are owed to the rows": (
                "            rows.save_holds(conn, holds)",
                "            pass",
                f"{LIFETIMES} -k dropped_does",
            ),
            "holds that are written before they are told": (
                "await self.quick(self._write, rows.save_holds, [(session.id, list(session.holds))])",
                "pass",
                f"{LIFETIMES} -k come_back_with",
            ),
            "rows of leases that are still owed": (
                "                self._ended_leases += ended",
                "                pass",
                f"{ALONE} -k written_later",
            ),
            "holds that are still owed": (
                "                    session.is_dirty = True\n                raise",
                "                    pass\n                raise",
                f"{ALONE} -k written_later",
            ),
            "a session that has no row": (
                '            self.end_session(session.id, why="it could not be written down")',
                "            pass",
                f"{ALONE} -k does_not_stay",
            ),
            "threads at work at a stop": (
                "            pool.shutdown()\n        self.store.close()",
                "            pass\n        self.store.close()",
                f"{LIFETIMES} --timeout=30 -k at_work",
            ),
            "holds that come back": (
                "                self.store.hold(session.id, session.holds)",
                "                pass",
                f"{LIFETIMES} -k come_back_with",
            ),
            "leases that come back": (
                "            self.leases.restore(lease)",
                "            pass",
                f"{LIFETIMES} -k come_back_with",
            ),
            "files that nobody staged": (
                "        await self.sweep()",
                "        pass",
                f"{LIFETIMES} -k over_a_restart",
            ),
            "files that nobody staged while it ran": (
                "                    self.spawn(self.sweep())",
                "                    pass",
                f"{LIFETIMES} --timeout=30 -k for_no_session",
            ),
            "files of a live session": (
                "*(staged - live)",
                "*staged",
                f"{LIFETIMES} --timeout=30 -k for_no_session",
            ),
        },
    ),
    *mutants(
        "prepcached/api/data.py",
        f"{DATA} -k dies",
        {
            "an upload after its session": (
                "        if session.id not in daemon.sessions:  # it",
                "        if False:  # it",
            ),
        },
    ),
    *mutants(
        "prepcached/intake.py",
        "tests/contract/test_api_upload.py",
        {
            "borders at which an upload is written": (
                "PIECE_BYTES - (at + moved) % PIECE_BYTES",
                "PIECE_BYTES",
                "tests/contract/test_api_upload.py -k border",
            ),
            "parts that are waited for until a piece is whole": (
                "if has_waited or not poll.poll(1000 * LINGER_S):\n                break",
                "if True:\n                break",
                "tests/contract/test_api_upload.py -k border",
            ),
            "a pipe that is full of small parts": (
                ", flags=os.SPLICE_F_NONBLOCK",
                "",
                "tests/contract/test_api_upload.py --timeout=20 -k more_parts",
            ),
            "that a piece is written before its pipe is filled again": (
                "        self.settle()\n        if not is_last",
                "        if not is_last",
                "tests/contract/test_api_upload.py",
            ),
            "what became of the last pieces": (
                "        writer.settle()\n",
                "",
                "tests/contract/test_api_upload.py",
            ),
            "that no thread can be started": (
                "            except RuntimeError:  # there are too many\n                return False",
                "            except KeyError:\n                return False",
                "tests/contract/test_api_upload.py -k no_thread",
            ),
            "the time of a turn": (
                "while there < size_bytes and (not there or time.monotonic() < until)",
                "while there < size_bytes",
                "tests/contract/test_api_upload.py -k one_by_one",
            ),
        },
    ),
    *mutants(
        "prepcache/data/leasing.py",
        f"{FILL} -k lapsed",
        {
            "what others made of lapsed items": (
                "        self._settle_found([])",
                "        pass",
            ),
            "the generation of a lease": (
                "HeldLease(answer.lease, self.generation)",
                "HeldLease(answer.lease, 1 << 60)",
            ),
        },
    ),
    *mutants(
        "prepcache/data/commits.py",
        f"{FILL} -k lapsed",
        {
            "the generation to look from": (
                "bare, generation = batch.bare, batch.since(generation)",
                "bare = batch.bare",
            ),
            "a look before items are leased anew": (
                "                made |= self._made(answer.look_again.artifacts, bare)\n",
                "",
            ),
        },
    ),
]
