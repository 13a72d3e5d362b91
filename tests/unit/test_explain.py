"""A miss says why: in the words of the input that changed, and against the nearest recipe."""

import copy
from typing import Any

import pytest

from prepcache.protocol.explain import differences, hint, nearest, summary


def parts() -> dict[str, Any]:
    return {
        "format": 1,
        "name": "prep.f",
        "code": {
            "mode": "script",
            "files": {"prep.py": "a", "pack/helper.py": "b"},
            "definitions": {"prep.f": "1", "pack.helper.g": "2"},
            "values": {"prep.K": {"digest": "3", "text": "3"}},
            "variables": {},
            "untracked": [],
        },
        "config": {"max_len": {"digest": "128", "text": "128"}},
        "environment": {
            "python": "cpython 3.11",
            "formats": {"encoding": 1},
            "torch_default_dtype": "torch.float32",
            "distributions": {"numpy": "2.1.0 aa"},
        },
        "version": None,
        "expand": False,
        "read": "path",
    }


def edited(*path: str, to: Any) -> dict[str, Any]:
    """The parts with one leaf set, or taken away where `to` is ...."""
    made = copy.deepcopy(parts())
    at: Any = made
    for name in path[:-1]:
        at = at[name]
    if to is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return made


@pytest.mark.parametrize(
    ("path", "to", "line"),
    [
        (("config", "max_len"), {"digest": "256", "text": "256"}, "config.max_len 128 -> 256"),
        (("config", "more"), {"digest": "1", "text": "1"}, "config.more (not there) -> 1"),
        (("config", "max_len"), ..., "config.max_len 128 -> (not there)"),
        (("code", "definitions", "prep.f"), "9", "prep.f changed"),
        (("code", "definitions", "prep.new"), "9", "prep.new is now used"),
        (("code", "definitions", "prep.f"), ..., "prep.f is not used any more"),
        (("code", "values", "prep.K"), {"digest": "4", "text": "4"}, "prep.K 3 -> 4"),
        (("code", "values", "prep.K"), ..., "prep.K is not used any more"),
        (("code", "values", "prep.torch"), {"digest": "4", "text": "torch"}, "prep.torch is now used"),
        (("code", "values", "prep.K"), {"digest": "4", "text": "3"}, "prep.K changed: 3"),
        (("code", "variables", "HOME"), "x", "environment variable HOME (not there) -> x"),
        (("environment", "distributions", "numpy"), "2.2.1 bb", "numpy 2.1.0 -> 2.2.1"),
        (("environment", "distributions", "numpy"), "2.1.0 bb", "numpy 2.1.0: its files changed"),
        (("environment", "python"), "cpython 3.12", "python cpython 3.11 -> cpython 3.12"),
        (("code", "files", "prep.py"), "9", "prep.py changed"),
        (("code", "definitions", "pack.helper.Table.look"), "9", "pack.helper.Table.look is now used"),
        (("config", "max_len"), {"digest": "x", "text": "\x1b[2J\n"}, "config.max_len 128 -> ?[2J?"),
        (("version",), "2", "version None -> 2"),
        (("expand",), True, "expand False -> True"),
    ],
)
def test_each_input_has_words_of_its_own(path, to, line):
    assert [d.line for d in differences(parts(), edited(*path, to=to))] == [line]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_switched_code_mode_is_explained_as_such(is_back):
    old, new = parts(), edited("code", "mode", to="function")
    new["code"]["files"] = {}
    new["environment"]["distributions"] = {}
    found = differences(new, old) if is_back else differences(old, new)
    lines = [d.line for d in found]
    assert lines[0] == "code= changed, " + ("function -> script" if is_back else "script -> function")
    assert len(lines) == 2, "nothing of files, which both modes use"
    assert hint(found) == ""


