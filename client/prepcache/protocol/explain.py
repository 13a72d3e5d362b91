"""Why it missed: the difference between the readable parts of two recipes, and the nearest recipe of many.

Invariants:
    1. Two parts with no difference belong to recipes with one digest, if no secret differs.
    2. What comes from parts is text from somebody else's job: it is shown, cut to a bound, and never run.
    3. A part that one side lacks as a whole (too large to be kept) is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from prepcache.protocol.inspection import Difference, Explanation
from prepcache.protocol.units import shortened

LINE_CHARS = 100  # of differences on the line at open, after the first one; the rest is counted
SHOWN_CHARS = 1000  # characters of a name or value in a difference; its line has fewer

SECRET = "secret"  # what parts show in the place of a value whose name looks secret


def _difference(section: str, name: str, old: str | None, new: str | None) -> Difference:
    """One input that differs, such as `config.max_len 128 -> 256`."""
    was, now = (None if text is None else shortened(text, SHOWN_CHARS) for text in (old, new))
    line = shortened(_words(section, name, old, new), SHOWN_CHARS)
    return Difference(section, shortened(name, SHOWN_CHARS), was, now, line)


def _words(section: str, name: str, old: str | None, new: str | None) -> str:
    if section in ("definition", "file") or (section == "value" and None in (old, new)):
        change = "is now used" if old is None else "is not used any more" if new is None else "changed"
        return f"{name} {change}"
    if (section, name) == _MODE:
        name = "code= changed,"
    name = {"config": "config.", "variable": "environment variable "}.get(section, "") + name
    if section == "distribution":  # `2.1.0 <digest of its files>`
        old, new = (text.split(" ")[0] if text else None for text in (old, new))
        if old == new:
            return f"{name} {new}: its files changed"
    was, now = ("(not there)" if text is None else shortened(text) for text in (old, new))
    if was == now:
        return f"{name} may have changed: it is secret" if old == SECRET else f"{name} changed: {now}"
    return f"{name} {was} -> {now}"


def _place(one: Difference) -> str:
    return f"config.{one.name}" if one.section == "config" else one.name


def _above(one: Difference) -> set[str]:
    """What holds its place: for `f.reader[1].name` `f.reader[1]`, `f.reader` and `f`."""
    place = _place(one)
    return {place[:at] for at, mark in enumerate(place) if mark in ".[("}


def mapping(parts: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    value: Any = parts
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


_ABSENT = (None, None)
SECTIONS = {
    "config": ("config",),
    "file": ("code", "files"),
    "definition": ("code", "definitions"),
    "value": ("code", "values"),
    "attribute": ("code", "attributes"),
    "variable": ("code", "variables"),
    "distribution": ("environment", "distributions"),
    "environment": ("environment", "formats"),
}
"""Where the parts hold inputs by name, those that say most first."""
_ORDER = (*SECTIONS, "setting")
LISTED = (
    ("code", "mode"),
    ("code", "untracked"),
    ("environment", "python"),
    ("environment", "optimize"),
    ("environment", "torch_default_dtype"),
    ("version",),
    ("expand",),
    ("read",),
    ("format",),
)
_MODE = ("setting", "mode")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Every input in which two recipes' parts differ, `code=` and the config first, without objects beside
    attributes of theirs; all secrets, where there is none."""
    both = old.keys() & new.keys()
    before, after = (_inputs({name: parts[name] for name in both}) for parts in (old, new))
    found = list[Difference]()
    for section, name in before | after:
        (was, was_shown), (now, now_shown) = (one.get((section, name), _ABSENT) for one in (before, after))
        if was != now:
            found.append(_difference(section, name, was_shown, now_shown))
    if not found:
        secrets = [at for at, (digest, _) in after.items() if digest == SECRET]
        found = [_difference(section, name, SECRET, SECRET) for section, name in secrets]
    found.sort(key=lambda d: ((d.section, d.name) != _MODE, _ORDER.index(d.section), d.name))
    parts_of = (d for d in found if d.section in ("config", "attribute") and None not in (d.old, d.new))
    if found and (found[0].section, found[0].name) == _MODE:  # files count whole in one of the two
        found = [d for d in found if d.section != "file"]
    holders = set().union(*map(_above, parts_of))
    return [d for d in found if d.section not in ("config", "attribute", "value") or _place(d) not in holders]


