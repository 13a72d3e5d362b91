"""The parts of a recipe, as its digest and people read them: config leaf by leaf, code, environment.

Invariants:
    1. A part whose name or value looks secret is shown as a keyed hash. What its digest is made of, is not.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from blake3 import blake3

from prepcache.keys.code.dependencies import Dependencies
from prepcache.keys.code.describe import SCALARS, Value, readable
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.settings import is_attribute_bag
from prepcache.keys.code.value_hooks import ConfigEncoder, Hooks
from prepcache.keys.encoding.encoder import ENCODING_VERSION
from prepcache.keys.environment import ENVIRONMENT_VERSION, Environment, python_version
from prepcache.keys.files.digest import Trust, digest_file
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.own_state import Attributes, place_of
from prepcache.keys.paths import path_hook
from prepcache.keys.restart import check_machine_code
from prepcache.keys.secrets import holds_secret, is_secret, keyed_hash

_LABEL_WORDS = re.compile(r"\w+")
EDITED = "edited after it was loaded"
"""Stands for a file that no longer says what runs: the definitions that were loaded from it count alone."""
LEAF_LIMIT = 64
"""Elements of a list or dict in a config that are shown one by one; a longer one is one leaf."""


def config_part(
    given: dict[str, Any], reach: Dependencies, stat_cache: StatCache, trust: Trust
) -> tuple[dict[str, Any], str]:
    """The leaves of a config by their paths, and the digest of it all."""
    hooks = reach.hooks
    encoder = ConfigEncoder(hooks, path_hook(stat_cache, trust))
    leaves: dict[str, Any] = {}
    digest = "" if hooks.is_again else blake3(encoder.encode(given)).hexdigest()
    for key in sorted(given):
        _add_leaves(leaves, encoder, hooks, given[key], key, key)
    return leaves, digest


def _add_leaves(
    leaves: dict[str, Any], encoder: ConfigEncoder, hooks: Hooks, value: Any, path: str, name: str
) -> None:
    """Adds the leaves of a config, by their paths; one whose name looks secret only as a keyed hash."""
    if type(value) is dict and 0 < len(value) <= LEAF_LIMIT and all(type(k) is str for k in value):
        for key in sorted(value):
            inner = name if is_secret(name) else key
            _add_leaves(leaves, encoder, hooks, value[key], f"{path}.{key}" if path else key, inner)
    elif type(value) in (list, tuple) and 0 < len(value) <= LEAF_LIMIT:
        for i, element in enumerate(value):
            _add_leaves(leaves, encoder, hooks, element, f"{path}[{i}]", name)
    else:
        raw = hooks.encoded(encoder, value, f"config.{path}")
        if is_secret(name) or holds_secret(value):
            leaves[path] = {"digest": keyed_hash(raw), "text": "secret"}
        else:
            digest = blake3(raw).hexdigest()
            is_file = isinstance(value, str | os.PathLike) and os.path.isfile(value)
            contents = f"contents {digest[:8]} of " if is_file else ""
            leaves[path] = {"digest": digest, "text": contents + readable(value)}
        if is_attribute_bag(value) and not is_secret(name):  # as parsed arguments are: for explanations
            for attribute, content in islice(sorted(vars(value).items()), LEAF_LIMIT):
                if type(content) in SCALARS:
                    _add_leaves(leaves, encoder, hooks, content, f"{path}.{attribute}", attribute)


def code_part(
    code: str | Sequence[Any] | None, graph: ImportGraph, reach: Dependencies, stat_cache: StatCache
) -> dict[str, Any]:
    """What counts of the code: digests of files and definitions, and values."""
    if code is None:
        tables = ("files", "definitions", "values", "variables", "attributes")
        return {"mode": None, **{name: {} for name in tables}, "untracked": []}
    mode: str
    if isinstance(code, str):
        mode, paths = code, graph.files
    else:
        mode, paths = "files", _named_files(code)
    digests = {file: source_digest(path, graph, stat_cache) for file, path in sorted(paths.items())}
    if mode == "script":
        digests |= {file: EDITED for file, path in paths.items() if _is_edited(path, graph, reach)}
    return {
        "mode": mode,
        "files": digests,
        "definitions": dict(sorted(reach.definitions.items())) if mode != "files" else {},
        "values": {label: _shown(label, value) for label, value in sorted(reach.values.items())},
        "variables": {name: _shown_variable(name, v) for name, v in sorted(reach.variables.items())},
        "attributes": _attributes(reach.hooks.places),
        "untracked": sorted(reach.ignored),
    }


def _attributes(places: Attributes) -> dict[str, dict[str, str]]:
    """The attributes of objects one by one, for explanations: the values that hold them count."""
    rows = [(place_of(at, name), one) for at, found in places.items() for name, one in found.items()]
    return {
        place: _shown(place, Value(blake3(one.written).hexdigest(), one.text))
        for place, one in sorted(rows)
        if one.text
    }


def _is_edited(path: str, graph: ImportGraph, reach: Dependencies) -> bool:
    """Whether code that was loaded from a file is not what the file says now."""
    source = graph.sources.get(path)
    return source is not None and not all(map(source.makes, reach.codes.get(path, ())))


def _shown(label: str, value: Value) -> dict[str, str]:
    """A run-time value as the parts hold it; one whose name looks secret only as a keyed hash."""
    if value.is_secret or any(is_secret(word) for word in _LABEL_WORDS.findall(label)):
        return {"digest": keyed_hash(value.digest.encode()), "text": "secret"}
    return {"digest": value.digest, "text": value.text}


def _shown_variable(name: str, value: str | None) -> str | None:
    if value is None or not (is_secret(name) or holds_secret(value)):
        return value
    return "secret " + keyed_hash(value.encode("utf-8", "surrogateescape"))


def source_digest(path: str, graph: ImportGraph, stat_cache: StatCache) -> str:
    """The digest of a counted file.

    Raises:
        UnkeyableError: it is machine code that was built again after this process had loaded it.
    """
    source = graph.sources.get(path)
    if source is not None:
        return source.digest
    check_machine_code(path)
    return digest_file(path, stat_cache, "stat").digest.hex()


def _named_files(paths: Sequence[str | os.PathLike[str]]) -> dict[str, str]:
    absolute = [os.path.abspath(os.fspath(path)) for path in paths]
    if not absolute:
        raise ValueError("code=[] names no file; use code=None with version=")
    base = os.path.commonpath([os.path.dirname(path) for path in absolute])
    return {os.path.relpath(path, base): path for path in absolute}


def environment_part(
    installed: Environment, top_levels: set[str], only: Sequence[str] | None, by_file: bool
) -> dict[str, Any]:
    """Python, formats and distributions.

    Args:
        top_levels: the top-level modules that the counted files import.
        only: the distributions that count instead, by name.
        by_file: whether some code counts by its file.
    """
    return {
        "python": python_version(),
        # Asserts and `if __debug__` are there or not by this.
        "optimize": sys.flags.optimize if by_file else None,
        "formats": {"encoding": ENCODING_VERSION, "environment": ENVIRONMENT_VERSION},
        "distributions": installed.counted(top_levels, only),
    }