def test_the_nearest_recipe_has_the_fewest_differences():
    two = edited("config", "max_len", to={"digest": "1", "text": "1"})
    two["config"]["other"] = {"digest": "1", "text": "1"}
    library = edited("environment", "distributions", "numpy", to="9 x")
    found = nearest(parts(), [("two", two), ("library", library)])
    assert found is not None
    assert found[0] == "library"
    assert nearest(parts(), []) is None


def test_a_recipe_of_the_same_code_mode_explains_first():
    """A job in each mode, and an edit: the other mode's new recipe differs in nothing but its mode."""
    new = edited("code", "definitions", "prep.f", to="9")
    other = edited("code", "definitions", "prep.f", to="9")
    other["code"]["mode"] = "function"
    found = nearest(new, [("other", other), ("same", parts())])
    assert found is not None and (found[0], [d.line for d in found[1]]) == ("same", ["prep.f changed"])


def test_a_long_difference_is_counted_not_printed():
    new = parts()
    new["environment"]["distributions"] = {f"package-{i:02}": "2.1.0 digest" for i in range(30)}
    text = summary(differences(parts(), new))
    assert text.startswith("numpy 2.1.0 -> (not there), package-00 (not there) -> 2.1.0, ")
    assert text.endswith(", and 28 more") and len(text) < 120
    new["config"] = {f"k{i}": {"digest": str(i), "text": "x" * 500} for i in range(5)}
    text = summary(differences(parts(), new))
    assert text.startswith("config.k0 (not there) -> xxx") and text.endswith("x..., and 36 more")
    assert len(text) < 220


def test_differing_arguments_are_told_without_their_holder():
    def holding(whole: str, size: str) -> dict[str, Any]:
        leaves = {"args": (whole, "argparse.Namespace"), "args.size": (size, size), "args2": (whole, "other")}
        return {"config": {name: {"digest": d, "text": text} for name, (d, text) in leaves.items()}}

    found = differences(holding("a", "1"), holding("b", "2"))
    assert [one.name for one in found] == ["args.size", "args2"]
    assert [one.name for one in differences(holding("a", "1"), holding("b", "1"))] == ["args", "args2"]


def test_parts_from_a_stranger_do_not_break_it():
    for strange in ({}, {"code": 3}, {"code": {"files": []}}, {"config": {"a": None}}):
        differences(strange, parts())
        differences(parts(), strange)
    assert differences(edited("config", to=...), parts()) == [], "it was too large to be kept"


def test_long_texts_that_begin_alike_are_said_to_have_changed():
    first, second, third = (
        edited("config", "max_len", to={"digest": text[-1], "text": text})
        for text in ("a" * 100 + "x", "a" * 100 + "y", "b" * 100)
    )
    [line] = [d.line for d in differences(first, second)]
    assert line == f"config.max_len changed: {'a' * 77}..."
    [line] = [d.line for d in differences(first, third)]
    assert line == f"config.max_len {'a' * 77}... -> {'b' * 77}..."


def test_the_attribute_that_changed_is_named_and_not_its_holder():
    old, new = parts(), parts()
    place = "preprocess.transforms[0].readers[4].filenames"
    for made, digest in ((old, "1"), (new, "2")):
        made["code"]["values"]["preprocess"] = {"digest": digest, "text": "prep.Compose(n=1)"}
        made["code"]["attributes"] = {
            "preprocess.transforms": {"digest": digest, "text": "list"},
            place: {"digest": digest, "text": f"['{digest}.nii']"},
            "preprocess.n": {"digest": "1", "text": "1"},
        }
    assert [d.line for d in differences(old, new)] == [f"{place} ['1.nii'] -> ['2.nii']"]
    new["code"]["values"]["preprocess"]["text"] = "prep.Other()"
    new["code"]["attributes"] = {"preprocess.m": {"digest": "1", "text": "1"}}
    old["code"]["attributes"] = {"preprocess.n": {"digest": "1", "text": "1"}}
    lines = [d.line for d in differences(old, new)]
    assert lines[0] == "preprocess prep.Compose(n=1) -> prep.Other()" and len(lines) == 3
