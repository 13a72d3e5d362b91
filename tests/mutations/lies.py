"""A daemon that lies, or goes on for ever: what a job does not believe, and how often it asks."""

from __future__ import annotations

from mutations.mutant import mutants

TROUBLE = "tests/unit/test_fill_daemon_trouble.py"
WIRE = "tests/unit/test_wire.py"

MUTANTS = [
    *mutants(
        "control/connection.py",
        "tests/unit/test_transport.py -k begun",
        {
            "the rest of an answer": (
                "            self.is_alive, self.at = None, time.monotonic() + self.limit_s",
                "            pass",
            ),
        },
    ),
    *mutants(
        "protocol/wire.py",
        f"{WIRE} -k lease",
        {
            "items that were not asked for": (
                "if any(index >= count for index in self.granted):",
                "if False:",
            ),
            "an item twice": ("if len(set(self.granted)) < len(self.granted) or ", "if "),
            "a lease of nothing": (" or bool(self.granted) != (self.lease is not None):", ":"),
            "nobody has them": ("says_why or not (count and want)", "True"),
        },
    ),
    *mutants(
        "data/leasing.py",
        TROUBLE,
        {
            "looks in a row": ("                if self._looks > MAX_LOOKS:", "                if False:"),
            "why an earlier request was declined": (
                '        self.reason = ""\n        with',
                "        with",
            ),
        },
    ),
    *mutants(
        "data/commits.py",
        TROUBLE,
        {
            "looks at a commit": ("if (looks := looks + 1) > MAX_LOOKS:", "if False:"),
            "a lapsed lease is given back": (
                "forsake(self.session, lapsed or batch.leases)",
                "[setattr(held, 'is_dead', True) for held in lapsed or batch.leases]",
            ),
        },
    ),
    *mutants(
        "data/lazy.py",
        "tests/unit/test_keeper.py",
        {
            "a thread that waits in vain": (
                "            except PrepcacheError:\n                return\n        began",
                "            except PrepcacheError:\n                pass\n        began",
            ),
            "a store that fails twice": (
                "(outcome.is_retryable and not is_aside)",
                "outcome.is_retryable",
            ),
            "a store that fails once": (" or (outcome.is_retryable and not is_aside)", ""),
            "that it is said": (
                "                self._keep_no_more(outcome.reason)\n",
                "                self.is_declined = True\n",
            ),
            "what a commit that hangs still has": (
                "                self.adopt([batch])  #",
                "                pass  #",
            ),
            "what others have made of it": (" and not supply.catalogue.is_shared(batch.indices).all()", ""),
            "and once": ("        if not has_said and reason", "        if reason"),
            "what was set aside and is refused": (
                "                self._keep_no_more(str(error))\n            self._commit_waiting(until)",
                "                self._keep_no_more(str(error))\n                return\n"
                "            self._commit_waiting(until)",
            ),
            "what is asked when one is made": (
                "        self._commit_bytes = 0\n",
                "        self._commit_bytes = supply.commit_bytes()\n",
            ),
            "all ends together": ("        BACKLOG.note_wait(nbytes, time.monotonic() - began)\n", ""),
            "patience at the end": ("        with on_own_time(limit_s):\n", "        if True:\n"),
        },
    ),
    *mutants(
        "data/lazy.py",
        "tests/unit/test_keeper.py",
        {
            "a commit that hangs as the process ends": (
                "self.flush(began + limit_s)",
                "self.flush()",
            )
        },
    ),
    *mutants(
        "data/committer.py",
        "tests/unit/test_left_behind.py",
        {
            "a commit that takes too long": (
                "timeout=max(0.0, until - time.monotonic())",
                "timeout=None",
            ),
            "one left behind is counted": ("                BACKLOG.leave(job)\n", ""),
            "one left behind has ended": ("        BACKLOG.end(job)\n", ""),
            "it has one outcome": (
                "        if job.is_left:\n            return",
                "        if job.outcomes is None:\n            return",
            ),
            "what is lost to the daemon": (
                "                self._commits.session.waited_in_vain(waited_s)\n",
                "                pass\n",
            ),
            "leases that other commits wait for": (
                "                    held.behind.add(job)\n",
                "                    pass\n",
            ),
            "leases after the last": (
                "        forsake(self._commits.session, [held for held in job.leases if held.is_over])\n",
                "",
            ),
            "a late end with a reason": ("elif outcome.reason and not self._has_told:", "elif False:"),
            "where there is no thread": (
                "return self._commits.commit(batch, generation, limit_s)",
                "return self._commits.commit(batch, generation)",
            ),
            "whose time it is": ("with charged_while(partial(_is_waited_for, job)):", "if True:"),
            "it is waited for once": ("        if not self._is_awaited:\n", "        if True:\n"),
            "its hold": (
                "self._commits.session.drop_hold(outcome.committed.artifacts)",
                "pass",
            ),
            "its leases": ("                forsake(self._commits.session, outcome.batch.leases)\n", ""),
            "it is offered again": ("self._adopt([outcome.aside])", "pass"),
            "it is waited for at the end": (
                "            self._last.join(BACKLOG.goodbye_s())",
                "            pass",
            ),
            "and not long": ("self._last.join(BACKLOG.goodbye_s())", "self._last.join()"),
        },
    ),
    *mutants(
        "data/backlog.py",
        "tests/unit/test_left_behind.py",
        {
            "others are waited for": ("if self._left or self._clock()", "if self._clock()"),
            "what a child inherits": (" or self._clock() < self._doubted_until", ""),
            "one end for all": ("            if self._ends_at is None:\n", "            if True:\n"),
            "the speed that was seen": ("if nbytes >= TELLING_BYTES", "if False"),
            "the slowest": ("max(SLOWEST_BYTES_PER_S, nbytes / seconds)", "nbytes / seconds"),
            "the fastest": ("min(FIRST_BYTES_PER_S, max(", "max(0.0, max("),
            "small commits": ("nbytes >= TELLING_BYTES and ", ""),
            "what is the parent's": ("        self._left, self._ends_at = set(), None", "        pass"),
            "what commits may take together": (
                "max(0.0, self._spare_now_s() - beyond_s)",
                "self._spare_now_s()",
            ),
            "a share of the time": ("SPARE_SHARE * (self._clock() - self._spared_at)", "0.0"),
            "one that hangs is left in time": (
                "return min(allowed_s, commit_limit_s(nbytes) - 2 * SILENCE_S)",
                "return allowed_s",
            ),
        },
    ),
    *mutants(
        "data/commits.py",
        "tests/unit/test_left_behind.py tests/unit/test_keeper.py",
        {
            "samples in files leave the memory": ("        self.writers = list(kept)\n", ""),
            "halves without end": ("or time.monotonic() >= deadline.at", ""),
            "a store's error": ("outcome.is_retryable = isinstance(error, StoreError)", "pass"),
            "the limit of each half": (
                "self.session.commit(leases, staged, **deadline.limits)",
                "self.session.commit(leases, staged)",
            ),
        },
    ),
    *mutants(
        "control/handover.py",
        "tests/unit/test_session_leases.py",
        {
            "a file that the daemon may be at": (
                "                    is_theirs = True\n",
                "",
            ),
            "a file that it did answer for": (
                "                is_theirs = False  #",
                "                pass  #",
            ),
            "an upload's own end": (
                "limit_s=min(_silence_s(left_s - TRANSFER_LIMIT_S), _left_s(until))",
                "limit_s=_silence_s(left_s - TRANSFER_LIMIT_S)",
            ),
            "an upload's end": ("                until=until,\n", "                until=math.inf,\n"),
        },
    ),
    *mutants(
        "data/fill.py",
        "tests/unit/test_left_behind.py",
        {"leases of what is left behind": (" or outcome.is_left)", ")")},
    ),
    *mutants(
        "data/fill.py",
        TROUBLE,
        {
            "lapses in a row": ("        if self._lapses > MAX_LAPSES:", "        if False:"),
            "lapses of one batch": ("self._lapses + 1 if all", "self._lapses + len(outcomes) if all"),
        },
    ),
]
