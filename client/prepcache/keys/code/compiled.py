"""Code objects: what they do, apart from where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from blake3 import blake3

from prepcache.keys.code.parsed import text_of


def shape(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, without where it stands: equal shapes run alike."""
    return (
        code.co_code,
        tuple(const_shape(c) for c in code.co_consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_name,
        code.co_exceptiontable,
    )


def const_shape(value: Any) -> Any:
    """The shape of one of a code object's constants."""
    if isinstance(value, CodeType):
        return shape(value)
    if isinstance(value, tuple):
        return ("tuple", tuple(const_shape(v) for v in value))
    if isinstance(value, frozenset):
        return ("frozenset", tuple(sorted(repr(const_shape(v)) for v in value)))
    return (type(value).__name__, text_of(value))


def code_digest(code: CodeType, names: Mapping[str, str] | None = None) -> str:
    """The digest of a code object's shape: how functions count that have no source.

    Args:
        names: other names for some of its variables.
    """
    if names:
        code = _renamed(code, names)
    return blake3(repr(shape(code)).encode("utf-8", "surrogatepass")).hexdigest()


def _renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    tables: dict[str, Any] = {
        table: tuple(names.get(name, name) for name in getattr(code, table))
        for table in ("co_varnames", "co_freevars", "co_cellvars")
    }
    consts = tuple(_renamed(one, names) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_consts=consts, **tables)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_of(const)
