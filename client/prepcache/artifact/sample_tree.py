"""Trees: a sample taken apart into its leaves; reader.py puts them together again.

A tree is JSON: a leaf is its number in walking order, a container is
    ["list", [child, ...]]   ["tuple", [child, ...]]   ["dict", [[key, child], ...]]
    ["named", module, name, [field, ...], [child, ...]]     a namedtuple

Invariants:
    1. Types are matched exactly, not by subclass: what comes back is what went in. What cannot come
       back as itself is refused, by path, never converted.
    2. Two samples share a column group exactly if their signatures are equal; a signature holds every
       container, key, kind, dtype and number of axes, and no size.
    3. Nothing is imported at the word of a file: a namedtuple is the class of that name if its module
       is already loaded and the class has those fields, else one made here with the same fields.
"""

from __future__ import annotations

import itertools
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from functools import lru_cache
from keyword import iskeyword
from typing import Any, cast

import numpy as np

from prepcache.artifact import columns
from prepcache.artifact.columns import Leaf
from prepcache.errors import SampleError
from prepcache.namedtuples import is_namedtuple

Tree = Any
"""The JSON form of a tree: an int or one of the lists above."""
Signature = tuple[Any, ...]

MAX_DEPTH = 64
"""Containers within containers; deeper is most likely a cycle."""

MAX_FIELDS = 1024
"""Of a namedtuple: its class is compiled from them, which takes seconds for a hundred thousand."""

_ARRAYS = (np.ndarray, np.memmap)
"""A slice of a memmap comes back as an array: equal in value, and in memory."""
_KEY_TYPES = (str, int, bool, type(None))
_INT64 = 1 << 63


class _Refused(Exception):
    """A leaf or container that no column holds: why, then where, innermost first."""


def signature(sample: Any) -> tuple[Signature, list[Any]]:
    """Takes a sample apart: its signature, and its leaves in walking order, uncopied. Raises SampleError,
    with the path, where something in it cannot come back as itself."""
    parts: list[Any] = []
    leaves: list[Any] = []
    try:
        _walk(sample, parts, leaves, 0)
    except _Refused as refused:
        reason, *where = refused.args
        path = "".join(["sample", *reversed(where)])
        raise SampleError(f"{path}: {reason}", leaf=path) from None
    return tuple(parts), leaves


def describe(sample: Any, sign: Signature) -> tuple[Tree, list[Leaf], list[str]]:
    """The tree of a sample with this signature, what its leaves are, and the leaves' dotted paths."""
    numbers = itertools.count()

    def node(value: Any) -> Tree:
        kind = type(value)
        if kind is dict:
            return ["dict", [[key, node(child)] for key, child in value.items()]]
        if kind is tuple or kind is list:
            return [kind.__name__, [node(child) for child in value]]
        if is_namedtuple(kind):
            names = kind.__module__, kind.__qualname__, list(value._fields)
            return ["named", *names, [node(child) for child in value]]
        return next(numbers)

    leaves = [part for part in sign if isinstance(part, Leaf)]
    return node(sample), leaves, [".".join(path) for path, _ in leaves_of(sample)]


