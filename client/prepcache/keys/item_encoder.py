"""The encoder of items: what their paths name, and what objects in them are made of.

An item that holds an instance or a function says only its name. What that name stands for counts in the
recipe: each is noted in `classes`, and `recipes.with_classes` counts those of the project by definition.

Invariants:
    1. A slot is one path met in an item: its name and its stamp. Where the digest of a regular file
       belongs, the number of its slot is written, so that many files can be looked up together.
    2. No state of an object is left out silently: what it does not give away is refused.
"""

from __future__ import annotations

import sys
import types
from array import array
from collections.abc import Iterable
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

from prepcache.digests import DIGEST_BYTES
from prepcache.keys.encoding.encoder import Encoder, Put, length
from prepcache.keys.files.digest import Digested, Trust, digest_file, digest_tree, tree_stamp
from prepcache.keys.files.stamps import stamp_of
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.markers import Tree
from prepcache.keys.paths import PathRules

if TYPE_CHECKING:
    from prepcache.keys.code.project import Places

_WAYS_OUT = (
    "pass plain values as the item (a path, a number, a dict), give its class a "
    "`__prepcache_key__()` method, or call `register_key(type, function)`"
)
_NO_STAMP = (0, 0, 0, 0, 0)


class ItemEncoder(Encoder):
    """Encodes items. `names` and `rows` (the five numbers of a stamp) hold every slot.

    Args:
        rules: what paths stand for.
        stat_cache, trust: for digests that cannot wait: of directories, and of what has to be sorted.
        is_probe: read nothing; digests are left zero.
    """

    ways_out = _WAYS_OUT

    def __init__(
        self,
        rules: PathRules,
        stat_cache: StatCache | None = None,
        trust: Trust = "stat",
        *,
        is_probe: bool = False,
    ) -> None:
        super().__init__()
        self.rules = rules
        self.stat_cache = stat_cache
        self.trust = trust
        self.is_probe = is_probe
        self.names: list[str | bytes] = []
        self.rows = array("q")
        self.known: dict[int, Digested] = {}
        """What was digested at once, by slot."""
        self.missing: list[str | bytes] = []
        self.classes: dict[type | FunctionType, None] = {}
        """Of instances that were met, and functions that they hold."""
        self.text_files = 0
        self.text_file = ""
        """How many str name files, and the first that does."""
        self._is_part = False

    def put_path(self, value: Any, put: Put) -> bool:
        named = self.rules.look_up(value, self)
        if named is None:
            return False
        tag = b"P" if isinstance(value, Tree) else b"S" if isinstance(value, str) else b"p"
        slot, stamp = len(self.names), _NO_STAMP
        self.names.append(named.name)
        if named.info is None:
            put(tag + length(len(named.head)) + named.head)
            self.known[slot] = Digested(b"", _NO_STAMP, False)
            self.missing.append(named.name)
        else:
            put(tag + length(len(named.head) + DIGEST_BYTES) + named.head)
            if self.is_probe:
                stamp = tree_stamp(named.name) if named.is_tree else stamp_of(named.info)
                put(bytes(DIGEST_BYTES))
            elif named.is_tree or self._is_part:
                digest = digest_tree if named.is_tree else digest_file
                self.known[slot] = digested = digest(named.name, self.stat_cache, self.trust)
                stamp = digested.stamp
                put(digested.digest)
            else:
                stamp = stamp_of(named.info)
                put(slot)
        self.rows.extend(stamp)
        if tag == b"S":
            self.note_text_files(str(value), 1)
        return True

    def note_text_files(self, first: str, count: int) -> None:
        """Note that str name files."""
        self.text_file = self.text_file or first
        self.text_files += count

    def part(self, value: Any, step: str | int) -> bytes:
        before, self._is_part = self._is_part, True
        raw = super().part(value, step)
        self._is_part = before
        return raw

    def put_class_of(self, value: Any, put: Put) -> None:
        self.classes[type(value)] = None
        super().put_class_of(value, put)

    def put_code(self, value: Any, put: Put) -> None:
        """Write a function or class by its name; a method or partial as any object, by what it is made of."""
        if getattr(value, "__module__", None) == "builtins" or isinstance(value, types.ModuleType):
            super().put_code(value, put)
        elif isinstance(value, type | FunctionType):
            self.classes[value] = None
            kind = "class" if isinstance(value, type) else "function"
            payload = f"{kind}:{value.__module__}.{value.__qualname__}".encode()
            put(b"C" + length(len(payload)) + payload)
        else:
            self.put_object(value, put)

    def is_library(self, cls: type) -> bool:
        return _is_library(cls)


def without_libraries(held: Iterable[type | FunctionType]) -> list[type | FunctionType]:
    """Classes and functions, less classes of libraries: these count by name."""
    return [one for one in held if isinstance(one, FunctionType) or not _is_library(one)]


def _is_library(cls: type) -> bool:
    from prepcache.keys.code import labels
    from prepcache.keys.code.project import Place

    return labels.place_of_class(cls, _places(tuple(sys.path))) is not Place.PROJECT


@lru_cache(maxsize=1)
def _places(path: tuple[str, ...]) -> Places:
    from prepcache.keys.code.project import Places
    from prepcache.keys.environment import Environment

    return Places(Environment(path).installed)