def hint(found: Iterable[Difference]) -> str:
    """What to do where files differ, and no definition that the function uses."""
    sections = {one.section for one in found}
    if "file" not in sections or "definition" in sections:
        return ""
    return 'with code="function" only the definitions that the function uses count'


def _leaf(value: Any) -> tuple[str, str]:
    if isinstance(value, Mapping):
        return str(value.get("digest")), str(value.get("text"))
    return str(value), str(value)


def _inputs(parts: Mapping[str, Any]) -> dict[tuple[str, str], tuple[str, str]]:
    """What decides, and what is shown, of each input by its section and name."""
    found = {
        (section, name): _leaf(one)
        for section, path in SECTIONS.items()
        for name, one in mapping(parts, *path).items()
        if one is not None
    }
    for *path, name in (one for one in LISTED if one[0] in parts):
        value = str(mapping(parts, *path).get(name))
        section = "environment" if path == ["environment"] else "setting"
        found[section, name.replace("_", " ")] = value, value
    return found


def nearest(
    parts: Mapping[str, Any], candidates: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[str, list[Difference]] | None:
    """The candidate (digest, parts) with the fewest differences, and these; the first of equals. One of the
    same `code=` comes first, and differences of the environment count last."""
    all_found = [(digest, differences(other, parts)) for digest, other in candidates]

    def distance(one: tuple[str, list[Difference]]) -> tuple[bool, int, int]:
        is_switched = any((d.section, d.name) == _MODE for d in one[1])
        counted = sum(d.section not in ("distribution", "environment", "setting") for d in one[1])
        return is_switched, counted, len(one[1])

    return min(all_found, key=distance, default=None)


class Cue(NamedTuple):
    """One kind of input, whether it is what it was, and what differs in it, a line each."""

    name: str
    state: str
    lines: Sequence[str] = ()


NEW, SAME, CHANGED, NOT_COMPARED = "new", "same", "changed", "not compared"
INCOMPLETE = "incomplete"
LOOK_ALIKE = (
    "new items, edited files, files under other paths and removed samples look alike: their names are not "
    "stored; `prepcache status` tells if there was no room for some"
)
_CUES = ("data", "code", "config", "environment", "observed")
_CUE_OF = {"config": "config"} | dict.fromkeys(("variable", "distribution", "environment"), "environment")


def cues(told: Explanation) -> list[Cue]:
    """A row for each kind of input. Items and observed inputs of another recipe are not compared."""
    states, lines = dict.fromkeys(_CUES, SAME), dict[str, list[str]]()
    if told.is_partial:
        states |= {"data": INCOMPLETE} if told.cue == "data" else {told.cue: CHANGED}
        lines[told.cue] = [told.summary, LOOK_ALIKE] if told.cue == "data" else [told.summary]
    elif told.nearest is None and not told.was_there:
        states = dict.fromkeys(_CUES, NEW)
    elif not told.was_there:
        states |= {"data": NOT_COMPARED, "observed": NOT_COMPARED}
        for one in told.differences:
            cue = _CUE_OF.get(one.section, "code")
            states[cue] = CHANGED
            lines.setdefault(cue, []).append(one.line)
    return [Cue(name, states[name], lines.get(name, ())) for name in _CUES]


def summary(found: Sequence[Difference]) -> str:
    """The differences on one line."""
    lines: list[str] = []
    for difference in found:
        line = difference.line
        if lines and len(", ".join([*lines, line])) > LINE_CHARS:
            lines.append(f"and {len(found) - len(lines)} more")
            break
        lines.append(line)
    return ", ".join(lines) or "the same inputs"
