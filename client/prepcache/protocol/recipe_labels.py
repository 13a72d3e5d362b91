"""What tells recipes of one name apart, in a few words each: of a sweep, the config values that differ.

Pure: no I/O. Parts are those of `Recipe.parts` (recipes.py), in which what is secret is a keyed hash.

Invariants:
    1. What all of the recipes have alike is not named.
    2. No two read alike: where an input does, the beginning of its digest stands behind it; where all of a
       line does, or nothing is known of a recipe, that of the recipe.
    3. What comes from parts is text from somebody else's job: it is shown, cut to a bound, and never run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from prepcache.protocol.explain import LISTED, SECTIONS, leaf, mapping, printable, version
from prepcache.protocol.units import middle_cut

WORD_CHARS = 32
"""Of a name or a value: enough for a number, or for both ends of a path. Of a longer value, what all recipes
begin or end with is left out."""
ALL_CHARS = 60
"""Of all that is named of a recipe, after the first; the rest is counted."""
DIGITS = 6
"""Of an input's digest: enough to tell those of a listing apart."""
RECIPE_DIGITS = 8
"""Of a recipe's: the commands take them for `--recipe`."""

_ORDER = ("config", "value", "variable", "file", "definition", "distribution", "setting")
"""Sections, those that say most to who started the jobs first."""

_BORDERS = " ,;()[]{}"
"""Between the words of a text."""

Member = tuple[str, str, str]
"""The part that an input stands in, its section and its name."""


def apart(recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What each recipe has that not all of them have.

    Args:
        recipes: their parts, by their digests; empty where nobody knows them.
    """
    texts = {digest: _texts(parts) for digest, parts in recipes.items()}
    found_texts: dict[Member, set[str]] = defaultdict(set)
    for found in texts.values():
        for member, (_, text) in found.items():
            found_texts[member].add(text)
    alike = {member: _alike(some) for member, some in found_texts.items()}
    members = {
        digest: {one: (decides, _words(one, text, alike[one])) for one, (decides, text) in found.items()}
        for digest, found in texts.items()
    }
    ways: dict[Member, set[str | None]] = defaultdict(set)
    readings: dict[tuple[Member, str], set[str]] = defaultdict(set)
    for told in members.values():
        for member, (decides, words) in told.items():
            ways[member].add(decides)
            readings[member, words].add(decides)
    for digest, parts in recipes.items():
        for member, seen in ways.items():
            if member[0] in parts and member not in members[digest]:
                seen.add(None)
    telling = _telling({member for member, seen in ways.items() if len(seen) > 1})
    lines = {}
    for digest, told in members.items():
        own = [(member, *told[member]) for member in telling if member in told]
        lines[digest] = _line(
            [f"{words} {decides[:DIGITS]}" if len(readings[member, words]) > 1 else words
             for member, decides, words in own]
        )  # fmt: skip
    same = Counter(lines.values())
    return {
        digest: line if line and same[line] == 1 else f"{line}, recipe {digest[:RECIPE_DIGITS]}".lstrip(", ")
        for digest, line in lines.items()
    }


def _texts(parts: Mapping[str, Any]) -> dict[Member, tuple[str, str]]:
    """What decides, and what there is to read, of all that a recipe counts."""
    found = {}
    of_files = bool(mapping(parts, "code", "files"))
    for section, path in SECTIONS:
        if section == "definition" and of_files:
            continue  # they stand in those
        for name, value in mapping(parts, *path).items():
            decides, text = leaf(value)
            found[path[0], section, name] = decides or "", text or ""
    for path in LISTED:
        if path[0] in parts:
            value = str(mapping(parts, *path[:-1]).get(path[-1]))
            found[path[0], "setting", path[-1]] = value, value
    return found


def _alike(texts: set[str]) -> tuple[int, int]:
    """With how many characters all begin, and end, up to the words that differ."""
    if len(texts) == 1:
        return 0, 0
    before = _beginning(texts)
    left = min(map(len, texts)) - len(before)
    behind = _beginning({text[::-1][:left] for text in texts})[::-1]
    begins = max(before.rfind(one) for one in _BORDERS) + 1
    ends = min((at for one in _BORDERS if (at := behind.find(one)) >= 0), default=len(behind))
    return begins, len(behind) - ends


def _beginning(texts: set[str]) -> str:
    """What all begin with: what the first and the last in order do."""
    first, last = min(texts), max(texts)
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _words(member: Member, text: str, alike: tuple[int, int]) -> str:
    _, section, whole_name = member
    name = middle_cut(printable(whole_name), WORD_CHARS)
    if section in ("file", "definition"):
        return name
    if section == "distribution":
        return f"{name} {version(middle_cut(printable(text), WORD_CHARS))}"
    if len(text) > WORD_CHARS:
        begins, ends = alike
        text = "…" * bool(begins) + text[begins : len(text) - ends].strip() + "…" * bool(ends)
    return f"{'$' * (section == 'variable')}{name}={middle_cut(printable(text), WORD_CHARS)}"


def _telling(differing: set[Member]) -> list[Member]:
    """Those that say most first, without the objects that hold others of them."""
    holders = {(*one[:2], one[2].rpartition(".")[0]) for one in differing if one[1] == "config"}
    return sorted(differing - holders, key=lambda one: (_ORDER.index(one[1]), one[2]))


def _line(words: list[str]) -> str:
    shown: list[str] = []
    for one in words:
        if shown and len(", ".join([*shown, one])) > ALL_CHARS:
            return f"{', '.join(shown)} and {len(words) - len(shown)} more"
        shown.append(one)
    return ", ".join(shown)
