"""What counts in a recipe and has changed in this process since it was made.

Preprocessing between the two used some of the old and some of the new, so its samples belong to neither.

Invariants:
    1. What came up meanwhile (a module that the function imported) is no drift; what it was when it was first
       looked at counts from then on.
    2. A value that comes to contradict the text of its module has changed, and one that ceases to.
    3. What came up in another process counts only if that process cannot have loaded its module from an
       older text than the file that the recipe counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prepcache.keys.code.alters import Alters
from prepcache.keys.code.dependencies import Dependencies
from prepcache.keys.code.describe import decides
from prepcache.keys.environment import differing
from prepcache.keys.own_state import Moved, reopen
from prepcache.keys.recipes import Recipe, again, counted

OF_ANOTHER_TIME = " of another time"
"""Ends the label of a distribution, or of a file, of which another process has loaded another than counts."""


def drift(
    made: Recipe,
    met: dict[str, Any] | None = None,
    moved: dict[str, Moved] | None = None,
    *,
    is_elsewhere: bool = False,
) -> dict[str, bool]:
    """What has changed since a recipe was made.

    Args:
        met: what came up in earlier looks, and was so; grows by what comes up in this one.
        moved: takes what has changed of values and their attributes; see NOTE [ Own state ].
        is_elsewhere: in another process than the one that made it, which may have loaded other texts, or
            other versions of libraries: an executor may have been there before an edit.

    Returns:
        Labels of values, `$NAME` of environment variables, `config.<path>` of config leaves, files,
        distributions, and torch's default dtype, each with whether the function may have changed it itself;
        empty if nothing changed.
    """
    met = {} if met is None else met
    if made.preprocess is None or made.asked.get("code") is None:
        return {}
    now, reach = again(made)
    before, after = {**met, **counted(made)}, counted(now)
    drifted = [*_differing(before, after), *sorted(made.differing.keys() ^ now.differing.keys())]
    reopen(reach.hooks.reopened, made.preprocess)
    parts = reach.hooks.moved
    if moved is not None:
        moved.update(parts)
        moved.update({label: _moved(label, made, reach) for label in drifted if label in reach.owners})
    functions = [function.__code__ for function in reach.labels.functions()]
    alters = Alters([*functions, *reach.modules.codes()] if drifted or parts else ())
    # Definitions differ where modules were imported again, by another process, or functions were replaced.
    found = dict.fromkeys(
        _differing(made.parts["code"]["definitions"], now.parts["code"]["definitions"]), False
    )
    for label in drifted:
        is_variable = label.startswith("$")
        found[label] = alters.may_alter(
            *("environ", dict) if is_variable else (label, _kind_of(label, made, reach))
        )
    for place, part in parts.items():
        found[place] = part.is_library or alters.may_alter(place, part.kind)
    found |= dict.fromkeys(_differing(made.parts["environment"], now.parts["environment"]), False)
    others = differing(made.parts["environment"]["distributions"])
    if is_elsewhere:
        known = before.keys() | made.parts["code"]["definitions"].keys()
        came = [label for label in (*after, *now.parts["code"]["definitions"]) if label not in known]
        texts = reach.modules.older_texts(came)
        found = {label: own for label, own in found.items() if label.rpartition(".")[0] not in texts}
        others = [name + OF_ANOTHER_TIME for name in (*texts.values(), *others)]
    found |= dict.fromkeys(others, False)
    leaves, now_leaves = made.parts["config"], now.parts["config"]
    both = {**leaves, **now_leaves}
    paths = [path for path in both if decides(leaves.get(path)) != decides(now_leaves.get(path))]
    met.update({label: state for label, state in after.items() if label not in before})
    return found | {f"config.{path}": True for path in paths}  # the function was given those


def _moved(label: str, made: Recipe, reach: Dependencies) -> Moved:
    shown = made.parts["code"]["values"].get(label)
    original = made.asked["values"].get(label) if shown is not None else None
    return Moved(reach.owners[label], label, original)


def _kind_of(label: str, made: Recipe, reach: Dependencies) -> type:
    """The type of a value, or that which it had when it contradicted its text."""
    return reach.values[label].kind if label in reach.values else made.differing.get(label, object)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [label for label in before if label in after and decides(before[label]) != decides(after[label])]
