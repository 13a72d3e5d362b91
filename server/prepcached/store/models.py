"""The index's tables. One row an artifact; everything here can be made again from the files.

Invariants:
    1. A row of `artifacts` names a file that is there (NOTE [ Commit order ] in durable.py).
    2. Among a recipe's rows a key is unique, and so is a digest among all rows. Recipes of several
       scopes (scopes.py) may have rows of one key.
    3. `recipes.generation` rises in the same transaction as every commit and every removal;
       `removed_generation` is its value at the last removal: who has seen less must take the whole list.
    4. `doomed` names files whose rows were deleted and which may not have been unlinked yet.

Keys and digests are BLOBs of 32 bytes: half of hex, and the index has up to millions.
"""

from __future__ import annotations

import sqlalchemy as sa

VERSION = 9
"""`PRAGMA user_version`; an index of another version is deleted and made again."""

metadata = sa.MetaData()

recipes = sa.Table(
    "recipes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("scope", sa.Text, nullable=False),  # scopes.py
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("removed_generation", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("parts", sa.LargeBinary),  # JSON, compressed; NULL where only artifacts are known
    sqlite_autoincrement=True,
)

sa.Index("recipes_digest", recipes.c.digest, recipes.c.scope, unique=True)

producers = sa.Table(
    "producers",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("json", sa.Text, nullable=False, unique=True),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.LargeBinary(32), nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("recipe_id", sa.Integer, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("size_bytes", sa.Integer, nullable=False),
    sa.Column("disk_bytes", sa.Integer, nullable=False),
    sa.Column("items", sa.Integer, nullable=False),
    sa.Column("rows", sa.Integer, nullable=False),
    sa.Column("cost_s", sa.Float, nullable=False),
    sa.Column("owner", sa.Integer, nullable=False),
    sa.Column("producer_id", sa.Integer, nullable=False),
    sa.Column(
        "edition", sa.Integer, nullable=False
    ),  # refreshes before it: index/recipe_index.py of the client
    sa.Column("observed", sa.Text),  # ids of chunks: observed.py; NULL when nothing was observed
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False),
    sa.Column("is_pinned", sa.Boolean(create_constraint=False), nullable=False),
    sqlite_autoincrement=True,
)

sa.Index("artifacts_digest", artifacts.c.digest, unique=True)
sa.Index("artifacts_key", artifacts.c.key, artifacts.c.recipe_id, unique=True)
sa.Index("artifacts_recipe", artifacts.c.recipe_id, artifacts.c.generation)
sa.Index(
    "artifacts_refreshed", artifacts.c.recipe_id, artifacts.c.edition, sqlite_where=sa.text("edition > 0")
)
sa.Index("artifacts_coldest", artifacts.c.used_at)
sa.Index("artifacts_owner", artifacts.c.owner, artifacts.c.used_at)

observed = sa.Table(
    "observed",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("recipe_id", sa.Integer, nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("json", sa.Text, nullable=False),
)

sa.Index("observed_recipe", observed.c.recipe_id, observed.c.digest, unique=True)

doomed = sa.Table(
    "doomed",
    metadata,
    sa.Column("digest", sa.LargeBinary(32), primary_key=True),
)

history = sa.Table(
    "history",
    metadata,
    sa.Column("at", sa.Float, primary_key=True),
    sa.Column("hit_items", sa.Float, nullable=False),
    sa.Column("miss_items", sa.Float, nullable=False),
    sa.Column("saved_s", sa.Float, nullable=False),
    sa.Column("disk_bytes", sa.Float, nullable=False),
)

notes = sa.Table(
    "notes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Integer, nullable=False),
)