def leaves_of(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of any value or batch, with their paths: any mapping, tuple or list is a container. What
    lies too deep is left out."""
    if isinstance(value, Mapping):
        children: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, tuple | list):
        children = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    else:
        yield path, value
        return
    if len(path) < MAX_DEPTH:
        for name, child in children:
            yield from leaves_of(child, (*path, str(name)))


def rebuilt(
    value: Any,
    leaf: Callable[[tuple[str, ...], Any], Any],
    path: tuple[str, ...] = (),
    sequence: Callable[[list[Any]], Any] | None = None,
    whole: type | tuple[()] = (),
) -> Any:
    """What `leaves_of` takes apart, with the leaves that `leaf(path, old)` gives.

    Args:
        sequence: makes what tuples and lists become, except namedtuples; by default they keep their types.
        whole: containers that are leaves.
    """
    if isinstance(value, whole):
        return leaf(path, value)
    if isinstance(value, Mapping):
        made = {key: rebuilt(child, leaf, (*path, str(key)), sequence, whole) for key, child in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return made
        filled = copy(value)  # it may hold more than its items, as a defaultdict does
        filled.update(made)
        return filled
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        pairs = zip(names, value, strict=True)
        children = [rebuilt(child, leaf, (*path, str(name)), sequence, whole) for name, child in pairs]
        return type(value)(*children) if hasattr(value, "_fields") else (sequence or type(value))(children)
    return leaf(path, value)


def copied(sample: Any, depth: int = 0) -> Any:
    """A sample in memory of its own; what no column can hold is left as it is."""
    kind = type(sample)
    if depth > MAX_DEPTH:
        return sample
    if kind is dict:
        return {key: copied(value, depth + 1) for key, value in sample.items()}
    if kind is list or kind is tuple:
        return kind(copied(value, depth + 1) for value in sample)
    if is_namedtuple(kind):
        return cast(Any, kind)._make(copied(value, depth + 1) for value in sample)
    if kind in _ARRAYS:
        return np.array(sample)
    if kind is not _torch_tensor():
        return sample
    try:  # without torch's threads, which would spin for 4 ms after a large copy
        return sys.modules["torch"].from_numpy(sample.numpy().copy("K"))
    except (TypeError, RuntimeError):  # numpy has no such dtype, or it has a graph
        return sample.clone()


_SIMPLE = {
    int: Leaf("int"),
    float: Leaf("float"),
    bool: Leaf("bool"),
    str: Leaf("str"),
    bytes: Leaf("bytes"),
    type(None): Leaf("none"),
}


def _walk(value: Any, parts: list[Any], leaves: list[Any], depth: int) -> None:
    kind = type(value)
    leaf = _SIMPLE.get(kind)
    if leaf is not None:
        if kind is int and not -_INT64 <= value < _INT64:
            raise _Refused("an int must fit into 64 bits; return str(x), or split it")
    elif kind in _ARRAYS:
        leaf = _leaf("ndarray", value.dtype, value.ndim)
    elif kind is tuple or kind is list or kind is dict or is_namedtuple(kind):
        _walk_container(value, kind, parts, leaves, depth)
        return
    elif kind is _torch_tensor():
        # A detached copy would come back from the cache where the function returns one with a graph.
        if value.requires_grad or not value.is_cpu or value.is_nested or str(value.layout) != "torch.strided":
            ways = "x.detach(), x.cpu() or x.to_dense()"
            raise _Refused(f"a tensor must be dense, on the CPU and detached from autograd; return {ways}")
        leaf = _leaf("tensor", value.dtype, value.dim())
    elif issubclass(kind, np.number | np.bool_) and kind.__module__ == "numpy":
        leaf = _leaf("scalar", value.dtype, 0)
    else:
        raise _Refused(_why_not(kind))
    parts.append(leaf)
    leaves.append(value)


def _walk_container(value: Any, kind: Any, parts: list[Any], leaves: list[Any], depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Refused(f"containers are nested more than {MAX_DEPTH} deep, or contain themselves")
    parts += kind, len(value)
    keys, children = range(len(value)), value
    if kind is dict:
        keys, children = value, value.values()
    elif kind is not tuple and kind is not list:
        if len(value) > MAX_FIELDS:
            raise _Refused(f"a namedtuple has over {MAX_FIELDS} fields; return a dict or a tuple")
        keys = kind._fields
    key: Any = None
    try:
        for key, child in zip(keys, children, strict=True):
            if kind is dict:
                if type(key) not in _KEY_TYPES:
                    raise _Refused(f"a dict key must be a str, int, bool or None, not {_name(type(key))}")
                if type(key) is int and not -_INT64 <= key < _INT64:
                    raise _Refused("an int dict key must fit into 64 bits")
                parts += key, type(key)  # True == 1 and hash alike: the type keeps their trees apart
            _walk(child, parts, leaves, depth + 1)
    except _Refused as refused:
        refused.args += (f".{key}" if is_namedtuple(kind) else f"[{key!r}]",)
        raise


def _torch_tensor() -> Any:
    """The class of tensors, if torch is loaded, or None."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


@lru_cache(maxsize=512)
def _leaf(kind: str, dtype: Any, ndim: int) -> Leaf:
    name = columns.describe_dtype(dtype)
    if name is None:
        way_out = "convert it to numbers, as x.astype(float), or return x.tolist()"
        raise _Refused(f"values of {dtype!r} cannot be stored; {way_out}")
    if ndim > columns.MAX_NDIM:
        raise _Refused(f"an array has {ndim} axes; the limit is {columns.MAX_NDIM}")
    return Leaf(kind, name, ndim)


def _why_not(kind: type) -> str:
    way = "tensors, arrays, real numbers, str, bytes or None, or a dict, list, tuple or namedtuple of those"
    if plain := [base.__name__ for base in kind.__mro__ if base in (*_SIMPLE, dict, list, tuple)]:
        way = f"{plain[0]}(x)"
    elif hasattr(kind, "__dataclass_fields__"):
        way = "dataclasses.asdict(x)"
    elif (tensor := _torch_tensor()) is not None and issubclass(kind, tensor):
        way = "x.detach().as_subclass(torch.Tensor)"
    elif issubclass(kind, np.ma.MaskedArray):
        way = "x.filled()"
    elif hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
        way = "numpy.array(x)"
    elif issubclass(kind, Iterator):
        way += "; with expand=True a function may yield several samples for one item"
    return f"a value of type {_name(kind)} cannot be stored; return {way}"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def count_leaves(tree: Tree, seen: int = 0, depth: int = 0) -> int:
    """How many leaves there are up to the end of a tree from a file, `seen` of them before it.

    Raises ValueError where no sample has that tree.
    """
    children: list[Any] = []
    match tree:
        case int() if type(tree) is int and tree == seen:
            return seen + 1
        case ["list" | "tuple", list(children)]:
            is_sound = True
        case ["dict", list(pairs)]:
            is_sound = all(type(p) is list and len(p) == 2 and type(p[0]) in _KEY_TYPES for p in pairs)
            is_sound = is_sound and len({key for key, _ in pairs}) == len(pairs)
            children = [pair[1] for pair in pairs] if is_sound else []
        case ["named", str(module), str(name), list(fields), list(children)]:
            is_sound = len(fields) == len(children) <= MAX_FIELDS and all(type(one) is str for one in fields)
            if is_sound:
                named_class(module, name, tuple(fields))  # a ValueError for what names no fields
        case _:
            is_sound = False
    if depth >= MAX_DEPTH or not is_sound:
        raise ValueError(f"no sample has this tree, from leaf {seen} on")
    for child in children:
        seen = count_leaves(child, seen, depth + 1)
    return seen


@lru_cache(maxsize=4096)
def _stand_in(module: str, name: str, fields: tuple[str, ...]) -> Any:
    last = name.rsplit(".", 1)[-1]
    base: Any = namedtuple  # through Any: the checker takes only literal names
    made = base(last if last.isidentifier() and not iskeyword(last) else "Sample", fields)
    # Its module has no such name, so instances pickle by address (DataLoader workers send batches).
    made.__reduce__ = lambda self: (_make_named, (module, name, fields, tuple(self)))
    return made


def named_class(module: str, name: str, fields: tuple[str, ...]) -> Any:
    """The namedtuple class of this address and these fields (invariant 3)."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        # Not getattr: a lazy module imports what it is asked for.
        found = getattr(found, "__dict__", {}).get(part)
    if isinstance(found, type) and is_namedtuple(found) and cast(Any, found)._fields == fields:
        return found
    return _stand_in(module, name, fields)


def _make_named(module: str, name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return named_class(module, name, fields)._make(values)
