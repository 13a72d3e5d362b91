"""Operators of torch's dispatcher: `torch.ops.aten.relu`, and those that `torch.library.custom_op` makes.

An operator counts by its name and schema, and by what brought it: torch itself by its distribution, a custom
operator by its functions, one in C++ by the bytes of the libraries that are mapped into this process and
belong to no installation.

Invariants:
    1. torch is not imported here: an operator of torch's means that it is loaded already.
    2. An operator whose library cannot be told is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from prepcache.keys.files.digest import digest_file
from prepcache.keys.files.stat_cache import user_stat_cache

Parts = list[tuple[str, Any]]
_LOOKUPS = "torch._ops"
_OPERATORS = frozenset({"OpOverload", "OpOverloadPacket"})
_HANDLES = ("Library", "OpOverload")
_OF_TORCH = frozenset(
    {
        "aten", "prim", "prims", "rngprims", "quantized", "_quantized", "quantized_decomposed", "mkldnn",
        "mkldnn_prepacked", "onednn", "sparse", "xnnpack", "inductor", "higher_order", "profiler", "c10d",
        "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem", "mkl", "metal",
    }
)  # fmt: skip
"""Namespaces that torch's own libraries register."""


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
        ValueError: the library that brought it cannot be told.
    """
    kind = type(value)
    if kind.__module__ == "torch._library.custom_ops" and kind.__name__ == "CustomOpDef":
        # Its handles to the dispatcher say nothing that its functions do not.
        kept = sorted(vars(value).items())
        return [(name, part) for name, part in kept if type(part).__name__ not in _HANDLES]
    if not _is_operator(value):
        return None
    name = _name_of(value)
    namespace = name.partition("::")[0]
    overloads = [getattr(value, one) for one in value.overloads()] if hasattr(value, "overloads") else [value]
    parts: Parts = [("name", name), ("schemas", sorted(str(one._schema) for one in overloads))]
    if namespace in _OF_TORCH:
        return parts
    custom = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {}).get(name.partition(".")[0])
    if custom is not None:
        return [*parts, ("custom", custom)]
    implemented = getattr(sys.modules.get("torch.library"), "_impls", ())
    if any(one.startswith(f"{name.partition('.')[0].replace('::', '/')}/") for one in implemented):
        raise ValueError(
            "its Python kernel is known only to torch's dispatcher; define it with torch.library.custom_op"
        )
    if namespace in sys.modules:
        return [*parts, ("library", sys.modules[namespace])]
    stat_cache = user_stat_cache()
    libraries = [digest_file(path, stat_cache, "stat").digest for path in _own_libraries()]
    if not libraries:
        raise ValueError("the library that defines this operator is unknown")
    return [*parts, ("libraries", sorted(libraries))]


def _is_operator(value: Any) -> bool:
    return type(value).__module__ == _LOOKUPS and type(value).__name__ in _OPERATORS


def _name_of(operator: Any) -> str:
    """`namespace::name`, and for one overload `namespace::name.overload`."""
    return str(operator.name() if hasattr(operator, "name") else operator._qualified_op_name)


def _own_libraries() -> Iterator[str]:
    """The files of machine code mapped into this process that neither the system nor Python installed."""
    torch = sys.modules["torch"]
    found = set(torch.ops.loaded_libraries)
    installed = tuple(
        os.path.realpath(folder) + os.sep for folder in (sys.prefix, sys.base_prefix, "/usr", "/lib")
    )
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            lines = [line.rstrip("\n").split(maxsplit=5) for line in maps]
        found |= {fields[5] for fields in lines if len(fields) == 6 and ".so" in os.path.basename(fields[5])}
    except OSError:  # no Linux
        pass
    for path in sorted(found):
        if os.path.isfile(path) and not os.path.realpath(path).startswith(installed):
            yield path
