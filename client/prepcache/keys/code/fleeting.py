"""What objects of libraries keep that differs from process to process, or call to call, and says nothing.

    a number that is the address of a part     the name of that part
    the hash of the object, kept under `_...hash...` as soon as somebody asks
    the random UUID it was given as its name
    a generator made from entropy              what it was seeded with would be kept beside it, and counts
    a global generator                         its name: draws from it are watched (randomness.py)
    the order of a table of its own methods    where it is that of a set, which is another in each process
    what its last call was given               where each call puts its own there (NOTE [ Left by calls ])
    references to classes by their address     in pydantic's schemas
    pointers between nodes                     of scipy's trees, which are given as they lie in memory
    how often it was asked                     which sklearn's trees count
    what it made of its other attributes       templates, patterns, groups (NOTE [ Made of the rest ])
    what it read of its file, as an array      which nibabel's images keep, if it still is what would be read

Invariants:
    1. Only objects of classes of libraries are dealt with so: what the project's own keep, it may mean.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

Parts = list[tuple[str, Any]]

_GENERATORS = frozenset(
    {"random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"}
)
_LEAST_ADDRESS = 1 << 16
_SEED_BITS = 64
"""A seed that somebody chose has so many bits at most; entropy has twice as many."""
_RANDOM_UUIDS = (1, 4)


# NOTE [ Left by calls ]
#     A tokenizer of Hugging Face's sets how its backend truncates and pads to what each call asks for, so the
#     first call would give the data set that is opened next another key, in this run and not in the next. It
#     counts where code of the project uses the backend itself.
#     spaCy keeps each word that it meets by the word's hash: those count where code of the project uses them.
#     Source: `set_truncation_and_padding` of transformers; `BasicTransform.params` of albumentations.
_LEFT_BY_CALLS = {
    ("albumentations", "BasicTransform"): frozenset({"params"}),
    ("transformers", "PreTrainedTokenizerBase"): frozenset({"deprecation_warnings"}),
    # The globals of the module, for the names in annotations: what these name counts.
    ("pydantic", "ValidateCallWrapper"): frozenset({"ns_resolver"}),
}
# NOTE [ Made of the rest ]
#     Such an object keeps what it made of its other attributes: compiled templates, a pattern, groups. None
#     of that counts; but where the others were changed since, it is of what they were before, and that counts
#     beside what they are now (`Hooks._object`). Files that it read count for what is made later.
_MADE_OF_THE_REST = {
    ("jinja2", "Environment"): "cache",
    ("nltk", "RegexpTokenizer"): "_regexp",
    ("pandas", "BaseGroupBy"): "_cache",
    ("pandas", "BaseGrouper"): "_cache",
    ("pandas", "Grouping"): "_cache",
}
_MADE_WHEN_ASKED = frozenset({"_attrs", "_encoding"})
"""Of xarray's arrays: None, or an empty dict once somebody has asked for them."""
_NAMED_BY_CHANCE = (
    ("xarray", "CachingFileManager"),
    ("xarray", "SerializableLock"),
    ("dask", "SerializableLock"),
)
"""They give a random UUID away as their state, or in it, so that processes share what is named so."""
_MODES = re.compile(r'("truncation":.*?,"padding":.*?,)(?="added_tokens":)')
_MODES_WITHIN = 2000
BACKEND = "_tokenizer"
_SCHEMAS = ("pydantic", "pydantic_core")
_SCHEMA_PARTS = ("core_schema", "args")
_REFERENCES = ("ref", "schema_ref")
_REFERENCE = re.compile(r":\d{6,}")
_NODE_BYTES, _NODE_POINTERS = 72, slice(40, 56)
"""Of `ckdtreenode` in scipy, whose children are named by their indices, too."""
_COUNTERS = slice(7, 11)
"""Of the state of sklearn's trees: how often they were asked."""


def _is_tree_that_counts(value: Any, state: tuple[Any, ...]) -> bool:
    is_tree = any(_is_of(value, "sklearn", name) for name in ("BinaryTree", "BinaryTree32", "BinaryTree64"))
    return is_tree and len(state) > _COUNTERS.stop and all(type(part) is int for part in state[_COUNTERS])


