"""Isolated users: what keeps one user's recipes, entries and jobs from another's."""

from __future__ import annotations

from mutations.mutant import mutants

API = "tests/contract/test_api_isolation.py"

MUTANTS = [
    *mutants(
        "prepcached/auth.py",
        API,
        {
            "who cannot be told apart": ("peer.uid == self._unmapped", "False"),
            "who may share all the same": ("unmapped if is_by_user else None", "unmapped"),
            "who is confined": ("not self.is_by_user or uid in self._trusted", "True"),
            "the trusted": ("not self.is_by_user or uid in self._trusted", "not self.is_by_user"),
            "the scope of the trusted": ("scopes.scope(TRUSTED_UID if owner is None else owner)", '"."[1:]'),
        },
    ),
    *mutants(
        "prepcached/daemon.py",
        API,
        {
            "the scope of a session": ("        session.scope = caller.scope\n", ""),
            "those that outlived the daemon": ("is_alive, self.auth.scope)", "is_alive)"),
            "plain recipes for who is waited for": ("map(scopes.digest, self.leases", "map(str, self.leases"),
        },
    ),
    *mutants(
        "prepcached/peer.py",
        "tests/unit/test_peer.py",
        {
            "the highest uids": ('"=iII"', '"=3i"'),
            "whom a namespace does not map": ("if sum(counts) < _ALL_UIDS:", "if False:"),
        },
    ),
    *mutants(
        "prepcached/rows.py",
        API,
        {
            "the scope of one that outlived the daemon": ("            scope=row.scope,\n", ""),
            "one that shared with others": ("if row.scope != scope_of(row.uid):", "if False:"),
        },
    ),
    *mutants(
        "prepcached/filling.py",
        API,
        {"the scope of a look-up": ("request.recipe + scope, self.misses", "request.recipe, self.misses")},
    ),
    *mutants(
        "api/leases.py",
        API,
        {"who looks up": (", exchange.caller(request).scope)", ")")},
    ),
    *mutants(
        "api/sessions.py",
        API,
        {"other users' jobs": ("caller.confined_to is None or", "True or")},
    ),
    *mutants(
        "api/overview.py",
        API,
        {"names on the page": ("page.MAX_ROWS + 1, caller.confined_to", "page.MAX_ROWS + 1, None")},
    ),
    *mutants(
        "api/entries.py",
        API,
        {
            "the listing": ("owner if seen is None else seen,", "owner,"),
            "one entry": ('hex64(key, "key"), caller.confined_to', 'hex64(key, "key"), None'),
            "of one's own scope": (", caller.confined_to, caller.scope)", ", caller.confined_to)"),
            "what is pinned": (
                "return await daemon.quick(call, key, owner, exchange.caller(request).scope)",
                "return await daemon.quick(call, key)",
            ),
        },
    ),
    *mutants(
        "api/data.py",
        API,
        {
            "bytes": ("owner = caller.confined_to", "owner = None"),
            "bytes of one's own": ('hex64(key, "key"), owner, caller.scope)', 'hex64(key, "key"), owner)'),
        },
    ),
    *mutants(
        "api/care.py",
        API,
        {
            "verify": ("is_awaited, exchange.caller(request).confined_to", "is_awaited, None"),
            "whose a job takes away": ("asked.differs, owner)", "asked.differs)"),
        },
    ),
    *mutants(
        "api/recipes.py",
        API,
        {
            "the recipes of others": (
                "scope = None if caller.confined_to is None else caller.scope",
                "scope = None",
            ),
            "a recipe of another's": ("if caller.confined_to is not None:", "if False:"),
            "one's own recipe first": (
                "return store.recipe(digest + caller.scope)",
                "raise NotFound(digest)",
            ),
        },
    ),
    *mutants(
        "api/explain.py",
        API,
        {"misses of one's own": ("all_misses[caller.scope]", 'all_misses[""]')},
    ),
    *mutants(
        "store/commit.py",
        API,
        {
            "the same artifact of two users": (
                "if any(r.recipe_id != row.id for r in known):",
                "if False:",
            ),
            "what a commit replaces": (", artifacts.c.recipe_id == row.id)", ")"),
        },
    ),
    *mutants(
        "store/merge.py",
        API,
        {"what a merge replaces": ("queries.IS_LIVE, of_recipe)", "queries.IS_LIVE)")},
    ),
    *mutants(
        "store/staging.py",
        API,
        {"the mark of a scope": ("    if scope:\n", "    if False:\n")},
    ),
    *mutants(
        "store/index.py",
        API,
        {"the mode of the index": ("        _make_private(path)\n", "")},
    ),
]
