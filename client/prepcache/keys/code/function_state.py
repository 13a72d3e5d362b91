"""What a function holds beside its code: defaults, what its closure has bound, attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

EMPTY = object()
"""What a cell holds that nothing was bound to."""


def state_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What to put behind a function's label, and the value that it stands for; `EMPTY` for none."""
    code = function.__code__
    shown = names_without_addresses(function)
    named = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(named[len(named) - len(defaults) :], defaults, strict=True):
        yield f"({shown.get(name, name)}=)", value
    given = {shown.get(name, name): value for name, value in (function.__kwdefaults__ or {}).items()}
    for name, value in sorted(given.items()):
        yield f"({name}=)", value
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:
            content = EMPTY
        yield f"[{name}]", content
    for name, value in sorted(vars(function).items()):
        yield f".{name}", value


# NOTE [ Names that hold addresses ]
#     What a decorator makes from text may hand over objects as defaults of parameters that are named by the
#     object's address (beartype does). Such a parameter counts by the rest of its name and its place.
_ENDS_IN_NUMBER = re.compile(r"(.*\D)(\d{6,})$")


def names_without_addresses(function: FunctionType) -> dict[str, str]:
    """The parameters that are named by the address of their default, and how they count."""
    code = function.__code__
    named = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    values = dict(zip(named[len(named) - len(defaults) :], defaults, strict=True))
    values |= function.__kwdefaults__ or {}
    found = {}
    for place, name in enumerate(code.co_varnames):
        match = _ENDS_IN_NUMBER.match(name) if name in values else None
        if match is not None and int(match[2]) == id(values[name]):
            found[name] = f"{match[1]}@{place}"
    return found
