"""The code that items hold: the classes of instances in them, and functions. In the items they are names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import FunctionType

from prepcache.errors import UnkeyableError
from prepcache.keys.code import labels
from prepcache.keys.code.dependencies import Dependencies

Held = type | FunctionType


def name_of(held: Held) -> str:
    """How items name a class or a function."""
    module = labels.class_module(held) if isinstance(held, type) else held.__module__
    return f"{module}.{held.__qualname__}"


def refer(all_held: Sequence[Held], reach: Dependencies) -> None:
    """Counts what items hold.

    Args:
        all_held: sorted by name.

    Raises:
        UnkeyableError: two have one name, or what one of them reaches has no stable bytes.
    """
    own = [held for held in all_held if _is_own(held, reach)]
    for before, held in itertools.pairwise(own):
        if name_of(before) == name_of(held):
            kind = "classes" if isinstance(held, type) else "functions"
            raise UnkeyableError(
                f"items: two {kind} are named {name_of(held)}: rename one, or pass plain values as items and "
                "let the function build the objects"
            )
    for held in own:
        if isinstance(held, FunctionType):
            reach.add(f"items.{name_of(held)}", held)
        else:
            reach.refer_class(held)
    reach.run()


def _is_own(held: Held, reach: Dependencies) -> bool:
    """Whether a name in the items stands for more than a part of an installed library."""
    if isinstance(held, type):
        return reach.is_project(held)
    is_named = held.__closure__ is None and "<" not in held.__qualname__ and not vars(held)
    return not (is_named and reach.is_library(held))
