"""A job's own processes and threads: crews of workers, forks, what is committed behind it, what it tells."""

from __future__ import annotations

from mutations.mutant import mutants

WORKERS = "tests/unit/test_workers.py"
LOCKED = "tests/e2e/test_fork_locked.py"
FOUND = "tests/e2e/test_found.py"

MUTANTS = [
    *mutants(
        "data/lazy.py",
        "tests/e2e/test_lazy_dropped.py -k asked_for_again",
        {
            "what waits and is asked for again": (
                "if index not in self._pending or self._vain_s < VAIN_S:",
                "if True:",
            ),
            "what was read meanwhile": (
                "if is_all_observed and index in",
                "if index in",
                "tests/unit/test_keeper.py -k another_thread",
            ),
            "what costs less than a file": (" or self._vain_s < VAIN_S:", ":", "tests/unit/test_keeper.py"),
            "what is being committed": (
                "(*self._brought, *self._in_hand)",
                "self._brought",
                "tests/unit/test_keeper.py",
            ),
            "a folder that takes no file": (
                "                self._vain_s = -RETRY_S\n",
                "                pass\n",
                "tests/unit/test_keeper.py -k no_file_takes",
            ),
            "what no file takes is committed": (
                "        finally:\n            self._flush_soon()\n",
                "        self._flush_soon()\n",
                "tests/unit/test_keeper.py -k no_file_takes",
            ),
            "what was brought waits, too": (
                " + sum(batch.nbytes for batch in list(self._brought))",
                "",
                "tests/unit/test_keeper.py -k in_memory",
            ),
            "how many threads wait": (
                "is_due, self._is_due = not self._is_due, True",
                "is_due, self._is_due = True, True",
                "tests/unit/test_lazy_slow_commits.py",
            ),
            "what waits to be committed": (
                " or (self._is_due and self._holds(COMMIT_BYTES))",
                "",
                "tests/unit/test_lazy_slow_commits.py",
            ),
        },
    ),
    *mutants(
        "data/fill.py",
        "tests/unit/test_fill.py -k interrupt",
        {
            "what an interrupt meets before it is committed": (
                "        self._pace.uncommitted_s = 0.0\n",
                "        self._pace.uncommitted_s, self._outgoing = 0.0, None\n",
            ),
            "what an interrupt has left": ("        self._hand_in()\n        if not", "        if not"),
        },
    ),
    *mutants(
        "data/pace.py",
        "tests/unit/test_fill.py -k commits_near",
        {
            "how much is left": ("max(END_BYTES, left * self.item_bytes)", "self.commit_bytes"),
            "the least that is worth a commit": ("max(END_BYTES, left * self.item_bytes)", "END_BYTES"),
        },
    ),
    *mutants(
        "data/collect.py",
        "tests/unit/test_collected.py",
        {
            "what an interrupt left half collected": ("            self._drop_half()\n", ""),
            "whose it was": (
                "        for digest in list(self._cover)[items:]:\n            del self._cover[digest]\n",
                "",
            ),
        },
    ),
    *mutants(
        "artifact/writer.py",
        "tests/unit/test_collected.py",
        {
            "digests of what was taken away": (
                "            del self._digests[digest]\n",
                "            pass\n",
            ),
            "dense again": ("            if (shapes == self._first).all():", "            if False:"),
            "chunks that are there twice": (
                "            left -= len(kept[-1])\n        self._full,",
                "            left -= 0\n        self._full,",
            ),
        },
    ),
    *mutants(
        "data/workers.py",
        WORKERS,
        {
            "told to end": ("worker.inbox.end()", "worker.inbox.pipe.close()", f"{WORKERS} -k crew_ends"),
            "what follows a part that does not pickle": (
                "                    if part.is_last:\n                        break\n",
                "",
                f"{WORKERS} -k nothing_of_an_item",
            ),
            "what follows in an executor, too": (
                "            if parts[-1].is_last:\n                break\n",
                "",
                f"{WORKERS} -k an_executor_gives",
            ),
            "memory for the next item": ("            _keep_heap()\n", "", f"{WORKERS} -k keeps_memory"),
            "a pipe's other holders": ("_PIPES.add(pipe)", "pass", f"{WORKERS} -k a_death"),
        },
    ),
    *mutants(
        "data/supply.py",
        LOCKED,
        {"a fill at a fork": ("reset_lock()\n        self.filling = threading.Lock()", "reset_lock()")},
    ),
    *mutants("data/stream.py", LOCKED, {"counts at a fork": ("        totals.reset_lock()", "        pass")}),
    *mutants(
        "prepcache/data/parcels.py",
        "tests/unit/test_parcels.py --timeout=20",
        {
            "slots in use": (
                "weakref.finalize(view, self._freed.append, slot).atexit = False",
                "self._freed.append(slot)",
            ),
            "slots that are free again": ("        self._free += freed", "        pass"),
            "the room in a slot": (
                "if waiting.slot is None or end > SLOT_BYTES:",
                "if waiting.slot is None:",
            ),
            "what found no room": ("                is_copied = False\n", ""),
        },
    ),
    *mutants(
        "prepcached/filling.py",
        FOUND,
        {"items that jobs found": ('self.served["found_items"] += request.found_items', "pass")},
    ),
    *mutants(
        "control/session.py",
        FOUND,
        {
            "what no beat has told": ("                self.beat.tell_found(self, header, CLOSE_S)\n", ""),
            "holds of a session that a commit finds forgotten": (
                "                self.reopen(header)\n            raise",
                "                self._forget(header)\n            raise",
                "tests/unit/test_session.py -k commit",
            ),
        },
    ),
    *mutants(
        "data/report.py",
        FOUND,
        {"a share of what an artifact cost": (" * min(1.0, counts[number] / slot.ref.items)", "")},
    ),
]
