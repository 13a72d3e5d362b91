"""Members of messages: what a JSON value must be, and dataclasses that read and write themselves so.

A message is a frozen dataclass below `Message`; its annotations are the format. `Annotated[T, check]`
adds a check to a type; nested messages, `tuple[T, ...]`, `Mapping[str, T]` and `T | None` are read
recursively.

Invariants:
    1. Whatever JSON comes in, `from_json` gives a whole, checked message or raises `BadRequest` that
       names the member (`artifacts[3].digest`). It never raises anything else.
    2. Unknown members are ignored, so that a newer peer of the same protocol may say more. (The daemon
       refuses them in the requests of people: exchange.py, invariant 3.)
    3. `true` is not a number, a number is not text, and NaN and infinities are nothing.
"""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Self, Union, cast, get_args, get_origin, get_type_hints

from prepcache.digests import DIGEST_BYTES, is_hex64
from prepcache.errors import BadRequest

Check = Callable[[Any, str], Any]
"""(value, where) -> the value as the message holds it; raises `BadRequest` naming `where`."""

MAX_INT = 2**63 - 1
MAX_TALLY = 10**9
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls (terminals take U+009B for an escape, too), line ends, and what turns the order of characters."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}\Z")


def refuse(where: str, must: str, value: Any) -> BadRequest:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return BadRequest(f"{where or 'the body'} must be {must}, not {shown}", field=where)


def text(value: Any, where: str) -> str:
    """Up to 4096 characters that can be printed and written as UTF-8: no control characters."""
    if not isinstance(value, str) or len(value) > 4096:
        raise refuse(where, "text of at most 4096 characters", value)
    if _UNPRINTABLE.search(value):
        raise refuse(where, "text without control characters", value)
    return value


def natural(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise refuse(where, "a whole number from 0 to 2^63 - 1", value)
    return value


def tally(value: Any, where: str) -> int:
    """How many items, where the daemon adds them up: no job has more, and one request spoils no counter."""
    if natural(value, where) > MAX_TALLY:
        raise refuse(where, f"at most {MAX_TALLY}", value)
    return cast(int, value)


def whole(value: Any, where: str) -> int:
    if type(value) is not int or not -MAX_INT <= value <= MAX_INT:
        raise refuse(where, "a whole number", value)
    return value


def amount(value: Any, where: str) -> float:
    """A finite number, not below 0: seconds, mostly."""
    if type(value) not in (int, float) or not 0 <= value <= 1e18:
        raise refuse(where, "a finite number, not below 0", value)
    return float(value)


def flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise refuse(where, "true or false", value)
    return value


def hex64(value: Any, where: str) -> str:
    if not isinstance(value, str) or not is_hex64(value):
        raise refuse(where, "64 lower-case hex digits", value)
    return value


def token(value: Any, where: str) -> str:
    """What may stand in a URL or a header unquoted."""
    if not isinstance(value, str) or not _TOKEN.match(value):
        raise refuse(where, "1 to 128 of A-Z a-z 0-9 _ -", value)
    return value


def file_name(value: Any, where: str) -> str:
    """A name inside one folder: no separator, no leading dot."""
    if not isinstance(value, str) or not _FILE_NAME.match(value):
        raise refuse(where, "a plain file name of at most 128 characters", value)
    return value


def folder(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value or len(value) > 4096:
        raise refuse(where, "an absolute path", value)
    return value


def digest_run(value: Any, where: str) -> bytes:
    """n * 32 bytes, written as hex."""
    if not isinstance(value, str):
        raise refuse(where, "hex digits", value)
    try:
        run = bytes.fromhex(value) if value.isalnum() or not value else None
    except ValueError:
        run = None
    if run is None or len(run) % DIGEST_BYTES:
        raise refuse(where, f"hex digits of a multiple of {DIGEST_BYTES} bytes", value)
    return run


def at_most(limit: int) -> Check:
    """The list, text or run of digests before it has at most `limit` elements (digests, for a run)."""

    def check(value: Any, where: str) -> Any:
        count = len(value) // DIGEST_BYTES if isinstance(value, bytes) else len(value)
        if count > limit:
            raise BadRequest(f"{where} has {count} elements; at most {limit} are taken", field=where)
        return value

    return check


def json_object(value: Any, where: str) -> dict[str, Any]:
    """Any JSON object, kept as it is."""
    if not isinstance(value, dict):
        raise refuse(where, "a JSON object", value)
    return value


Text = Annotated[str, text]
Token = Annotated[str, token]
Natural = Annotated[int, natural]
Tally = Annotated[int, tally]
Amount = Annotated[float, amount]
DigestRun = Annotated[bytes, digest_run]
JsonObject = Annotated[Mapping[str, Any], json_object]


def _in_turn(checks: tuple[Check, ...]) -> Check:
    def check(value: Any, where: str) -> Any:
        for one in checks:
            value = one(value, where)
        return value

    return check


def _many(of: Check) -> Check:
    def check(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise refuse(where, "a list", value)
        return tuple(of(one, f"{where}[{i}]") for i, one in enumerate(value))

    return check


def _mapping(of: Check) -> Check:
    def check(value: Any, where: str) -> dict[str, Any]:
        return {text(k, where): of(v, f"{where}.{k}") for k, v in json_object(value, where).items()}

    return check


def _optional(of: Check) -> Check:
    return lambda value, where: None if value is None else of(value, where)


_PLAIN: dict[Any, Check] = {str: text, int: whole, float: amount, bool: flag}


def _check_of(annotation: Any) -> Check:
    """The check that an annotation stands for."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = (_check_of(args[0]),) if _is_readable(args[0]) else ()
        return _in_turn((*inner, *args[1:]))
    if origin in (Union, types.UnionType):
        return _optional(_check_of(next(a for a in args if a is not type(None))))
    if origin is tuple:
        return _many(_check_of(args[0]))
    if origin is Mapping:
        return _mapping(_check_of(args[1]))
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return annotation.from_json
    return _PLAIN[annotation]


def _is_readable(annotation: Any) -> bool:
    """Whether an annotation has a check of its own: `NewType`s and `Mapping[str, Any]` have none."""
    if get_origin(annotation) is Mapping:
        return get_args(annotation)[1] is not Any
    return get_origin(annotation) is not None or annotation in _PLAIN


@functools.cache
def _checks_of(message: Any) -> dict[str, tuple[Check, bool]]:
    """Of each member of a message class: its check, and whether it may be left out."""
    hints = get_type_hints(message, include_extras=True)
    return {
        f.name: (_check_of(hints[f.name]), f.default is not MISSING or f.default_factory is not MISSING)
        for f in fields(message)
    }


def _to_json(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_to_json(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages."""

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """The message that `value` (parsed JSON) holds.

        Raises:
            BadRequest: it is not such a message; the text and `.field` name the member.
        """
        given, itself = json_object(value, where), cast(Any, cls)
        members = {}
        for name, (check, may_lack) in _checks_of(itself).items():
            path = f"{where}.{name}" if where else name
            if name in given:
                members[name] = check(given[name], path)
            elif not may_lack:
                raise BadRequest(f"{path} is missing", field=path)
        return cls(**members)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dict; runs of digests as hex, tuples as lists."""
        return {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}
