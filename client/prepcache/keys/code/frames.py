"""Globals that a library looks up by a text in the frame of its caller: `table.query("size > @LIMIT")`.

    pandas, xarray    query, eval
    numexpr           evaluate, re_evaluate
    duckdb, polars    sql, query, from_query, execute: data frames by their names
    PyTables          read_where
    patsy             dmatrix, dmatrices

Where a function calls something of such a name, what its texts name counts as if its code did. Its texts
are those in its code, and in the globals, defaults and cells that the code names. Any other text (a rule in
an object, in the config, in code that hands it over) may be given to it, too: of these such as are more than
one word, since vocabularies are full of words.

Invariants:
    1. What texts name is told once they are all there: the order in which code is noted does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

from prepcache.keys.code.dynamic_lookups import texts_in
from prepcache.keys.code.functions import state_of
from prepcache.keys.code.names import Chains, all_names, global_chains

READERS = frozenset(
    {
        "query", "eval", "evaluate", "re_evaluate", "sql", "from_query", "execute", "read_where", "dmatrix",
        "dmatrices",
    }
)  # fmt: skip
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_LONGEST = 10_000
"""Characters of a text that may be an expression or a statement."""
_MOST = 1000
"""Elements of a table of rules that are looked at."""


class Frames:
    """The functions that such libraries are called by, and the texts that they may be given.

    Args:
        held: what stands as text in values; it grows.
    """

    def __init__(self, held: set[str]) -> None:
        self._held = held
        self._of_code: set[str] = set()
        self._callers: dict[int, dict[str, Any]] = {}
        self._told = (0, 0, 0)

    def note(self, function: FunctionType) -> None:
        self._of_code.update(_texts_of_code(function))
        if _calls_reader(function):
            self._callers[id(function.__globals__)] = function.__globals__

    def named(self) -> Iterator[tuple[dict[str, Any], Chains]]:
        """What any other texts name: namespaces, and names in them."""
        state = len(self._callers), len(self._held), len(self._of_code)
        if not self._callers or state == self._told:
            return
        self._told = state
        texts = [text for text in (*self._held, *self._of_code) if not text.isidentifier()]
        for space in self._callers.values():
            yield space, _named_by(texts, space)


def names_of(function: FunctionType) -> Chains:
    """The globals that a function names, in its code and in texts, and what is read from them."""
    chains = global_chains(function.__code__)
    if not _calls_reader(function):
        return chains
    values = [function.__globals__.get(name) for name in chains]
    texts = [*_texts_of_code(function), *_texts_within([*values, *(part for _, part in state_of(function))])]
    named = _named_by(texts, function.__globals__)
    return {name: chains.get(name, set()) | named.get(name, set()) for name in chains | named}


def words_in(code: CodeType) -> set[str]:
    """The words in the texts of code that calls such a library: any of them may name a global."""
    texts = [] if READERS.isdisjoint(all_names(code)) else list(texts_in(code))
    return {word.partition(".")[0] for text in texts if len(text) <= _LONGEST for word in _NAME.findall(text)}


def _calls_reader(function: FunctionType) -> bool:
    return not READERS.isdisjoint(all_names(function.__code__))


def _texts_of_code(function: FunctionType) -> Iterator[str]:
    return (text for text in texts_in(function.__code__) if text != function.__doc__)


def _texts_within(values: list[Any]) -> Iterator[str]:
    """The values that are texts, and the texts in lists and dicts."""
    for value in values:
        if type(value) is str:
            yield value
        elif type(value) in (list, tuple, set, frozenset, dict):
            parts = value.values() if type(value) is dict else value
            yield from (part for part in islice(parts, _MOST) if type(part) is str)


def _named_by(texts: Iterable[str], space: dict[str, Any]) -> Chains:
    """The globals of a namespace that texts name; a module only by what is read from it."""
    words = {word for text in texts if len(text) <= _LONGEST for word in _NAME.findall(text)}
    found: Chains = {}
    for word in words:
        name, *rest = word.split(".")
        if name in space and not name.startswith("__") and (rest or not isinstance(space[name], ModuleType)):
            found.setdefault(name, set()).add(tuple(rest))
    return found
