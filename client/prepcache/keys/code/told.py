"""Which values of lazy modules count by a text alone; see NOTE [ Lazy modules ]."""

from __future__ import annotations

from typing import Any

from prepcache.keys.code.closure import Closure
from prepcache.keys.code.lazy import is_as_written
from prepcache.keys.code.texts import Texts


class Told:
    """The values that were found to be what a text says. Lives for one fingerprint.

    Args:
        closure: the files that count.
        texts: what they say.

    Attributes:
        labels: of the values, with their types; of one that is not loaded yet, `object`.
    """

    def __init__(self, closure: Closure, texts: Texts) -> None:
        self.labels: dict[str, type] = {}
        self._closure = closure
        self._texts = texts

    def is_written(self, label: str, value: Any) -> bool:
        """Whether a value is what stands in a text."""
        is_so = is_as_written(self._closure, self._texts, *self._texts.split(label), value)
        if is_so:
            self.labels[label] = type(value)
        return is_so

    def expect(self, label: str) -> None:
        """Notes that a value will be as its text says, once its module is loaded."""
        self.labels.setdefault(label, object)
