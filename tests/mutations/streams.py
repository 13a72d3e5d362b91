"""Streams: whose share an item is, what is read, and where it is found."""

from __future__ import annotations

from mutations.mutant import mutants

SPLIT = "tests/unit/test_split.py"
READING = "tests/unit/test_reading.py"
SHELF = "tests/unit/test_shelf.py"
CATALOGUE = "tests/unit/test_dataset_catalogue.py"
JOBS = "tests/e2e/test_iterable.py"
TROUBLE = "tests/e2e/test_iterable_trouble.py"

MUTANTS = [
    *mutants(
        "data/split.py",
        SPLIT,
        {
            "ranks before workers": (
                "return self.worker * self.ranks + self.rank",
                "return self.rank * self.workers + self.worker",
            ),
            "whole batches": ("// batch % self.workers", "% self.workers"),
            "a rank that was told": ("    if known is not None:\n        return known\n", ""),
            "who deals out": ("    if _is_dealt_out():\n        return Ranks()\n", ""),
            "items that split themselves": ("    workers._worker_info = None\n", ""),
        },
    ),
    *mutants(
        "data/listed.py",
        JOBS,
        {
            "whole batches for workers": (
                "1 if self._is_expanded else batch_here()",
                "1",
                f"{JOBS} -k workers_over",
            ),
        },
    ),
    *mutants(
        "data/reading.py",
        READING,
        {
            "an iterator once": ("        if self._begun_in == os.getpid():", "        if False:"),
            "a file that is shared": (
                "if os.getpid() != self._made_in and (file := _open_file(self._items)):",
                "if file := '':",
            ),
            "an item as it is read": (
                "                        item = copied(item)\n",
                "                        pass\n",
            ),
            "large items": ("while len(items) < count and nbytes < READ_BYTES:", "while len(items) < count:"),
            "slow items": ("if self._clock() > until:", "if False:"),
        },
    ),
    *mutants(
        "data/shelf.py",
        SHELF,
        {
            "all of a digest": (
                "            at = at[(table[row[at]] == words[query[at]]).all(axis=1)]\n",
                "",
            ),
            "the highest edition first": ("sorted(hits, key=lambda hit: -hit[0].edition)", "hits"),
            "what only this job has": (
                "is_stale | (self.places.artifact == MISSING)",
                "self.places.artifact == MISSING",
            ),
            "what a whole answer lacks": (" if is_complete else []", " if False else []"),
        },
    ),
    *mutants(
        "data/catalogue.py",
        SHELF,
        {
            "what could not be mapped": (
                "            edition = max(edition, ref.edition)  # what",
                "            pass  # what",
            ),
            "another recipe's samples": (
                "(mapped.recipe, mapped.key) != (recipe, ref.key)",
                "mapped.key != ref.key",
                f"{CATALOGUE} -k told_of_it",
            ),
            "another entry's": (
                "(mapped.recipe, mapped.key) != (recipe, ref.key)",
                "mapped.recipe != recipe",
                f"{CATALOGUE} -k told_of_it",
            ),
            "inputs that were not told": (
                '        if mapped.meta["observed"] and not ref.observed:\n',
                "        if False:\n",
                f"{CATALOGUE} -k told_of_it",
            ),
        },
    ),
    *mutants(
        "data/stock.py",
        TROUBLE,
        {
            "a daemon that comes later": (
                "if not self.is_known and self.mode",
                "if False and self.mode",
                f"{TROUBLE} -k comes_after_the_opening_is_asked",
            ),
        },
    ),
    *mutants(
        "data/stream.py",
        JOBS,
        {
            "a recipe for each class": (
                "places.setdefault(hasher.classes_of(item), []).append(place)",
                "places.setdefault(frozenset(hasher.classes), []).append(place)",
                f"{JOBS} -k classes",
            ),
            "what was read before an error": (
                "            if error is not None:\n                raise error\n            is_over",
                "            is_over",
                f"{TROUBLE} -k raised",
            ),
        },
    ),
]