def has_backend(value: Any) -> bool:
    """Whether an object is a tokenizer of Hugging Face's that has a backend."""
    return _is_of(value, "transformers", "PreTrainedTokenizerBase") and BACKEND in getattr(
        value, "__dict__", {}
    )


def is_compiled_by_numba(value: Any) -> bool:
    """Whether a value is what numba's `jit` makes of a function."""
    return _is_of(value, "numba", "Dispatcher")


def words_met_by(value: Any) -> Any:
    """The words that an object of spaCy's met: what keeps them by their hash, for itself or for vectors."""
    if _is_of(value, "spacy", "Vectors"):
        return value.strings
    return value if _is_of(value, "spacy", "StringStore") else None


def _less_words_met(value: Any, parts: Parts) -> Parts:
    if words_met_by(value) is None:
        return parts
    return [] if words_met_by(value) is value else [("vectors", value.to_bytes(exclude=["strings"]))]


def modes_of(value: Any) -> tuple[Any, Any]:
    """How the backend of a tokenizer truncates and pads."""
    backend = vars(value)[BACKEND]
    return backend.truncation, backend.padding


def _without_modes(backend: Any) -> Any:
    """A backend's text, less its modes; or itself, where that looks otherwise."""
    text = backend.to_str() if hasattr(backend, "to_str") else ""
    head, count = _MODES.subn("", text[:_MODES_WITHIN])
    return head + text[_MODES_WITHIN:] if count == 1 else backend


def _is_of(value: Any, library: str, name: str) -> bool:
    bases = type(value).__mro__
    return any(base.__name__ == name and base.__module__.partition(".")[0] == library for base in bases)


def _is_left_by_call(value: Any, name: str) -> bool:
    left = any(name in names and _is_of(value, *kind) for kind, names in _LEFT_BY_CALLS.items())
    return left or any(name == made and _is_of(value, *kind) for kind, made in _MADE_OF_THE_REST.items())


def has_made(value: Any) -> bool | None:
    """Whether an object keeps what it made of its other attributes; None for those that keep nothing so."""
    for kind, name in _MADE_OF_THE_REST.items():
        if kind[0] in sys.modules and _is_of(value, *kind):
            kept = getattr(value, "__dict__", {}).get(name)
            return kept is not None and (not hasattr(kept, "__len__") or len(kept) > 0)
    return None


def is_generator(value: Any) -> bool:
    """Whether a value is a random generator of Python or numpy."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" in _GENERATORS


def settled(value: Any, parts: Parts) -> Parts:
    """The parts of an object of a library, less what says nothing."""
    return list(_settled(value, parts))


def _settled(value: Any, parts: Parts) -> Iterator[tuple[str, Any]]:
    addresses = {id(part): name for name, part in parts} | {id(None): "None"}
    if type(value).__module__.partition(".")[0] in _SCHEMAS:
        parts = [(name, _without_addresses(part) if name in _SCHEMA_PARTS else part) for name, part in parts]
    for name, part in _less_words_met(value, parts):
        if is_generator(part):
            if (place := _global_place(part)) is not None:
                yield name, f"global generator {place}"
            elif not _is_unseeded(part):
                yield name, part
        elif name == "state" and type(part) is tuple and _is_of(value, "scipy", "cKDTree"):
            yield name, (_without_pointers(part[0]), *part[1:])
        elif name == "state" and type(part) is tuple and _is_tree_that_counts(value, part):
            yield name, (*part[: _COUNTERS.start], *part[_COUNTERS.stop :])
        elif name == "state" and any(_is_of(value, *kind) for kind in _NAMED_BY_CHANCE):
            named = part if type(part) is tuple else (part,)
            yield name, tuple(None if _is_random_uuid(one) else one for one in named)
        elif name in _MADE_WHEN_ASKED and part == {} and _is_of(value, "xarray", type(value).__name__):
            yield name, None
        elif name == "_fdata_cache" and part is not None and _is_of(value, "nibabel", "DataobjImage"):
            yield name, None if _is_as_read(value, part) else part
        elif name == BACKEND and has_backend(value):
            yield name, _without_modes(part)
        elif type(part) is int and part > _LEAST_ADDRESS and part in addresses:
            yield name, f"address of {addresses[part]}"
        elif type(part) is dict and name == "state" and all(type(key) is str for key in part):
            yield name, dict(_settled(value, list(part.items())))  # attributes, as the object gave them
        elif type(part) is dict and not _is_left_by_call(value, name):
            yield name, _settled_table(value, part, parts)
        elif not (
            _is_identity(name, part) or _is_kept_hash(value, name, part) or _is_left_by_call(value, name)
        ):
            yield name, part


def _is_as_read(image: Any, kept: Any) -> bool:
    """Whether the array that an image keeps is what it would make again: it may be written to."""
    with contextlib.suppress(Exception):  # of whatever library: its file may be gone
        again = sys.modules["numpy"].asanyarray(image._dataobj, dtype=kept.dtype)
        return bool(again.tobytes() == kept.tobytes())
    return False


def _without_pointers(nodes: Any) -> Any:
    """The nodes of a tree of scipy's; as they are, where their layout is another one."""
    if getattr(nodes, "ndim", 0) != 1 or nodes.itemsize != 1 or nodes.size % _NODE_BYTES:
        return nodes
    cleared = nodes.reshape(-1, _NODE_BYTES).copy()
    cleared[:, _NODE_POINTERS] = 0
    return cleared


