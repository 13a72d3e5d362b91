"""Options of the public functions that say how things count: what they take; all else is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_args

from prepcache.errors import UnkeyableError
from prepcache.keys.files.digest import Trust
from prepcache.keys.paths import Read


def check_reading(read: Any, trust: Any) -> None:
    """Raises ValueError for a misspelt `read=` or `trust=`: by a guess, other bytes would count."""
    for name, given, choices in (("read", read, get_args(Read)), ("trust", trust, get_args(Trust))):
        if given not in choices:
            raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {given!r}")


def check_config(config: Any) -> None:
    """Raises TypeError for what is no mapping of keyword arguments."""
    if config is not None and not isinstance(config, Mapping):
        kind = type(config).__name__
        raise TypeError(
            f"config must be a mapping of keyword arguments, not {kind}: "
            f'config={{"cfg": {kind}(...)}} passes it as keyword argument cfg'
        )
    for key in config or {}:
        if not isinstance(key, str):
            raise TypeError(f"config keys must be str, since they are keyword arguments, not {key!r}")


def check_code(code: Any, version: Any) -> None:
    """Raises for a `code=` or `version=` that cannot work."""
    is_list = isinstance(code, Collection) and not isinstance(code, str | bytes)
    if not (code is None or is_list or code in ("script", "function")):
        raise ValueError(f"code must be 'script', 'function', a list of paths or None, not {code!r}")
    if code is None and version is None:
        raise UnkeyableError("code=None counts no code: give version= to name the code")
    if version is not None and not isinstance(version, str | int):
        raise TypeError(f"version must be a str or int, not {type(version).__name__}")


def check_names(**lists: Any) -> None:
    """Raises TypeError for one text where a list of names is meant: its letters would be the names."""
    for name, given in lists.items():
        if isinstance(given, str | bytes):
            raise TypeError(f"{name} must be a list of names, not a str: {name}=[{given!r}]")
