"""Why it missed: the difference between the readable parts of two recipes, and the nearest recipe of many.

Pure: no I/O. The daemon uses it for `POST /v1/explain`, the client for its line at open, the command for
`prepcache explain`. Parts are those of `Recipe.parts` (recipes.py), kept by the daemon beside each recipe.

Invariants:
    1. Two parts with no difference belong to recipes with one digest: what enters the digest is in the parts.
    2. What comes from parts is text from somebody else's job: it is shown, cut to a bound, and never run.
    3. A part that one side lacks as a whole (too large to be kept) is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from prepcache.protocol.units import TEXT_LIMIT, printable, shortened

if TYPE_CHECKING:
    from prepcache.protocol.inspection import Explanation

_BEFORE = 24
"""Characters that are shown before the first that differs, as `max_len=`, where a text is cut."""
LINE_CHARS = 200
"""Characters of differences that the line at open shows, after the first one, before it counts the rest."""

SECRET = "secret"
"""What parts show in the place of a value whose name looks secret."""
_ABSENT, _UNREAD = "(not there)", "(not read)"


@dataclass(frozen=True)
class Difference:
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
        nothing = _UNREAD if self.section == "value" else _ABSENT
        old, new = (_shown(text, nothing) for text in _from_where_they_differ(self.old, self.new))
        if self.section == "file":
            return f"{self.name} {_change(self.old, self.new)}"
        if self.section == "definition":
            return f"{self._definition()} {_change(self.old, self.new)}"
        if self.section == "variable":
            return f"environment variable {self.name} {old} -> {new}"
        if (
            self.section == "distribution"
            and self.old
            and self.new
            and version(self.old) == version(self.new)
        ):
            return f"{self.name} {version(self.new)}: its files changed"
        if self.section == "distribution":
            return f"{self.name} {_shown(version(self.old))} -> {_shown(version(self.new))}"
        if (self.section, self.name) == ("setting", "mode"):
            return f"code= changed, {old} -> {new}"
        name = f"config.{self.name}" if self.section == "config" else self.name
        if self.old == self.new:
            return f"{name} changed" + ("" if self.old == SECRET else f": {new}")
        return f"{name} {old} -> {new}"

    def _definition(self) -> str:
        """`prep.py: def f` for `prep.f` in `prep.py`."""
        name = self.name if self.file is None else self.name[len(_dotted(self.file)) + 1 :]
        kind = "class" if name.rpartition(".")[2][:1].isupper() else "def"
        return f"{kind} {name}" if self.file is None else f"{self.file}: {kind} {name}"


def version(distribution: str | None) -> str | None:
    """The version out of `2.1.0 <digest of its files>`."""
    return distribution.split(" ")[0] if distribution else None


def _shown(text: str | None, nothing: str = _ABSENT) -> str:
    return nothing if text is None else shortened(text)


def _from_where_they_differ(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """Two texts of which a line cannot show all, less most of what both begin with."""
    if old is None or new is None or max(len(old), len(new)) <= TEXT_LIMIT:
        return old, new
    alike = next((i for i, (was, now) in enumerate(zip(old, new, strict=False)) if was != now), 0)
    cut = alike - _BEFORE
    return (old, new) if cut <= len("...") else (f"...{old[cut:]}", f"...{new[cut:]}")


def _change(old: str | None, new: str | None) -> str:
    return "is new" if old is None else "is gone" if new is None else "changed"


def mapping(parts: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """What the parts have there; empty where they have no such section."""
    value: Any = parts
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def leaf(value: Any) -> tuple[str | None, str | None]:
    """(what decides, what is shown) of one input of a section."""
    if value is None:
        return None, None
    if isinstance(value, Mapping):
        return str(value.get("digest")), str(value.get("text"))
    return str(value), str(value)


SECTIONS = (
    ("config", ("config",)),
    ("file", ("code", "files")),
    ("definition", ("code", "definitions")),
    ("value", ("code", "values")),
    ("variable", ("code", "variables")),
    ("distribution", ("environment", "distributions")),
    ("setting", ("environment", "formats")),
)
"""Where the parts hold inputs by name, those that say most first."""
_ATTRIBUTES = ("attribute", ("code", "attributes"))
"""What values, and objects in the config, hold: they say more than their holder, which counts."""
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
"""Inputs that stand alone."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Every input in which two recipes' parts differ, config first.

    A file whose reached definitions differ is not named beside them, nor are the values of a definition that
    is new or gone, nor the object that holds arguments which are: the others say it better. Where `code=`
    was switched, what of the code only one of the two counts is there because of that.
    """
    files = _modules(mapping(new, "code", "files")) | _modules(mapping(old, "code", "files"))
    found = [
        Difference(section, name, old_text, new_text, _file_of(name, files, section))
        for section, path in (*SECTIONS, _ATTRIBUTES)
        if path[0] in old and path[0] in new
        for name, old_text, new_text in _section(mapping(old, *path), mapping(new, *path))
    ]
    for path in LISTED:
        if path[0] not in old or path[0] not in new:
            continue
        before, after = (mapping(parts, *path[:-1]).get(path[-1]) for parts in (old, new))
        if before != after:
            found.append(Difference("setting", path[-1].replace("_", " "), str(before), str(after)))
    if any((d.section, d.name) == ("setting", "mode") for d in found):
        found = [d for d in found if d.section not in _OF_CODE or None not in (d.old, d.new)]
        found.sort(key=lambda d: (d.section, d.name) != ("setting", "mode"))
    found = _by_class(found, old, new)
    told = {d.file for d in found if d.section == "definition"}
    holders = {d.name.rpartition(".")[0] for d in found if d.section == "config"}
    known = _holders(mapping(old, *_ATTRIBUTES[1]).keys() & mapping(new, *_ATTRIBUTES[1]).keys())
    parts = [d.name for d in found if d.section == "attribute" and _holders([d.name]) & known]
    held = _holders(parts) | {f"config.{d.name}" for d in found if d.section == "config"}
    whole = {d.name for d in found if d.section == "definition" and (d.old is None or d.new is None)}
    return [
        d
        for d in found
        if not (d.section == "file" and d.name in told)
        and not (d.section == "config" and (d.name in holders or f"config.{d.name}" in _holders(parts)))
        and not (d.section == "attribute" and (d.name in held or d.name not in parts))
        and not (d.section == "value" and d.name in held)
        and not (d.section == "value" and (d.old is None or d.new is None) and _owners(d.name) & whole)
    ]


def _by_class(found: list[Difference], old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """The differences, with one line for a class of which several methods or attributes differ.

    A new field of a dataclass changes all that the decorator makes for it.
    """
    before, after = mapping(old, "code", "definitions"), mapping(new, "code", "definitions")
    classes = [name for name in before if before[name] == after.get(name) == "class"]

    def class_of(one: Difference) -> str | None:
        inside = [name for name in classes if one.name.startswith(f"{name}.")]
        return max(inside, key=len) if inside and one.section in ("definition", "value") else None

    counts = Counter(class_of(one) for one in found)
    kept, told = [], set()
    for one in found:
        name = class_of(one)
        if "__create_fn__" in one.name and any(counts[each] > 1 for each in classes):
            continue
        if name is None or counts[name] == 1:
            kept.append(one)
        elif name not in told:
            told.add(name)
            files = _modules(mapping(new, "code", "files"))
            kept.append(Difference("definition", name, "class", "class", _file_of(name, files, "definition")))
    return kept


def _holders(places: Iterable[str]) -> set[str]:
    """What holds the attributes at some places: for `f.reader[1].name` `f.reader[1]`, `f.reader` and `f`."""
    return {place[:at] for place in places for at, mark in enumerate(place) if mark in ".["}


def _owners(label: str) -> set[str]:
    """The definitions that a value's label may belong to: `f`, `f[cell]`, `f(default=)`, `A.attribute`."""
    return {label, *(label[:at] for at, mark in enumerate(label) if mark in ".[(")}