def _without_addresses(part: Any, key: Any = None) -> Any:
    """A schema of pydantic's, in which each class is referred to by its name and its address."""
    if type(part) is dict:
        return {name: _without_addresses(inner, name) for name, inner in part.items()}
    if type(part) in (list, tuple):
        return type(part)(_without_addresses(inner) for inner in part)
    return _REFERENCE.sub("", part) if key in _REFERENCES and type(part) is str else part


def _settled_table(value: Any, table: dict[Any, Any], parts: Parts) -> dict[Any, Any]:
    if table and all(isinstance(f, types.MethodType) and f.__self__ is value for f in table.values()):
        is_of_set = any(type(part) is set and part >= table.keys() for _, part in parts)
        if is_of_set and all(type(key) is str for key in table):
            return dict(sorted(table.items()))
    if any(_is_identity(name, part) for name, part in table.items()):
        return {name: part for name, part in table.items() if not _is_identity(name, part)}
    return table


def _is_identity(name: Any, part: Any) -> bool:
    """Whether a part is what a process calls the object: `uuid`, made by chance."""
    return isinstance(name, str) and name.strip("_") == "uuid" and _is_random_uuid(part)


def _is_random_uuid(part: Any) -> bool:
    import uuid

    with contextlib.suppress(ValueError):
        if type(part) is str:
            part = uuid.UUID(part)
    return isinstance(part, uuid.UUID) and part.version in _RANDOM_UUIDS


def _is_kept_hash(value: Any, name: str, part: Any) -> bool:
    is_named = name.startswith("_") and "hash" in name.lower()
    by: Any = type(value).__hash__
    if not is_named or by is None or by is object.__hash__:
        return False
    try:
        return part is None or (type(part) is int and hash(value) == part)
    except Exception:  # noqa: BLE001 - of whatever library
        return False


def _global_place(generator: Any) -> str | None:
    if generator is getattr(random, "_inst", None):
        return "random"
    legacy = sys.modules.get("numpy.random.mtrand")
    return "numpy.random" if legacy is not None and generator is getattr(legacy, "_rand", None) else None


def _is_unseeded(generator: Any) -> bool:
    """Whether a generator of numpy was made from entropy. Python's do not tell."""
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", None)
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    return isinstance(entropy, int) and entropy.bit_length() > _SEED_BITS


# NOTE [ Names that hold addresses ]
#     What a decorator makes from text may hand over objects as defaults of parameters that are named by the
#     object's address (beartype does). Such a parameter counts by the rest of its name and its place.
_ENDS_IN_NUMBER = re.compile(r"(.*\D)(\d{6,})$")


def names_without_addresses(function: types.FunctionType) -> dict[str, str]:
    """The parameters that are named by the address of their default, and how they count."""
    code = function.__code__
    named = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    values = dict(zip(named[len(named) - len(defaults) :], defaults, strict=True))
    values |= function.__kwdefaults__ or {}
    found = {}
    for place, name in enumerate(code.co_varnames):
        match = _ENDS_IN_NUMBER.match(name) if name in values else None
        if match is not None and int(match[2]) == id(values[name]):
            found[name] = f"{match[1]}@{place}"
    return found
