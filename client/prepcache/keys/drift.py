"""What counts in a recipe and has changed in this process since it was made.

Preprocessing between the two used some of the old and some of the new, so its samples belong to neither.

Invariants:
    1. What came up meanwhile (a module that the function imported) is no drift; what it was when it was first
       looked at counts from then on.
    2. What came up in another process counts only if that process cannot have loaded its module from an
       older text than the file that the recipe counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prepcache.keys.code.alters import Alters
from prepcache.keys.code.describe import decides
from prepcache.keys.environment import differing as differing_distributions
from prepcache.keys.own_state import differing
from prepcache.keys.recipes import Recipe, again

_CODE = "()"
"""Ends the label of a definition, where one of a value may be the same."""
OF_ANOTHER_TIME = " of another time"
"""Ends the label of a distribution, or of a file, of which another process has loaded another than counts."""


def drift(made: Recipe, met: dict[str, Any] | None = None, *, is_elsewhere: bool = False) -> dict[str, bool]:
    """What has changed since a recipe was made.

    Args:
        met: what came up in earlier looks, and was so; grows by what comes up in this one.
        is_elsewhere: in another process than the one that made it, which may have loaded other texts, or
            other versions of libraries: an executor may have been there before an edit.

    Returns:
        Labels of values, `$NAME` of environment variables, `config.<path>` of config leaves, attributes by
        their places, files, distributions, and torch's default dtype, each with whether the function may
        have changed it itself; empty if nothing changed.
    """
    met = {} if met is None else met
    if made.preprocess is None or made.asked.get("code") is None:
        return {}
    now, reach = again(made)
    before = made.state._replace(values=met | made.state.values | _definitions(made))
    after = now.state._replace(values=now.state.values | _definitions(now))
    drifted = differing(before, after, own=made.own)
    functions = [function.__code__ for function in reach.labels.functions()]
    alters = Alters([*functions, *reach.modules.codes()] if drifted else ())
    found: dict[str, bool] = {}
    for label in drifted:
        value = reach.values.get(label)
        if value is not None and value.is_attribute and not reach.is_project(type(reach.owners[label])):
            found[label] = True  # the object's own code may change it
        elif label.endswith(_CODE):  # modules were imported again, or functions replaced
            found[label.removesuffix(_CODE)] = False
        elif label.startswith("$"):
            found[label] = alters.may_alter("environ", dict)
        elif label.startswith("config."):
            found[label] = True  # the function was given those
        else:
            found[label] = alters.may_alter(label, object if value is None else value.kind)
    found |= dict.fromkeys(_differing(made.parts["environment"], now.parts["environment"]), False)
    others = differing_distributions(made.parts["environment"]["distributions"])
    came = {label: value for label, value in after.values.items() if label not in before.values}
    if is_elsewhere:
        texts = reach.modules.older_texts(came)
        found = {label: own for label, own in found.items() if label.rpartition(".")[0] not in texts}
        others = [name + OF_ANOTHER_TIME for name in (*texts.values(), *others)]
    met |= {label: value for label, value in came.items() if label not in found}
    return found | dict.fromkeys(others, False)


def _definitions(made: Recipe) -> dict[str, str | None]:
    return {label + _CODE: print_ for label, print_ in made.parts["code"]["definitions"].items()}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [label for label in before if label in after and decides(before[label]) != decides(after[label])]
