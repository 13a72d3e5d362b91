"""Why it missed: the difference between the readable parts of two recipes, and the nearest recipe of many.

Pure: no I/O. Parts are those of `Recipe.parts` (recipes.py), kept by the daemon beside each recipe.

Invariants:
    1. Two parts with no difference belong to recipes with one digest: what enters the digest is in the parts.
    2. What comes from parts is text from somebody else's job: it is shown, cut to a bound, and never run.
    3. A part that one side lacks as a whole (too large to be kept) is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from prepcache.protocol.units import printable, shortened

if TYPE_CHECKING:
    from prepcache.protocol.inspection import Explanation

LINE_CHARS = 100
"""Characters of differences that the line at open shows, after the first one, before it counts the rest."""

COUNTS_FILES = 'with code="function" only the definitions that the function uses count'
"""What to do where a file counted as a whole."""
SECRET = "secret"
"""What parts show in the place of a value whose name looks secret."""


class Difference(NamedTuple):
    """One input that differs.

    Args:
        section: "config", "file", "definition", "value", "attribute", "variable", "distribution", "setting".
        name: what differs, such as `max_len`, `prep.py`, `prep.normalise`, `numpy`.
        old, new: readable values; None where the input is not there.
        file: the file that a definition stands in, where the parts tell.
    """

    section: str
    name: str
    old: str | None
    new: str | None
    file: str | None = None

    @property
    def line(self) -> str:
        """The difference in words, such as `config.max_len 128 -> 256` or `numpy 2.1.0 -> 2.2.1`."""
        return printable(self._words())

    def _words(self) -> str:
        old, new, name = self.old, self.new, self.name
        change = "is new" if old is None else "is gone" if new is None else "changed"
        if self.section == "definition":
            place = "" if self.file is None else f"{self.file}: "
            name = name if self.file is None else name[len(_dotted(self.file)) + 1 :]
            kind = "class" if name.rpartition(".")[2][:1].isupper() else "def"
            return f"{place}{kind} {name} {change}"
        if self.section == "file":
            return f"{name} {change}"
        name = {"config": "config.", "variable": "environment variable "}.get(self.section, "") + name
        if (self.section, name) == ("setting", "mode"):
            name = "code= changed,"
        if self.section == "distribution":  # `2.1.0 <digest of its files>`
            old, new = (text.split(" ")[0] if text else None for text in (old, new))
            if old == new:
                return f"{name} {new}: its files changed"
        nothing = "(not read)" if self.section == "value" else "(not there)"
        was, now = (nothing if text is None else shortened(text) for text in (old, new))
        if was == now:
            return f"{name} changed" + ("" if old == SECRET else f": {now}")
        return f"{name} {was} -> {now}"

    @property
    def place(self) -> str:
        return f"config.{self.name}" if self.section == "config" else self.name

    @property
    def above(self) -> set[str]:
        """What holds its place: for `f.reader[1].name` `f.reader[1]`, `f.reader` and `f`."""
        return {self.place[:at] for at, mark in enumerate(self.place) if mark in ".[("}


def mapping(parts: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """What the parts have there; empty where they have no such section."""
    value: Any = parts
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


SECTIONS = (
    ("config", ("config",)),
    ("file", ("code", "files")),
    ("definition", ("code", "definitions")),
    ("attribute", ("code", "attributes")),
    ("value", ("code", "values")),
    ("variable", ("code", "variables")),
    ("distribution", ("environment", "distributions")),
    ("setting", ("environment", "formats")),
)
"""Where the parts hold inputs by name, those that say most first."""
_OF_CODE = ("file", "definition", "value", "attribute", "variable", "distribution")
"""What depends on `code=`; the distributions are those that the counted files import."""
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


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Every input in which two recipes' parts differ, config first, without those that another says better.

    A file is left out beside a definition of it that differs, and an object beside its attributes. So is what
    is new or gone inside of something that differs, and, where `code=` was switched, what of the code only
    one of the two counts.
    """
    files = {_dotted(file): file for parts in (old, new) for file in mapping(parts, "code", "files")}
    found = [
        Difference(section, name, old_text, new_text, _file_of(name, files, section))
        for section, path in SECTIONS
        if path[0] in old and path[0] in new
        for name, old_text, new_text in _section(mapping(old, *path), mapping(new, *path))
    ]
    is_switched = False
    for path in LISTED:
        if path[0] in old and path[0] in new:
            before, after = (mapping(parts, *path[:-1]).get(path[-1]) for parts in (old, new))
            if before != after:
                is_switched |= path == ("code", "mode")
                found.append(Difference("setting", path[-1].replace("_", " "), str(before), str(after)))
    if is_switched:
        found = [d for d in found if d.section not in _OF_CODE or None not in (d.old, d.new)]
        found.sort(key=lambda d: (d.section, d.name) != ("setting", "mode"))
    definitions = {d.place for d in found if d.section == "definition"}
    differing = definitions | {d.place for d in found if d.section in ("value", "attribute")}
    found = [
        d
        for d in found
        if d.section not in ("value", "attribute")
        or None not in (d.old, d.new)
        or not (d.above & differing or d.place in definitions)
    ]
    of_files = {d.file for d in found}
    holders = set().union(*(d.above for d in found if d.section in ("config", "attribute")))
    return [
        d
        for d in found
        if not (d.section == "file" and d.name in of_files)
        and not (d.section in ("config", "attribute", "value") and d.place in holders)
    ]


