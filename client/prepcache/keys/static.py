"""What the code part of a key is made of, told from text: for the `prepcache key` command."""

from __future__ import annotations

import os
import sys
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.closure import Closure
from prepcache.keys.code.memory import Memory
from prepcache.keys.code.modules import Finder
from prepcache.keys.code.project import Places, dotted_name, package_root
from prepcache.keys.environment import Environment
from prepcache.keys.memo import user_memo
from prepcache.keys.recipes import source_digest


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
    memory = Memory()
    installed = Environment()
    search = [os.path.dirname(file), package_root(file), *sys.path]
    closure = Closure(Finder(search, Places(installed.installed), is_loaded=False), memory)
    module = dotted_name(file)
    closure.add_file(module, file)
    parsed = closure.parsed[file]
    if not any(d.qualname == function_name for d in parsed.definitions):
        known = ", ".join(sorted({d.qualname for d in parsed.definitions if "<" not in d.qualname})[:10])
        raise UnkeyableError(f"{path} defines no {function_name!r}; it defines {known or 'nothing'}")
    names = {p: m for m, p in closure.modules.items()}
    return {
        "files": {n: source_digest(p, closure, user_memo()) for n, p in sorted(closure.files.items())},
        "definitions": {
            f"{names[p]}.{d.qualname}": d.digest
            for p, found in sorted(closure.parsed.items())
            for d in found.definitions
            if p in names and "<" not in d.qualname
        },
        "literals": {
            f"{names[p]}.{n}": text
            for p, found in sorted(closure.parsed.items())
            for n, text in sorted(found.literals.items())
            if p in names
        },
        "variables": sorted({v for found in closure.parsed.values() for v in found.variables}),
        "distributions": installed.counted(closure.top_levels),
    }
