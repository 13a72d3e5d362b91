"""The state of objects that the canonical encoding does not know by value.

It is what the object would give to be copied (`__getstate__`, `__reduce_ex__`), in parts, and never the bytes
of a pickle, which differ from run to run. Parts that are no attributes are named in angle brackets.

Invariants:
    1. No state is left out silently: an object with state in C that it does not give away is refused.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import gc
import io
import re
import struct
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from prepcache.keys.code.fingerprint import fingerprint, without_address
from prepcache.keys.encoding.builtins import attributes_of
from prepcache.keys.encoding.encoder import Parts

EMPTY = object()
"""What a cell holds that nothing was bound to."""
_LOCK = re.compile(
    r"(_thread|threading|multiprocessing\.synchronize|asyncio\.locks)"
    r"\._?(R?[Ll]ock|Condition|(Bounded)?Semaphore)"
)
"""Their type stands for them: who holds one is the moment's."""
_REDUCED = ("<callable>", "<args>", "<state>", "<items>", "<pairs>", "<setter>")
_OF_TYPES = ("__supertype__", "__bound__", "__constraints__", "__value__")
"""What new types, type variables and aliases are given beside their name."""
_NAMING_FIELDS = ("dataclasses", "attr")
"""Their `__getstate__` gives fields alone, and not what subclasses add."""
_OBJECT: Any = object
"""Untyped: its slots are compared with those of classes, which are typed as bound."""
_GENERATORS = frozenset(
    {
        "random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState",
        "numpy.random.bit_generator.BitGenerator", "torch._C.Generator",
    }
)  # fmt: skip
_GLOBAL = (("random", "getstate"), ("numpy.random", "get_state"), ("torch", "default_generator"))
"""The global generators, or a method of theirs."""
_SEED_BITS = 64
"""At most, of a seed of numpy's that somebody chose; entropy has twice as many."""


def kind_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_lock(value: Any) -> bool:
    return _LOCK.fullmatch(kind_of(value)) is not None


def parts_of(value: Any, *, is_library: bool) -> Parts:
    """What an object is made of, besides its class, by name. Raises if it does not give its state away."""
    if is_lock(value):
        return []
    parts = _held(value)
    if parts is None:
        parts = _copied(value, is_library)
    if not is_library:
        return parts
    # A generator of a library's object, as monai's hold, counts if somebody chose its seed.
    return [(name, one) for name, one in parts if not (is_generator(type(one)) and is_entropy(one))]


def _kept_results(function: Any) -> list[Any]:
    """What a `functools.cache` holds, as the garbage collector sees it: its function, and arguments and
    results in the order of use, without the table of entries of one that has a bound."""
    seen = [part for part in gc.get_referents(function) if part is not vars(function)]
    tables = [part for part in seen if type(part) is dict]
    entries = [one for one in tables if "_lru_list_elem" in {type(part).__name__ for part in one.values()}]
    return [part for part in seen if not any(part is one for one in entries)]


_HELD: dict[type, Callable[[Any], dict[str, Any]]] = {
    staticmethod: lambda value: {"__func__": value.__func__},
    classmethod: lambda value: {"__func__": value.__func__},
    types.MethodType: lambda value: {"__self__": value.__self__, "__func__": value.__func__},
    property: lambda value: {"fget": value.fget, "fset": value.fset, "fdel": value.fdel},
    functools.cached_property: lambda value: {"func": value.func},
    functools.partial: lambda value: {"func": value.func, "args": value.args, "keywords": value.keywords},
    functools._lru_cache_wrapper: lambda value: {"cache": _kept_results(value)},
    struct.Struct: lambda value: {"format": value.format},
    weakref.ref: lambda value: {"<referent>": value()},
    types.MappingProxyType: lambda value: {"<items>": dict(value)},
    types.CodeType: lambda value: {"<code>": fingerprint(value)},
}
"""What is held by objects that cannot be copied, besides attributes of their own."""


def _held(value: Any) -> Parts | None:
    if (home := global_generator(value)) is not None:
        return [("<generator>", home)]
    for name in ("stdout", "stderr"):
        if type(value) is io.TextIOWrapper and value in (getattr(sys, name), getattr(sys, f"__{name}__")):
            return [("<stream>", name)]
    read = next((read for base in type(value).__mro__ if (read := _HELD.get(base))), None)
    if read is None:
        return None
    own = {name: part for name, part in attributes_of(value).items() if name[:2] != "__"}
    return sorted((own | read(value)).items())


def _copied(value: Any, is_library: bool) -> Parts:
    cls = type(value)
    # Exceptions and `io.BytesIO` have an empty dict in their state once somebody has asked for it.
    getattr(value, "__dict__", None)
    reduce = copyreg.dispatch_table.get(cls)
    if reduce is not None:
        return _reduced(value, reduce(value), is_library)
    if cls.__reduce_ex__ is not _OBJECT.__reduce_ex__ or cls.__reduce__ is not _OBJECT.__reduce__:
        return _reduced(value, value.__reduce_ex__(4), is_library)
    by = str(getattr(cls.__getstate__, "__module__", None)).partition(".")[0]
    if cls.__getstate__ is not _OBJECT.__getstate__ and by not in _NAMING_FIELDS:
        return _given_state(value.__getstate__())
    object.__reduce_ex__(value, 2)  # refuses state in C that it does not know of
    return sorted(attributes_of(value).items())


