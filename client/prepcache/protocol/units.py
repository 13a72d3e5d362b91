"""Sizes, counts, times and ages as people read and write them."""

from __future__ import annotations

import functools
import pwd
import re

from prepcache.errors import ConfigError

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNITS_BYTES = {"": 1, "B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGTP", start=1)
    for unit, base in ((f"{letter}B", 1000), (f"{letter}IB", 1024), (letter, 1024))
}
TEXT_LIMIT = 80  # characters of a value that a line shows
_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*([A-Z]*)\Z")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\Z")


def size_text(size_bytes: float) -> str:
    """`1536` -> `1.5 KiB`; three digits at most, so that a column can be compared at a glance."""
    size = float(size_bytes)
    for unit in _SIZES[:-1]:
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_SIZES[-1]}"


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text as a line shows it: printable, and cut to a bound."""
    return printable(text if len(text) <= limit else text[: limit - 3] + "...")


def printable(text: str) -> str:
    """The text with a question mark for each character that would move the cursor, or worse."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


@functools.lru_cache(1024)
def user_name(uid: int | None) -> str:
    """Asks the machine's directories, which may take long."""
    if uid is None:
        return "by token"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def count_text(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def span_text(seconds: float) -> str:
    """`4000` -> `1.1 h`: one number and one unit."""
    for unit, length_s in _SPANS:
        if seconds >= length_s:
            count = seconds / length_s
            return f"{count:.0f} {unit}" if count >= 10 or unit == "s" else f"{count:.1f} {unit}"
    return "0 s" if seconds <= 0 else f"{seconds:.2g} s"


def age_text(then_s: float, now_s: float) -> str:
    """How long ago; clocks of two machines may differ by a little."""
    age_s = now_s - then_s
    return "now" if age_s < 1 else f"{span_text(age_s)} ago"


def parse_size(text: str) -> int:
    """Bytes in `4096`, `50GB` (1000**3), `1.5 TiB` (1024**4). Raises ConfigError."""
    found = _SIZE.match(text.strip().upper())
    if found is None or found[2] not in _UNITS_BYTES:
        raise ConfigError(f"{text!r} is not a size; write it as 4096, 500MB, 50GB or 1.5TiB")
    return int(float(found[1]) * _UNITS_BYTES[found[2]])


def parse_span(text: str) -> float:
    """Seconds in `90s`, `45m`, `12h`, `30d` or `2w`. Raises ConfigError."""
    found = _SPAN.match(text.strip().lower())
    if found is None or found[2] not in _UNITS_S:
        raise ConfigError(f"{text!r} is not a duration; write it as 90s, 45m, 12h, 30d or 2w")
    return float(found[1]) * _UNITS_S[found[2]]
