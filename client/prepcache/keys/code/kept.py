"""What cached functions (`functools.cache`), and those that numba has compiled with the globals of that time,
keep from before something that they reach was changed.

    prep.SCALE = 1; CachedDataset(...)      # calls prep.table(), which is kept
    prep.SCALE = 2; CachedDataset(...)      # is given it again

So is who computes without prepcache, but in this process only: in one that began with 2 the table is another.
So what such a function reached, as it was when its cache was empty, counts beside what it reaches now.

Invariants:
    1. A cache that is empty, or that no recipe of this process met before, counts by its function alone: a
       key is that of a process that begins with these values.

Not here: what was kept before the first recipe, or by the instance (`cached_property`, a cached method).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from blake3 import blake3

from prepcache.keys.code.dependencies import Dependencies
from prepcache.keys.code.fleeting import is_compiled_by_numba
from prepcache.keys.code.readable import Value

Counted = dict[str, str | None]
_met: weakref.WeakKeyDictionary[Any, Counted] = weakref.WeakKeyDictionary()
"""What a cached function may keep: what counted, by label, in the recipe that met it with an empty cache."""


def kept_by(reach: Dependencies, walk: Callable[[], Dependencies]) -> Iterator[tuple[str, Value]]:
    """Rows for the cached functions that keep what they gave for other values than those of now.

    Args:
        reach: what is counted.
        walk: begins another one.
    """
    now = _counted(reach)
    for label, cached in reach.hooks.caches:
        before = _met.get(cached)
        is_compiled = is_compiled_by_numba(cached)
        if before is None or not (cached.overloads if is_compiled else cached.cache_info().currsize):
            _met[cached] = dict(now)
            continue
        changed = {name for name, digest in before.items() if now.get(name, digest) != digest}
        if changed:
            reached = walk()
            reached.add(label, cached.py_func if is_compiled else cached.__wrapped__)
            changed &= _counted(reached).keys()
        if changed:
            names = sorted(changed)
            state = "\0".join(f"{name}\0{before[name]}" for name in names)
            digest = blake3(state.encode("utf-8", "surrogatepass")).hexdigest()
            yield f"{label}, kept from before {', '.join(names)} changed", Value(digest, "", is_secret=True)
        else:
            before.update(now)


def _counted(reach: Dependencies) -> Counted:
    variables = {f"${name}": value for name, value in reach.variables.items()}
    return {label: value.digest for label, value in reach.values.items()} | variables
