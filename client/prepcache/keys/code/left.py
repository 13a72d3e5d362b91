"""What a function left behind in this process that has no stable bytes: a connection, a file that it opened.

    train = CachedDataset(...)      # the first call opens `DB`, which was None when it counted
    val = CachedDataset(...)        # `DB` counts, by a mark that no other data set has, here or elsewhere

It may hold what was made of the first items, so it cannot count as it was when the first data set was opened:
what is made with it is nobody else's. A process in which the first data set hits has the key of a fresh one.

Invariants:
    1. Only what counted by its bytes before, and was changed by the function, is let go so: what the job made
       is refused, with the ways out.
"""

from __future__ import annotations

import secrets
from types import MethodType
from typing import Any

_left: set[tuple[str, int]] = set()


def leave(label: str, function: Any) -> None:
    """Notes what a function has changed, by the label of a recipe that counts it."""
    _left.add(_place(label, function))


def is_left(label: str, value: Any) -> bool:
    """Whether a value stands where a function was seen to leave something."""
    return _place(label, value) in _left


def _place(label: str, value: Any) -> tuple[str, int]:
    """A label; that of the function itself is everybody's, so it goes by the object that it is bound to."""
    if label != "preprocess":
        return label, 0
    return label, id(value.__self__ if isinstance(value, MethodType) else value)


def new_mark() -> bytes:
    """What stands in a recipe for objects that have no stable bytes: no other recipe has it."""
    return secrets.token_bytes(16)
