"""What annotations that are text name: they will mean what is there when somebody reads them."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

_LONGEST = 200
"""Characters of a text that is taken for an annotation."""


def names_in(annotations: Iterable[Any]) -> set[str]:
    """The dotted names in the annotations that are text, and in texts within them but for `Literal`'s."""
    return {name for one in annotations if isinstance(one, str) for name in _names_in(one)}


@lru_cache(maxsize=4096)
def _names_in(text: str) -> frozenset[str]:
    if len(text) > _LONGEST:
        return frozenset()
    with suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return frozenset(_named(ast.parse(text.strip(), mode="eval").body))
    return frozenset()


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
    elif isinstance(node, ast.Constant):
        yield from _names_in(node.value) if isinstance(node.value, str) else ()
    elif not (isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")):
        for part in ast.iter_child_nodes(node):
            yield from _named(part)