def _section(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str | None, str | None]]:
    for name in sorted({*old, *new}):
        (old_digest, old_text), (new_digest, new_text) = _leaf(old.get(name)), _leaf(new.get(name))
        if old_digest != new_digest:
            yield name, old_text, new_text


def _leaf(value: Any) -> tuple[str | None, str | None]:
    """(what decides, what is shown) of one input of a section."""
    if isinstance(value, Mapping):
        return str(value.get("digest")), str(value.get("text"))
    return (None, None) if value is None else (str(value), str(value))


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _file_of(name: str, files: Mapping[str, str], section: str) -> str | None:
    """The file that a definition's label, `pack.prep.Class.method`, points into."""
    while section == "definition" and "." in name:
        name = name.rpartition(".")[0]
        if name in files:
            return files[name]
    return None


def weight(found: Iterable[Difference]) -> tuple[int, int]:
    """How far apart two recipes are: inputs that differ, those of the environment counted last."""
    listed = list(found)
    near = sum(difference.section not in ("distribution", "setting") for difference in listed)
    return near, len(listed)


def nearest(
    parts: Mapping[str, Any], candidates: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[str, list[Difference]] | None:
    """The candidate (digest, parts) with the fewest differences, and those; the first of equals."""
    best: tuple[str, list[Difference]] | None = None
    for digest, other in candidates:
        found = differences(other, parts)
        if best is None or weight(found) < weight(best[1]):
            best = digest, found
    return best


class Cue(NamedTuple):
    """One kind of input, whether it is what it was, and what differs in it, a line each."""

    name: str
    state: str
    lines: Sequence[str] = ()


NEW, SAME, CHANGED, NOT_COMPARED = "new", "same", "changed", "not compared"
INCOMPLETE = "incomplete"
LOOK_ALIKE = "new items, edited files and removed samples look alike: their names are not stored"
_CUES = ("data", "code", "config", "environment", "observed")
_CUE_OF = {"config": "config", "variable": "environment", "distribution": "environment"}
_ENVIRONMENT_SETTINGS = ("python", "optimize", "torch default dtype", "format", "encoding", "environment")


def cues(explanation: Explanation) -> list[Cue]:
    """A row for each kind of input. Items and observed inputs of another recipe are not compared."""
    told = explanation
    if told.is_partial:
        said = {
            "data": Cue("data", INCOMPLETE, [told.summary, LOOK_ALIKE]),
            "observed": Cue("observed", CHANGED, [told.summary]),
        }
        return [said[name] if name == told.cue else Cue(name, SAME) for name in _CUES]
    if told.was_there:
        return [Cue(name, SAME) for name in _CUES]
    if told.nearest is None:
        return [Cue(name, NEW) for name in _CUES]
    lines: dict[str, list[str]] = {}
    for one in told.differences:
        cue = _CUE_OF.get(one.section, "code")
        if one.section == "setting" and one.name in _ENVIRONMENT_SETTINGS:
            cue = "environment"
        lines.setdefault(cue, []).append(one.line)
    compared = [
        Cue(name, CHANGED if name in lines else SAME, lines.get(name, ()))
        for name in ("code", "config", "environment")
    ]
    return [Cue("data", NOT_COMPARED), *compared, Cue("observed", NOT_COMPARED)]


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
