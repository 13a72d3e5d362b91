"""Members of messages: what a JSON value must be, and dataclasses that read and write themselves so.

A message is a frozen dataclass below `Message`; its annotations are the format, which msgspec reads, checks
and describes as JSON Schema.

Invariants:
    1. Whatever JSON comes in, `from_json` gives a whole, checked message or raises `BadRequest` that
       names the member (`artifacts[3].digest`). It never raises anything else.
    2. Unknown members are ignored, so that a newer peer of the same protocol may say more. (The daemon
       refuses them in the requests of people: routes/messages.py, invariant 3.)
    3. `true` is not a number, a number is not text, and NaN and infinities are nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, cast

import msgspec
from msgspec import Meta

from prepcache.digests import DIGEST_BYTES, is_hex64
from prepcache.errors import BadRequest

MAX_INT = 2**63 - 1
MAX_TALLY = 10**9
HEX = "0f" * 32
ID = "3c" * 16
_END = r"$(?!\n)"
"""`$` alone also matches before a line end; `\\Z` is not in the regular expressions of JSON Schema."""
_WORDS = {
    "^[0-9a-f]*" + _END: "64 lower-case hex digits",
    "^[A-Za-z0-9_-]+" + _END: "1 to 128 of A-Z a-z 0-9 _ -",
    "^[A-Za-z0-9_-][A-Za-z0-9_.-]*" + _END: "a plain file name of at most 128 characters",
    "^/[^\\x00]*" + _END: "an absolute path",
    "^[^\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]*" + _END: (
        "text without control characters"
    ),
}
"""Patterns, and what people are told of them. Text may hold no controls (terminals take U+009B for an escape,
too), no line ends, and nothing that turns the order of characters."""
_HEX_PATTERN, _TOKEN_PATTERN, _FILE_PATTERN, _FOLDER_PATTERN, _TEXT_PATTERN = _WORDS
HEX64 = Meta(pattern=_HEX_PATTERN, min_length=64, max_length=64, examples=[HEX])
token = Meta(pattern=_TOKEN_PATTERN, max_length=128, examples=[ID])
file_name = Meta(pattern=_FILE_PATTERN, max_length=128, examples=[f"{ID}.1"])
folder = Meta(pattern=_FOLDER_PATTERN, max_length=4096, examples=["/var/cache/prepcache"])


def text(limit: int) -> Meta:
    """Up to so many characters, none of which a terminal obeys."""
    return Meta(pattern=_TEXT_PATTERN, max_length=limit, examples=["text"])


Text = Annotated[str, text(4096)]
Token = Annotated[str, token]
Whole = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT, examples=[1])]
Natural = Annotated[int, Meta(ge=0, le=MAX_INT, examples=[1])]
Tally = Annotated[int, Meta(ge=0, le=MAX_TALLY, examples=[1])]
"""How many items, where the daemon adds them up: no job has more, and one request spoils no counter."""
Amount = Annotated[float, Meta(ge=0, le=1e18, examples=[1.5])]
"""A finite number, not below 0: seconds, mostly."""
JsonObject = Mapping[str, Any]
DigestRun = Annotated[
    bytes,
    Meta(
        description="item digests, 64 hex digits each, concatenated",
        extra_json_schema={"contentEncoding": "base16", "examples": [HEX]},
    ),
]
"""n * 32 bytes, written as hex; named in the `RUNS` of its message."""


def at_most(limit: int) -> Meta:
    """The list, text or bytes before it has at most `limit` elements."""
    return Meta(max_length=limit)


def hex64(value: Any, where: str) -> str:
    """A key or digest, before it becomes part of a URL."""
    if not isinstance(value, str) or not is_hex64(value):
        raise _bad(where, f"{_WORDS[_HEX_PATTERN]}, not {value!r:.60}")
    return value


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages.

    Args:
        RUNS: members that are runs of digests.
    """

    RUNS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The message that `value` (parsed JSON) holds.

        Raises:
            BadRequest: it is not such a message; the text and `.field` name the member.
        """
        given = value
        if cls.RUNS and isinstance(value, dict):
            given = {**value, **{name: _run(value[name], name) for name in cls.RUNS if name in value}}
        try:
            return msgspec.convert(given, cls, builtin_types=(bytes,))
        except (msgspec.ValidationError, RecursionError) as error:
            raise _refusal(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dict; runs of digests as hex."""
        told = cast("dict[str, Any]", msgspec.to_builtins(self, builtin_types=(bytes,)))
        return {**told, **{name: told[name].hex() for name in self.RUNS}}


def _run(value: Any, where: str) -> bytes:
    try:
        run = bytes.fromhex(value) if isinstance(value, str) and (value.isalnum() or not value) else None
    except ValueError:
        run = None
    if run is None or len(run) % DIGEST_BYTES:
        raise _bad(where, f"hex digits, a multiple of {DIGEST_BYTES} bytes")
    return run


def _refusal(fault: str) -> BadRequest:
    """What msgspec found, by the member's path; patterns in words."""
    what, _, path = fault.partition(" - at `$")
    where = path.removesuffix("`").lstrip(".")
    if missing := re.match("Object missing required field `(.+)`", what):
        where = f"{where}.{missing[1]}".lstrip(".")
        return BadRequest(f"{where} is missing", field=where)
    must = what.removeprefix("Expected ").replace(", got ", ", not ")
    if pattern := re.match("`str` matching regex '(.*)'", must):
        must = next((words for one, words in _WORDS.items() if repr(one)[1:-1] == pattern[1]), must)
    return _bad(where, must)


def _bad(where: str, must: str) -> BadRequest:
    return BadRequest(f"{where or 'the body'} must be {must}", field=where)
