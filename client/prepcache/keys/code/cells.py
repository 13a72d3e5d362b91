"""What a function reads of the variables of the function around it (cells).

    def main():
        args = parser.parse_args()
        def prep(path): return load(path, args.size)      # not args.lr

Invariants:
    1. A variable is taken for read in part only where its attributes are loaded from it and nothing else is
       done with it, here and in nested code; and where nothing may read it by a text, or from the frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType

from prepcache.keys.code.frames import READERS
from prepcache.keys.code.local_imports import chains_of_names
from prepcache.keys.code.names import all_names

OF_FRAMES = READERS | {
    "dir", "eval", "exec", "globals", "locals", "vars", "f_locals", "_getframe", "currentframe", "stack",
}  # fmt: skip


def cell_chains(code: CodeType, name: str) -> set[tuple[str, ...]]:
    """The chains of attributes that code reads from a variable around it; `()` for a use as a whole."""
    found = set(_chains(code, name))
    return found if found and OF_FRAMES.isdisjoint(all_names(code)) else {()}


def _chains(code: CodeType, name: str) -> Iterator[tuple[str, ...]]:
    yield from (chain for loaded, chain in chains_of_names(code) if loaded == name)
    for const in code.co_consts:
        if isinstance(const, CodeType) and name in const.co_freevars:
            yield from _chains(const, name)
