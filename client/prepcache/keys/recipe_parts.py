"""The parts of a recipe, as people read them: config leaf by leaf, code, notes."""

from __future__ import annotations

import dis
import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.dependencies import Dependencies
from prepcache.keys.code.fingerprint import fingerprint, nested
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.project import Places, dotted_name, package_root
from prepcache.keys.code.values import SECRET, Value, ValueEncoder, holds_secret, is_secret, readable
from prepcache.keys.encoding.encoder import length, text_bytes
from prepcache.keys.environment import Environment, check_machine_code
from prepcache.keys.files.digest import digest_file
from prepcache.keys.files.stat_cache import user_stat_cache

EDITED = "edited after it was loaded"
"""Stands for a file that no longer says what runs: the definitions that were loaded from it count alone."""
LEAF_LIMIT = 64
"""Elements of a list or dict in a config that are shown one by one; a longer one is one leaf."""
_LABEL_WORDS = re.compile(r"[\w-]+")
_RANK = re.compile(
    "(.*_)?(rank|rankid|procid|localid|nodeid|process_index)"
    "|is_(local_)?(main|master)(_process)?|is_rank_zero",
    re.IGNORECASE,
)
"""How launchers call a variable that tells the processes of a job apart, and jobs what they make of it."""
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


# -- config ------------------------------------------------------------------------------------------------


def config_part(given: dict[str, Any], reach: Dependencies) -> tuple[dict[str, Value], str]:
    leaves: dict[str, Value] = {}
    hasher = blake3()
    above: list[Any] = []

    def encoded(value: Any, path: str) -> bytes:
        return ValueEncoder(reach, is_config=True).encode(value, f"config.{path}")

    def add(value: Any, path: str, is_hidden: bool = False) -> None:
        hasher.update(text_bytes(path))
        kind, is_inside_itself = type(value), any(value is one for one in above)
        is_dict = kind is dict and all(type(key) is str for key in value)
        is_hidden |= not is_dict and holds_secret(value)
        if not (is_dict or kind in (list, tuple)) or is_inside_itself or not 0 < len(value) <= LEAF_LIMIT:
            raw = encoded(value, path)
            hasher.update(length(len(raw)) + raw)
            digest = blake3(raw).hexdigest()
            is_file = isinstance(value, str | os.PathLike) and os.path.isfile(value)
            contents = f"contents {digest[:8]} of " if is_file else ""
            leaves[path] = Value(digest, contents + readable(value), is_hidden or holds_secret(value))
            return
        above.append(value)
        hasher.update(f"{kind.__name__} {len(value)}:".encode())
        for key in sorted(value) if is_dict else range(len(value)):
            if is_dict:
                hasher.update(encoded(key, path))
            add(value[key], f"{path}.{key}" if is_dict else f"{path}[{key}]", is_hidden)
        above.pop()

    for key in sorted(given):
        add(given[key], key)
    return leaves, hasher.hexdigest()


# -- code --------------------------------------------------------------------------------------------------


def code_part(code: str | Sequence[Any] | None, reach: Dependencies) -> dict[str, Any]:
    is_counted, graph = code is not None, reach.graph
    variables = reach.variables if is_counted else {}
    mode, paths = code, graph.files
    if not isinstance(code, str):
        absolute = [os.path.abspath(os.fspath(path)) for path in code or ()]
        base = os.path.commonpath([os.path.dirname(path) for path in absolute]) if absolute else ""
        mode, paths = "files", {os.path.relpath(path, base): path for path in absolute}
    files = {file: source_digest(path, graph) for file, path in sorted(paths.items())}
    if mode == "script":
        for file, path in paths.items():
            source = graph.sources.get(path)
            if source is not None and not all(map(source.makes, reach.codes.get(path, ()))):
                files[file] = EDITED
    values: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for label, value in sorted(reach.values.items()):
        (values if value.holder is None else attributes)[label] = shown(label, value)
    return {
        "mode": mode if is_counted else None,
        "files": files,
        "definitions": dict(sorted(reach.definitions.items())) if isinstance(code, str) else {},
        "values": values if is_counted else {},
        "variables": {
            name: SECRET if value and (is_secret(name) or holds_secret(value)) else value
            for name, value in sorted(variables.items())
        },
        "attributes": attributes,
        "untracked": sorted(reach.ignored),
    }


def source_digest(path: str, graph: ImportGraph) -> str:
    if path in graph.edited:
        return EDITED
    if (source := graph.sources.get(path)) is not None:
        return source.digest
    check_machine_code(path)
    return digest_file(path, user_stat_cache()).digest.hex()


def shown(label: str, value: Value) -> dict[str, str]:
    if value.is_secret or any(is_secret(word) for word in _LABEL_WORDS.findall(label)):
        return {"digest": SECRET, "text": SECRET}
    return {"digest": value.digest, "text": value.text}


def static_key(path: str | os.PathLike[str], function_name: str) -> dict[str, Any]:
    """What the code part of a recipe is made of, for a name in a file that is never run or imported."""
    file = os.path.abspath(os.fspath(path))
    installed = Environment()
    search = [os.path.dirname(file), package_root(file), *sys.path]
    graph = ImportGraph(Places(installed.installed), search)
    graph.add_file(dotted_name(file), file)
    codes = [code for code in nested(graph.sources[file].code) if "<" not in code.co_qualname]
    definitions = {code.co_qualname: fingerprint(code) for code in codes}
    if function_name not in definitions:
        known = ", ".join(sorted(definitions)[:10]) or "nothing"
        raise UnkeyableError(f"{path} does not define {function_name!r}; it defines {known}")
    return {
        "files": {n: source_digest(p, graph) for n, p in sorted(graph.files.items())},
        "definitions": definitions,
        "distributions": installed.counted(graph.top_levels),
    }


# -- notes -------------------------------------------------------------------------------------------------


def notes_on_ranks(reach: Dependencies) -> Iterable[str]:
    if not any(map(_RANK.fullmatch, os.environ)) or any(os.environ.get(size) == "1" for size in _SIZES):
        return
    labels = [label.partition("#")[0] for label in reach.values if not label.startswith("config.")]
    names = {*reach.variables, *(label.rpartition(".")[2] for label in labels)}
    codes = [code for function in reach.labels.functions() for code in nested(function.__code__)]
    for name in sorted(filter(_RANK.fullmatch, names)):
        where = next((line for code in codes for line in _lines_of(name, code)), "")
        yield (
            f"{name} differs between the processes of this job and is in the key{where}, so every rank "
            f"preprocesses all items: exclude it with untracked=({name!r},), or read it outside the function"
        )


def _lines_of(name: str, code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        line = step.positions.lineno if step.positions is not None else None
        if line and step.argval == name and step.opname.startswith("LOAD"):
            text = linecache.getline(code.co_filename, line).strip()
            yield f" ({os.path.basename(code.co_filename)}:{line}: {text})"
