"""Which values of lazy modules count by a text alone; see NOTE [ Lazy modules ]."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prepcache.keys.code import as_loaded
from prepcache.keys.code.closure import Closure
from prepcache.keys.code.lazy import is_as_written
from prepcache.keys.code.texts import Texts

if TYPE_CHECKING:
    from prepcache.keys.code.reach import Reach


class Told:
    """The values that were found to be what a text says. Lives for one fingerprint.

    Args:
        closure: the files that count.
        texts: what they say.
        beside: begins another walk, for a value alone; None where all counts that was loaded.

    Attributes:
        labels: of the values, with their types; of one that is not loaded yet, `object`.
        loaded: those of them that are what loading gave, with their digests.
    """

    def __init__(self, closure: Closure, texts: Texts, beside: Callable[[], Reach] | None) -> None:
        self.labels: dict[str, type] = {}
        self.loaded: dict[str, str] = {}
        self._closure = closure
        self._texts = texts
        self._beside = beside

    def is_written(self, label: str, value: Any) -> bool:
        """Whether a value is what stands in a text."""
        is_so = is_as_written(self._closure, self._texts, *self._texts.split(label), value)
        if is_so:
            self.labels[label] = type(value)
        return is_so

    def is_loaded(self, label: str, value: Any) -> bool:
        """Whether a value is what the first call of a function has loaded."""
        known = as_loaded.digest_of(label)
        if known is None or self._beside is None or self._is_literal(label):
            return False
        walk = self._beside()
        if walk.hooks.digest(label, value) != known:
            return False
        self.labels[label] = type(value)
        self.loaded[label] = known
        return True

    def _is_literal(self, label: str) -> bool:
        """Whether all that a text says of a name is a literal: what it holds beside that, a call has left."""
        module, name = self._texts.split(label)
        outline = self._texts.outline(module)
        statements = outline.statements.get(name, ()) if outline is not None else ()
        nodes = [node for statement in statements for node in statement.nodes]
        if len(nodes) != 1 or not isinstance(nodes[0], ast.Assign | ast.AnnAssign) or nodes[0].value is None:
            return False
        try:
            ast.literal_eval(nodes[0].value)
        except ValueError:
            return False
        return True

    def expect(self, label: str) -> None:
        """Notes that a value will be as its text says, once its module is loaded."""
        self.labels.setdefault(label, object)

    def home(self, label: str) -> tuple[str, str]:
        """The module whose text makes what has a label, and the name in it."""
        module, dotted = self._texts.split(label)
        name = re.split(r"\W", dotted)[0]
        return self._texts.origin(module, name) or (module, name)
