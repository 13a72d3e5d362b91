"""A data set that a function holds: how it counts in the function's key, and what cannot be.

Invariants:
    1. It counts by its samples, and by what a class derived from it added, not by what this job did with it.
    2. One that is not open yet is refused: it cannot be in the key that it is opened by.
    3. Where a function holds what it made itself, its user is told: nothing else shows why nothing hits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

from prepcache.errors import UnkeyableError

if TYPE_CHECKING:
    from prepcache.dataset import CachedDataset

_NOT_OPEN = (
    "it is a data set that is not open yet, so its own preprocess cannot refer to it. Make "
    "preprocess a function, or a method of another object, and pass it what it needs in config="
)
_OWN = frozenset({"items", "transform", "lazy", "_samples"})
"""The attributes of a data set itself. Others are of a class derived from it, whose methods may use them."""


class _Opening(threading.local):
    """The functions that this thread opens data sets of, the innermost last, and what is to be said."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, dict[str, None]]] = []


_OPENING = _Opening()


@contextmanager
def opening(function: Any) -> Iterator[dict[str, None]]:
    """While a function is keyed; gives what is to be said of it."""
    notes: dict[str, None] = {}
    _OPENING.stack.append((function, notes))
    try:
        yield notes
    finally:
        _OPENING.stack.pop()


def key_of(ds: CachedDataset[Any]) -> Any:
    """What counts of a data set.

    Raises:
        UnkeyableError: it is not open.
    """
    members = vars(ds)
    if "_samples" not in members:
        raise UnkeyableError(_NOT_OPEN)
    job, catalogue = members["_samples"].by.job, members["_samples"].catalogue
    if _OPENING.stack and _is_same(job.function, _OPENING.stack[-1][0]):
        note = (
            f"the function holds {ds!r}, which it created itself, so the key differs at every opening: "
            "keep it elsewhere, or name its attribute or variable in untracked="
        )
        _OPENING.stack[-1][1][note] = None
    chunks = {chunk for ref in catalogue.refs for chunk in ref.observed}
    # What is read after the samples were made is none of their inputs, though it may be kept for others.
    is_kept = not len(catalogue.missing) and all(slot is None or slot.ref for slot in catalogue.slots)
    rows = [
        *(() if is_kept else job.observed()),
        *(row for chunk in chunks for row in catalogue.observed[chunk]),
    ]
    observed = sorted({json.dumps(row, sort_keys=True) for row in rows})
    items = catalogue.distinct.digests[catalogue.distinct.inverse]
    added = {name: value for name, value in members.items() if name not in _OWN}
    return ds.recipe.digest, items, observed, ds.transform, added


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    return one is other
