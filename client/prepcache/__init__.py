"""prepcache: a content-addressed preprocessing cache that the training jobs of a box share.

Invariants:
    1. `import prepcache` loads neither torch nor numpy nor httpcore nor the server stack: every public
       name is loaded from its module when it is first used.
    2. Editors and type checkers see the same names with their types: they take the branch that never runs.
    3. The errors here are those that a job can act on; all of them are in `prepcache.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prepcache.cached_tree import cached
    from prepcache.collate import pack_collate, pad_collate
    from prepcache.daemon.client import Client
    from prepcache.dataset import CachedDataset
    from prepcache.errors import (
        ConfigError,
        DaemonUnreachable,
        PrepcacheError,
        PreprocessError,
        RequestError,
        SampleError,
        UnkeyableError,
        VerifyError,
    )
    from prepcache.iterable import CachedIterableDataset
    from prepcache.keys.encoding.encoder import register_key
    from prepcache.keys.items import item_digest
    from prepcache.keys.markers import plain, tree
    from prepcache.keys.recipes import Recipe, recipe
    from prepcache.loader import Loader
    from prepcache.sampler import CachedFirstSampler

__version__ = "0.1.0"

__all__ = [
    "CachedDataset",
    "CachedFirstSampler",
    "CachedIterableDataset",
    "Client",
    "ConfigError",
    "DaemonUnreachable",
    "Loader",
    "PrepcacheError",
    "PreprocessError",
    "Recipe",
    "RequestError",
    "SampleError",
    "UnkeyableError",
    "VerifyError",
    "__version__",
    "cached",
    "errors",
    "item_digest",
    "pack_collate",
    "pad_collate",
    "plain",
    "recipe",
    "register_key",
    "tree",
]

_MODULES = {
    "CachedDataset": "dataset",
    "CachedIterableDataset": "iterable",
    "Client": "daemon.client",
    "cached": "cached_tree",
    "recipe": "keys.recipes",
    "Recipe": "keys.recipes",
    "item_digest": "keys.items",
    "plain": "keys.markers",
    "tree": "keys.markers",
    "register_key": "keys.encoding.encoder",
    "Loader": "loader",
    "CachedFirstSampler": "sampler",
    "pad_collate": "collate",
    "pack_collate": "collate",
}
"""Where the names are that are not errors."""

if not TYPE_CHECKING:  # else any name is an attribute, and of any type

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'prepcache' has no attribute {name!r}")
        try:
            module = import_module(f"prepcache.{_MODULES.get(name, 'errors')}")
        except KeyboardInterrupt as error:  # loading torch takes seconds
            raise error.with_traceback(None) from None
        value = getattr(module, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
