"""Markers: `plain(x)` and `tree(path)`, by which a user says how a value is to be keyed.

A marker changes the key, never what the function receives: `canonical_order` takes it off, but for one inside
an object, or in a key of a dict, which the function receives as it is.
"""

from __future__ import annotations

import operator
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prepcache.namedtuples import is_namedtuple

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plain(Generic[T]):
    """A value keyed by itself alone: no str or path inside it is looked up on the disk."""

    value: T


@dataclass(frozen=True, slots=True)
class Tree(Generic[T]):
    """The path of a directory, keyed by the names and bytes of its files, recursively."""

    value: T


def plain(value: T) -> Plain[T]:
    """Marks `value` as plain: a str in it that names a file counts as text, a path by its name only.

    The preprocessing function receives `value`.
    """
    return Plain(value)


def tree(path: T) -> Tree[T]:
    """Marks the path of a directory, so that the names and bytes of all files under it count.

    The preprocessing function receives `path`.

    Raises:
        TypeError: `path` is neither a str nor an `os.PathLike`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"tree() takes the path of a directory, not {type(path).__name__}")
    return Tree(path)


def rebuild(value: Any, function: Callable[[Any], Any]) -> Any:
    """A container with `function` applied to what it holds, not to keys; itself if nothing in it changed."""
    kind = type(value)
    is_dict = kind in (dict, OrderedDict)
    if not (is_dict or kind in (tuple, list, set, frozenset) or is_namedtuple(kind)):
        return value
    held = list(value.values() if is_dict else value)
    new = list(map(function, held))
    if all(map(operator.is_, new, held)):
        return value
    if not is_namedtuple(kind):
        return kind(zip(value, new, strict=True) if is_dict else new)
    made = kind._make(new)
    if state := getattr(value, "__dict__", None):
        made.__dict__.update(state)
    return made