def _given_state(state: Any) -> Parts:
    """What `__getstate__` gave: if that is a dict of attributes, their order does not count."""
    if type(state) is dict and all(type(name) is str for name in state):
        return sorted(state.items())
    return [("<state>", state)]


def _reduced(value: Any, state: Any, is_library: bool) -> Parts:
    if isinstance(state, str):
        return _of_name(value, state)
    parts: Parts = []
    for name, part in zip(_REDUCED, state, strict=False):
        if name == "<state>" and part is not None:
            parts += _given_state(part)
        elif part is not None:
            parts.append((name, list(part) if name in ("<items>", "<pairs>") else part))
    # What the reduction does not say: functions, as `toolz.curry` holds; all that a class of the job's keeps
    # beside a base from another package that says how it is copied.
    cls, ways = type(value), ("__reduce_ex__", "__reduce__")
    owner = next(base for base in cls.__mro__ if any(way in vars(base) for way in ways))
    is_beside = not is_library and owner.__module__.partition(".")[0] != cls.__module__.partition(".")[0]
    names = {name for name, _ in parts}
    for name, part in sorted(attributes_of(value).items()):
        inner = part.func if isinstance(part, functools.partial) else part
        if name not in names and (is_beside or isinstance(inner, types.FunctionType)):
            parts.append((name, part))
    return parts


def _of_name(value: Any, name: str) -> Parts:
    """An object that says it is the global of a name: the name counts if it is, and its own state."""
    if type(value).__module__ in ("typing", "typing_extensions"):
        parts: Parts = [("<name>", name)]
        for step in _OF_TYPES:
            with contextlib.suppress(AttributeError, NameError):  # a bound may name what is not there
                parts.append((step, getattr(value, step)))
        return parts
    home = sys.modules.get(str(getattr(value, "__module__", None)))
    homes = list(sys.modules.values()) if home is None else [home]
    if not any(_at(getattr(module, "__dict__", {}), name) is value for module in homes):
        raise ValueError(f"it pickles as global {name!r}, which no module has")
    return [("<name>", name), *sorted(attributes_of(value).items())]


def _at(space: Any, dotted: str) -> Any:
    """What a namespace holds under a dotted name, as methods of Cython have, found without running code."""
    first, _, rest = dotted.partition(".")
    value = space.get(first)
    return _at(getattr(value, "__dict__", {}), rest) if rest and value is not None else value


def state_of(function: types.FunctionType) -> Parts:
    """What a function holds beside its code: what to put behind its label, and values; `EMPTY` for none."""
    code, defaults = function.__code__, function.__defaults__ or ()
    named = code.co_varnames[: code.co_argcount]
    # The job may have set more defaults than there are arguments.
    given = [*zip(named[::-1], defaults[::-1], strict=False)]
    given += sorted((function.__kwdefaults__ or {}).items(), key=lambda pair: pair[0])
    parts = [(f"({without_address(name, code)}=)", value) for name, value in given]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts.append((f"[{name}]", cell.cell_contents))
        except ValueError:
            parts.append((f"[{name}]", EMPTY))
    parts += [(f".{name}", value) for name, value in sorted(vars(function).items())]
    met: Counter[str] = Counter()  # without their addresses, names may be one
    for at, (name, value) in enumerate(parts):
        met[name] += 1
        parts[at] = (name if met[name] == 1 else f"{name}#{met[name]}", value)
    return parts


def _is_generator(kind: type) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" in _GENERATORS for base in kind.__mro__)


is_generator: Callable[[type], bool] = functools.lru_cache(maxsize=1024)(_is_generator)


def global_generators() -> list[tuple[str, Any]]:
    """Those that are loaded, by their modules."""
    found = [(module, getattr(sys.modules.get(module), name, None)) for module, name in _GLOBAL]
    return [(module, getattr(one, "__self__", one)) for module, one in found if one is not None]


def global_generator(value: Any) -> str | None:
    """The module whose global generator a value is."""
    return next((module for module, one in global_generators() if one is value), None)


def bits_of(generator: Any) -> Any:
    """What keeps the state of a generator: it itself, or numpy's bit generator in it."""
    return getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)


def seed_of(generator: Any) -> int | None:
    """What a generator was seeded with, entropy included; None where it does not say so."""
    if any(base.__module__ == "torch._C" for base in type(generator).__mro__):
        return int(generator.initial_seed())
    entropy = getattr(getattr(bits_of(generator), "seed_seq", None), "entropy", None)
    return entropy if isinstance(entropy, int) else None


def is_entropy(generator: Any) -> bool:
    """Whether nobody chose the seed of a generator of numpy's."""
    return (seed_of(generator) or 0).bit_length() > _SEED_BITS
