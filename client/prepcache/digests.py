"""Digests: the hex and byte forms of BLAKE3, and the two names made of them.

Invariants:
    1. A `Key` names an entry, a `Digest` names an artifact's bytes. Both are 64 hex digits; the type
       checker keeps them apart.
    2. In bulk, item digests travel as one `uint8[n, 32]` array or the n * 32 bytes of it.
"""

from __future__ import annotations

import re
from typing import NewType

Key = NewType("Key", str)
Digest = NewType("Digest", str)
RecipeDigest = NewType("RecipeDigest", str)

DIGEST_BYTES = 32
KEY_DOMAIN = b"prepcache key v1\0"
"""Separates entry keys from every other use of BLAKE3; its number rises when the inputs change."""

_HEX64 = re.compile(r"[0-9a-f]{64}\Z")


def is_hex64(text: str) -> bool:
    """Whether `text` is 64 lower-case hex digits: the only form that may become a file name."""
    return _HEX64.match(text) is not None


def entry_key(recipe: RecipeDigest, item_digests: bytes | memoryview) -> Key:
    """The key of the entry that holds these items (n * 32 bytes, in row order) of this recipe."""
    from blake3 import blake3

    hasher = blake3(KEY_DOMAIN)
    hasher.update(bytes.fromhex(recipe))
    hasher.update(item_digests)
    return Key(hasher.hexdigest())
