"""Modules of torch: their hooks, and those that do not let themselves be pickled, parametrized and scripted.

Invariants:
    1. A script counts by what it would be saved as, and by what Python keeps beside it: hooks and attributes.
    2. torch is not imported here: a module of torch's means that it is loaded already.
"""

from __future__ import annotations

import io
import sys
import zipfile
from typing import Any

from prepcache.keys.code.fleeting import Parts

_HOOK_TABLES = frozenset(
    {
        "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)  # fmt: skip
"""Where an `nn.Module` keeps its hooks, under numbers that a counter of the process gave."""

_WAYS_INTO_C = frozenset(
    {"_actual_script_module", "_buffers", "_c", "_concrete_type", "_initializing", "_modules", "_parameters"}
)
"""What the Python side of a script keeps to reach the other one."""

_NOT_OF_A_SCRIPT = (".debug_pkl", "/.data/serialization_id")
"""Records of a saved script that say where its source was, and what the others sum up to."""


def with_ranked_hooks(parts: Parts) -> Parts:
    """Attributes of a module, hooks under numbers that begin at 0: only their order counts."""
    tables = {name: part for name, part in parts if name in _HOOK_TABLES and isinstance(part, dict) and part}
    ids = sorted({key for table in tables.values() for key in table if type(key) is int})
    if not ids:
        return parts
    rank = {key: place for place, key in enumerate(ids)}
    ranked = {name: [(rank.get(k, k), v) for k, v in table.items()] for name, table in tables.items()}
    return [(name, ranked.get(name, part)) for name, part in parts]


def parts_of_module(value: Any) -> Parts | None:
    """What a parametrized module, a script or a scripted function is made of; None for all else.

    Raises:
        Exception: what torch raises for a script that it cannot save.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(getattr(torch, "jit", None), "ScriptFunction"):
        return None  # or another thread is loading it
    if isinstance(value, torch.jit.ScriptModule):
        return _records(value.save_to_buffer()) + _beside(torch, value)
    if isinstance(value, torch.jit.ScriptFunction):
        return _records(value.save_to_buffer())
    kind = type(value)
    if issubclass(kind, torch.nn.Module) and kind.__module__ == "torch.nn.utils.parametrize":
        if not isinstance(vars(value).get("_modules", {}).get("parametrizations"), torch.nn.ModuleDict):
            return None
        own = sorted(vars(value).items())
        return [("of", kind.__bases__[0]), *with_ranked_hooks(own)]
    return None


def _records(saved: bytes) -> Parts:
    """What a script is saved as: its code, its constants, its attributes and tensors."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        paths = [path for path in archive.namelist() if not path.endswith(_NOT_OF_A_SCRIPT)]
        return [(path.partition("/")[2], archive.read(path)) for path in paths]


def _beside(torch: Any, value: Any) -> Parts:
    """What Python keeps beside a script and its inner ones; not the methods that were asked for."""
    parts: Parts = []
    for path, module in value.named_modules():
        kept = [
            (name, part)
            for name, part in sorted(vars(module).items())
            if name not in _WAYS_INTO_C and not isinstance(part, torch._C.ScriptMethod)
        ]
        parts += [(f"{path}.{name}" if path else name, part) for name, part in with_ranked_hooks(kept)]
    return parts
