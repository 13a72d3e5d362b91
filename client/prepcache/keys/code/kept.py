"""What cached functions (`functools.cache`), and those that numba has compiled with the globals of that time,
keep from before something that they reach was changed.

    prep.SCALE = 1; CachedDataset(...)      # calls prep.table(), which is kept
    prep.SCALE = 2; CachedDataset(...)      # is given it again

So is who computes without prepcache, but in this process only: in one that began with 2 the table is another.
So what such a function reached, as it was when its cache was empty, counts beside what it reaches now.

What a cache holds that was put there while no data set's function was watched counts by value, too: nothing
was seen of the files that it was read from.

Invariants:
    1. A cache that is empty, or was filled by watched functions alone and was not met by a recipe before,
       counts by its function alone: a key is that of a process that begins with these values.

Not here: what is kept by the instance (`cached_property`), which counts with it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.dependencies import Dependencies
from prepcache.keys.code.describe import Value
from prepcache.keys.code.fleeting import is_compiled_by_numba
from prepcache.keys.observation.job_code import was_filled_unwatched

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
        if not is_compiled and was_filled_unwatched(cached) and not reach.is_untracked(label):
            yield f"{label}, what it keeps", _value_of(reach, label, cached)
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


def _value_of(reach: Dependencies, label: str, cached: Any) -> Value:
    """What a cache holds, by its arguments.

    Raises:
        UnkeyableError: it has no stable bytes.
    """
    try:
        return Value(reach.hooks.digest(label, _contents(cached)), "", is_secret=True)
    except UnkeyableError as error:
        name = label.rpartition(".")[2]
        raise UnkeyableError(
            f"{label} was called before the data set was opened, and what it keeps can't be in a key "
            f"({error.message}): clear its cache before, or leave it out with untracked=({name!r},)",
            path=label,
        ) from error


def _contents(cached: Any) -> dict[Any, Any]:
    """What `functools.cache` and `functools.lru_cache` hold in C.

    Raises:
        UnkeyableError: another release of Python, which holds it in another way.
    """
    count = cached.cache_info().currsize
    for held in gc.get_referents(cached):
        if type(held) is dict and held is not cached.__dict__ and len(held) == count:
            return {_arguments(key): _result(cached, key, value) for key, value in list(held.items())}
    raise UnkeyableError("what the cache holds can't be told")


def _arguments(key: Any) -> Any:
    """Arguments without the mark that stands before those by keyword."""
    return tuple(part for part in key if type(part) is not object) if isinstance(key, tuple) else key


def _result(cached: Any, key: Any, value: Any) -> Any:
    """What was given; a bounded cache has it in a link that tells nothing, and gives it again when asked.

    Raises:
        UnkeyableError: the arguments can't be told.
    """
    if type(value).__name__ != "_lru_list_elem":
        return value
    if not isinstance(key, tuple):
        return cached(key)
    if cached.cache_parameters()["typed"] or any(type(part) is object for part in key):
        raise UnkeyableError("what the cache holds can't be told")
    return cached(*key)


def _counted(reach: Dependencies) -> Counted:
    variables = {f"${name}": value for name, value in reach.variables.items()}
    return {label: value.digest for label, value in reach.values.items()} | variables
