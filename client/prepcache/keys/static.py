"""What the code part of a key is made of, told from text: for the `prepcache key` command."""

from __future__ import annotations

import os
import sys
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.dynamic_lookups import variables_in
from prepcache.keys.code.fingerprint import fingerprint, nested
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.project import Places, dotted_name, package_root
from prepcache.keys.environment import Environment
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.recipe_parts import source_digest


def static_key(path: str | os.PathLike[str], function_name: str) -> dict[str, Any]:
    """What the code part of a recipe is made of, by text alone: FILE is never run or imported.

    Args:
        path: the source file.
        function_name: the qualified name of a function or class in it.

    Returns:
        {"files", "definitions", "literals", "variables", "distributions"}; run-time values are known
        only to a job.

    Raises:
        UnkeyableError: the file cannot be read or parsed, or does not define the name.
    """
    file = os.path.abspath(os.fspath(path))
    installed = Environment()
    search = [os.path.dirname(file), package_root(file), *sys.path]
    graph = ImportGraph(Places(installed.installed), search)
    module = dotted_name(file)
    graph.add_file(module, file)
    names = {path: name for name, path in graph.modules.items()}
    sources = sorted((names[path], source) for path, source in graph.sources.items() if path in names)
    definitions = {
        f"{name}.{code.co_qualname}": fingerprint(code)
        for name, source in sources
        for code in nested(source.code)
        if "<" not in code.co_qualname
    }
    if f"{module}.{function_name}" not in definitions:
        own = sorted(code.co_qualname for code in nested(graph.sources[file].code))
        known = ", ".join([name for name in own if "<" not in name][:10])
        raise UnkeyableError(f"{path} does not define {function_name!r}; it defines {known or 'nothing'}")
    return {
        "files": {n: source_digest(p, graph, user_stat_cache()) for n, p in sorted(graph.files.items())},
        "definitions": definitions,
        "literals": {
            f"{name}.{bound}": repr(literal)
            for name, source in sources
            for bound, literal in sorted(source.literals.items())
        },
        "variables": sorted({v for _, source in sources for v in variables_in(source.code, {})}),
        "distributions": installed.counted(graph.top_levels),
    }
