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
                "            except PrepcacheError:\n                return\n        self.flush",
                "            except PrepcacheError:\n                pass\n        self.flush",
            )
        },
    ),
    *mutants(
        "data/lazy.py",
        "tests/e2e/test_fill_trouble.py -k 'hangs_in_a_commit and lazy'",
        {
            "a commit that hangs as the process ends": (
                "self.flush(BACKLOG.allowed_s(self._collected.nbytes))",
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
            "one left behind is counted": ("            BACKLOG.leave()\n", "            pass\n"),
            "one left behind is counted once": ("if is_first:  # else", "if True:  # else"),
            "one left behind has ended": ("        BACKLOG.end()\n", ""),
            "its samples leave the memory": ("        job.batch.writers = list(kept)\n", ""),
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
            "what is the parent's": ("        self._left, self._ends_at = 0, None", "        pass"),
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