def _section(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str | None, str | None]]:
    for name in sorted({*old, *new}):
        (old_digest, old_text), (new_digest, new_text) = leaf(old.get(name)), leaf(new.get(name))
        if old_digest != new_digest:
            yield name, old_text, new_text


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _modules(files: Mapping[str, Any]) -> dict[str, str]:
    """Files by the dotted names of their modules."""
    return {_dotted(file): file for file in files}


def _file_of(name: str, files: Mapping[str, str], section: str) -> str | None:
    """The file that a definition's label, `pack.prep.Class.method`, points into."""
    while section == "definition" and "." in name:
        name = name.rpartition(".")[0]
        if name in files:
            return files[name]
    return None


def is_unreached_only(found: Iterable[Difference], parts: Mapping[str, Any]) -> bool:
    """Whether only lines that the function does not reach changed: `code="function"` would have hit.

    Args:
        parts: of the recipe that missed. Only `code="script"` knows both the files and what is reached, and
            not of files that only imports in functions bring in, which count whole.
    """
    code = mapping(parts, "code")
    modules = _modules(mapping(code, "files"))
    known = {_file_of(label, modules, "definition") for label in mapping(code, "definitions")}
    listed = list(found)
    is_of_files = all(one.section == "file" and one.name in known for one in listed)
    return code.get("mode") == "script" and bool(listed) and is_of_files


def weight(found: Iterable[Difference]) -> tuple[int, int]:
    """How far apart two recipes are: inputs that differ, those of the environment counted last."""
    listed = list(found)
    near = sum(difference.section not in ("distribution", "setting") for difference in listed)
    return near, len(listed)


def nearest(
    parts: Mapping[str, Any], candidates: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[str, list[Difference]] | None:
    """The candidate with the fewest differences, and those; the first of equals.

    Args:
        parts: of the recipe that missed.
        candidates: (recipe digest, parts), the most recently used first.
    """
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
_CUES = ("data", "code", "config", "environment", "observed")
_CUE_OF = {"config": "config", "variable": "environment", "distribution": "environment"}
_ENVIRONMENT_SETTINGS = ("python", "optimize", "torch default dtype", "format", "encoding", "environment")


def cues(explanation: Explanation) -> list[Cue]:
    """A row for each kind of input: data, code, config, environment, observed.

    A recipe without entries is compared with the nearest recipe by its code, config and environment. Its
    items and observed inputs are not compared.
    """
    told = explanation
    if told.is_partial:
        said = {told.cue: Cue(told.cue, CHANGED, [told.summary])}
        return [said.get(name) or Cue(name, SAME) for name in _CUES]
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


def summary(found: Sequence[Difference], parts: Mapping[str, Any]) -> str:
    """The differences on one line.

    Args:
        parts: of the recipe that missed.
    """
    lines: list[str] = []
    for difference in found:
        line = difference.line
        if lines and len(", ".join([*lines, line])) > LINE_CHARS:
            lines.append(f"and {len(found) - len(lines)} more")
            break
        lines.append(line)
    text = ", ".join(lines) or "the same inputs"
    if is_unreached_only(found, parts):
        text += ' (only in lines that the function does not reach: code="function" would have hit)'
    return text
