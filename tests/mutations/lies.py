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
                "forsake(self._session, lapsed or batch.leases)",
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
        "data/fill.py",
        TROUBLE,
        {"lapses in a row": ("            if self._lapses > MAX_LAPSES:", "            if False:")},
    ),
]
