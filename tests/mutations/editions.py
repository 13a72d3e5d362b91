"""Editions: what keeps samples that a refresh replaced from coming back."""

from __future__ import annotations

from mutations.mutant import mutants

CATALOGUE = "tests/unit/test_dataset_catalogue.py -k 'edition or refresh'"
STORE = "tests/unit/store/test_store_editions.py"
JOBS = "tests/e2e/test_dataset_refresh.py"

MUTANTS = [
    *mutants(
        "data/catalogue.py",
        CATALOGUE,
        {
            "the highest edition first": (
                "for ref in sorted(refs, key=lambda ref: -ref.edition):",
                "for ref in refs:",
            ),
            "an item moves once": ("        is_stale[target] = False\n", ""),
            "no lower edition for a refresh": (" if ref.edition >= edition else None", ""),
            "the edition of pieces": (
                "slot.edition == edition and self._is_read_through",
                "self._is_read_through",
            ),
            "what only this job has": (
                "            stale += self._own  #",
                "            stale += self._own if is_own else []  #",
                "tests/unit/test_keeper.py -k stored_twice",
            ),
            "half of a new item": ("            if pieces:\n                return []\n", ""),
        },
    ),
    *mutants(
        "data/supply.py",
        JOBS,
        {
            "an edition above all": (
                "            self.catalogue.refresh()",
                "            self.catalogue.edition = 1",
            ),
        },
    ),
    *mutants(
        "data/collect.py",
        JOBS,
        {
            "the edition of what is written": (
                "        self._writer = artifact.Writer(task.recipe.digest, task.catalogue.edition)",
                "        self._writer = artifact.Writer(task.recipe.digest)",
            ),
        },
    ),
    *mutants(
        "store/removal.py",
        STORE,
        {"the lower editions go too": ("            lower.write(conn)\n", "")},
    ),
    *mutants(
        "store/quarantine.py",
        STORE,
        {"the lower editions go too": ("                lower.write(conn)\n", "")},
    ),
    *mutants(
        "store/merge.py",
        STORE,
        {
            "merges within an edition": (
                "setdefault((owner, observed, edition), [])",
                "setdefault((owner, observed, 0), [])",
            ),
            "what holds the same items": (
                " or any(row.edition >= header.edition for row in older):",
                ":",
            ),
        },
    ),
    *mutants(
        "store/commit.py",
        STORE,
        {
            "a commit of before a refresh": (
                "    if any(r.edition > new[r.key.hex()].header.edition for r in older):",
                "    if False:",
            ),
        },
    ),
    *mutants(
        "store/adoption.py",
        STORE,
        {
            "the higher edition of a key": (
                "if edition > highest.get(one, -1):",
                "if one not in highest:",
            )
        },
    ),
]
