"""prepcache: a content-addressed preprocessing cache that the training jobs of a box share.

Invariants:
    1. `import prepcache` loads neither torch nor numpy nor httpx nor the server stack: every public
       name is loaded from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from prepcache import opens as _opens  # noqa: F401 - notes from now on what functions open

__version__ = "0.1.0"

_EXPORTS = {
    "CachedDataset": "data.dataset",
    "Client": "control.client",
    "cached": "data.whole",
    "recipe": "keys.recipes",
    "Recipe": "keys.recipes",
    "item_digest": "keys.items",
    "plain": "keys.marks",
    "tree": "keys.marks",
    "register_key": "keys.canonical",
    "Loader": "data.loader",
    "pad_collate": "data.collate",
    "pack_collate": "data.collate",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(import_module(f"prepcache.{_EXPORTS[name]}"), name)
    else:
        errors = import_module("prepcache.errors")
        value = getattr(errors, name, None)
        if not (isinstance(value, type) and issubclass(value, errors.PrepcacheError)):
            raise AttributeError(f"module 'prepcache' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    errors = import_module("prepcache.errors")
    return sorted({*__all__, *(cls.__name__ for cls in errors.all_errors())})
