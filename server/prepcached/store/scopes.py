"""Scoped recipes: of one digest, the recipe that users share, and one of each user who shares with nobody.

Where users are isolated (auth.py), each has recipes of his own: other rows, generations, leases and artifacts
than another user's of the same digest. So nothing that a look-up, a lease or a commit does can touch, or tell
of, what is another's.

A scoped recipe is written `DIGEST` or `DIGEST.OWNER`; its scope is what follows the digest, "" for what is
shared. In the index it is the digest's 32 bytes, and 8 more of its owner.

Invariants:
    1. A scope comes from the kernel's word on a caller, never from a request: messages name plain digests.
    2. A recipe's scope is in the name of its file, `recipes/DIGEST[.OWNER].json`, an artifact's in its file's
       extended attributes (staging.py): an index that is made again from files has the same scopes. Where
       these were lost, or a filesystem has none, the recipe's files tell, or it is nobody's (adoption.py).
"""

from __future__ import annotations

import re

from prepcache import errors
from prepcache.digests import DIGEST_BYTES, RecipeDigest, is_hex64

_OWNER_BYTES = 8
_SCOPE = re.compile(r"(\.-?(0|[1-9][0-9]{0,9}))?\Z")


def scope(owner: int) -> str:
    """The scope of one owner's recipes."""
    return f".{owner}"


def scope_of(recipe: str) -> str:
    """A scoped recipe's scope."""
    return recipe.removeprefix(digest(recipe))


def is_scope(text: str) -> bool:
    """Whether this may follow a digest."""
    return _SCOPE.match(text) is not None


def is_scoped(text: str) -> bool:
    """Whether this names a recipe: 64 lower-case hex digits, and perhaps an owner."""
    return is_hex64(text[: 2 * DIGEST_BYTES]) and is_scope(text[2 * DIGEST_BYTES :])


def packed(recipe: str) -> bytes:
    """A scoped recipe as the index has it.

    Raises:
        BadRequest: it is none.
    """
    if not is_scoped(recipe):
        raise errors.BadRequest(
            f"{recipe[:80]!r} is not a recipe digest: 64 lower-case hex digits", field="recipe"
        )
    digest, _, owner = recipe.partition(".")
    return bytes.fromhex(digest) + (int(owner).to_bytes(_OWNER_BYTES, signed=True) if owner else b"")


def text(recipe: bytes) -> str:
    """A scoped recipe of the index, written."""
    owner = recipe[DIGEST_BYTES:]
    return digest(recipe) + (scope(int.from_bytes(owner, signed=True)) if owner else "")


def digest(recipe: bytes | str) -> RecipeDigest:
    """The plain digest."""
    if isinstance(recipe, str):
        return RecipeDigest(recipe.partition(".")[0])
    return RecipeDigest(recipe[:DIGEST_BYTES].hex())
