"""Scoped recipes: of one digest, the recipe that users share, and one of each user who shares with nobody.

Where users are isolated (auth.py), each has recipes of his own: other rows, generations, leases and artifacts
than another user's of the same digest. A scoped recipe is written `DIGEST` or `DIGEST.OWNER`; its scope is
what follows the digest, "" for what is shared.

Invariants:
    1. A scope comes from the kernel's word on a caller, never from a request: messages name plain digests.
    2. An artifact's scope is in its file's extended attributes (staging.py): an index that is made again from
       files has the same scopes. A filesystem without them is refused where users are isolated (server.py).
"""

from __future__ import annotations

import re

from prepcache import errors
from prepcache.digests import DIGEST_BYTES, RecipeDigest, is_hex64

_DIGITS = 2 * DIGEST_BYTES
_SCOPE = re.compile(r"(\.-?(0|[1-9][0-9]{0,9}))?\Z")


def scope(owner: int) -> str:
    return f".{owner}"


def digest(recipe: str) -> RecipeDigest:
    return RecipeDigest(recipe[:_DIGITS])


def scope_of(recipe: str) -> str:
    return recipe[_DIGITS:]


def is_scope(text: str) -> bool:
    return _SCOPE.match(text) is not None


def split(recipe: str) -> tuple[bytes, str]:
    """A scoped recipe as the index has it: its digest's bytes, and its scope; BadRequest if it is none."""
    if not (is_hex64(digest(recipe)) and is_scope(scope_of(recipe))):
        raise errors.BadRequest(
            f"{recipe[:80]!r} is not a recipe digest: 64 lower-case hex digits", field="recipe"
        )
    return bytes.fromhex(digest(recipe)), scope_of(recipe)
