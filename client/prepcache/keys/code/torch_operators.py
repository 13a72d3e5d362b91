"""Operators of torch's dispatcher: `torch.ops.aten.relu`, and those that `torch.library.custom_op` makes.

An operator counts by its name and by what brought it: a custom operator by its functions, all others by the
bytes of the libraries of operators that are loaded, and by torch's distribution.

Invariants:
    1. torch is not imported here: an operator of torch's means that it is loaded already.
    2. An operator whose functions only the dispatcher holds is refused.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from prepcache.keys.files.digest import digest_file
from prepcache.keys.files.stat_cache import user_stat_cache

Parts = list[tuple[str, Any]]
_LOOKUPS = "torch._ops"
_OPERATORS = frozenset({"OpOverload", "OpOverloadPacket"})
_HANDLES = ("Library", "OpOverload")


_OF_TORCH = ("aten", "prim", "prims", "quantized")
"""Namespaces of torch's own operators, some of which have kernels in Python too."""


def is_lookup(module: Any) -> bool:
    """Whether a module is `torch.ops`, or a namespace in it: these make what they are asked for."""
    return isinstance(module, ModuleType) and type(module).__module__ == _LOOKUPS


def looked_up(module: Any, chain: tuple[str, ...]) -> tuple[str, Any] | None:
    """The operator that a chain of attributes leads to, and its name; None where it leads to none."""
    for name in chain:
        module = getattr(module, name, None)
        if not is_lookup(module):
            return (f"torch.ops.{_name_of(module)}", module) if _is_operator(module) else None
    return None


def parts_of_operator(value: Any) -> Parts | None:
    """What an operator is made of, besides its class; None for all else.

    Raises:
        ValueError: its functions cannot be told.
    """
    kind = type(value)
    if kind.__module__ == "torch._library.custom_ops" and kind.__name__ == "CustomOpDef":
        # Its handles to the dispatcher say nothing that its functions do not.
        kept = sorted(vars(value).items())
        return [(name, part) for name, part in kept if type(part).__name__ not in _HANDLES]
    if not _is_operator(value):
        return None
    name = _name_of(value)
    whole = name.partition(".")[0]
    custom = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {}).get(whole)
    if custom is not None:
        return [("name", name), ("custom", custom)]
    namespace = name.partition("::")[0]
    implemented = () if namespace in _OF_TORCH else getattr(sys.modules.get("torch.library"), "_impls", ())
    if any(one.startswith(f"{whole.replace('::', '/')}/") for one in implemented):
        raise ValueError(
            "its Python kernel is known only to torch's dispatcher; define it with torch.library.custom_op"
        )
    stat_cache = user_stat_cache()
    libraries = [digest_file(path, stat_cache, "stat").digest for path in _own_libraries()]
    return [("name", name), ("libraries", sorted(libraries))]


def _is_operator(value: Any) -> bool:
    return type(value).__module__ == _LOOKUPS and type(value).__name__ in _OPERATORS


def _name_of(operator: Any) -> str:
    """`namespace::name`, and for one overload `namespace::name.overload`."""
    return str(operator.name() if hasattr(operator, "name") else operator._qualified_op_name)


def _own_libraries() -> set[str]:
    """The machine code that torch was told to load, or that is mapped into this process and that neither the
    system nor Python installed."""
    found = set(sys.modules["torch"].ops.loaded_libraries)
    installed = tuple(
        os.path.realpath(folder) + os.sep for folder in (sys.prefix, sys.base_prefix, "/usr", "/lib")
    )
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {fields[5] for line in maps if len(fields := line.rstrip("\n").split(maxsplit=5)) == 6}
        mapped = {path for path in paths if ".so" in os.path.basename(path)}
        found |= {path for path in mapped if not os.path.realpath(path).startswith(installed)}
    return set(filter(os.path.isfile, found))
