"""Recipes of one name are told apart by what differs between them, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from prepcache.protocol.recipe_labels import ALL_CHARS, WORD_CHARS, apart

ONE, TWO, THREE = "1a" * 32, "2b" * 32, "3c" * 32


def parts(config: dict[str, str], **changed: Any) -> dict[str, Any]:
    """The readable parts of a recipe with these config values; `changed` are sections of its code."""
    leaves = {name: {"digest": f"{text} is its digest", "text": text} for name, text in config.items()}
    code = {"mode": "script", "files": {"prep.py": "aaaaaaaaaa"}, "definitions": {"prep.f": "1" * 10}}
    around = {"python": "cpython 3.11", "distributions": {"numpy": "2.1.0 dddddddd"}}
    return {"format": 1, "config": leaves, "code": code | changed, "environment": around, "version": None}


def test_sweeps_are_told_apart_by_the_values_that_differ() -> None:
    found = apart(
        {
            ONE: parts({"size": "224", "crop": "24", "lr": "0.1"}),
            TWO: parts({"size": "256", "crop": "24", "lr": "0.1"}),
            THREE: parts({"size": "256", "crop": "32"}),
        }
    )
    assert found == {
        ONE: "crop=24, lr=0.1, size=224", TWO: "crop=24, lr=0.1, size=256", THREE: "crop=32, size=256"
    }  # fmt: skip


def test_what_reads_the_same_is_told_apart_by_its_digest() -> None:
    hidden = [parts({"size": "1"}) for _ in range(3)]
    for number, one in enumerate(hidden):
        one["config"]["api_key"] = {"digest": f"{number // 2}1234567890", "text": "secret"}
        one["config"]["size"] = {"digest": str(number % 2), "text": str(number % 2)}
    assert apart(dict(zip((ONE, TWO, THREE), hidden, strict=True))) == {
        ONE: "api_key=secret 012345, size=0",
        TWO: "api_key=secret 012345, size=1",
        THREE: "api_key=secret 112345, size=0",
    }


CFG = "pkg.Config(size=128, mean=0.485, interpolation='bilinear', seed={}, workers=3, device='cpu')"


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ((CFG.format(0), CFG.format(1)), ("…seed=0…", "…seed=1…")),
        ((CFG.format(10), CFG.format(100)), ("…seed=10…", "…seed=100…")),
        ((CFG.format("0, more=1"), CFG.format(0)), ("…more=1, workers=3…", "…workers=3…")),
        ((CFG, "other" + CFG), ("pkg.Config…", "otherpkg.Config…")),
        (("a" * 40, "b" + "a" * 40), ("a" * 15 + "…" + "a" * 16, "b" + "a" * 14 + "…" + "a" * 16)),
        (("Config(seed=0)", "Config(seed=1)"), ("Config(seed=0)", "Config(seed=1)")),
    ],
)
def test_of_a_long_text_the_words_that_differ_are_told(texts: tuple[str, str], told: tuple[str, str]) -> None:
    one, other = (parts({"cfg": text}) for text in texts)
    assert apart({ONE: one, TWO: other}) == {ONE: f"cfg={told[0]}", TWO: f"cfg={told[1]}"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"files": {"prep.py": "bbbbbbbbbb"}, "definitions": {"prep.f": "2" * 10}}, "prep.py bbbbbb"),
        ({"values": {"prep.K": {"digest": "7", "text": "7"}}}, "prep.K=7"),
        ({"variables": {"HOME": "/root"}}, "$HOME=/root"),
        ({"mode": "files"}, "mode=files"),
    ],
)
def test_recipes_that_differ_in_code_are_told_apart_by_that(changed: dict[str, Any], told: str) -> None:
    assert apart({ONE: parts({"size": "1"}), TWO: parts({"size": "1"}, **changed)})[TWO] == told


def test_without_counted_files_definitions_tell_them_apart() -> None:
    first, second = (parts({}, files={}, definitions={"prep.f": digit * 10}) for digit in "12")
    assert apart({ONE: first, TWO: second}) == {ONE: "prep.f 111111", TWO: "prep.f 222222"}


def test_a_distribution_is_told_by_its_version() -> None:
    newer = parts({})
    newer["environment"]["distributions"] = {"numpy": "2.2.0 eeeeeeee"}
    assert apart({ONE: parts({}), TWO: newer}) == {ONE: "numpy 2.1.0", TWO: "numpy 2.2.0"}


def test_no_two_read_alike_whatever_is_known_of_them() -> None:
    much = {f"name{number}": "x" * WORD_CHARS for number in range(9)}
    other = dict.fromkeys(much, "other")
    found = apart({ONE: parts(much | {"zz": "1"}), TWO: parts(much | {"zz": "2"}), THREE: parts(other)})
    assert found[ONE].startswith("name0=xxx") and found[ONE].endswith(f" and 9 more, recipe {ONE[:8]}")
    assert found[TWO].removesuffix(TWO[:8]) == found[ONE].removesuffix(ONE[:8])
    assert apart({ONE: parts({"size": "1"}), TWO: {}}) == {ONE: f"recipe {ONE[:8]}", TWO: f"recipe {TWO[:8]}"}


def test_differing_arguments_stand_for_their_object() -> None:
    first, second = parts({"args": "Namespace", "args.size": "1"}), parts({"args": "Other", "args.size": "2"})
    assert apart({ONE: first, TWO: second}) == {ONE: "args.size=1", TWO: "args.size=2"}


def test_a_part_that_was_too_large_to_be_kept_is_not_compared() -> None:
    cut = parts({"size": "2"})
    del cut["code"]
    assert apart({ONE: parts({"size": "1"}), TWO: cut}) == {ONE: "size=1", TWO: "size=2"}


def test_foreign_text_is_bounded_and_cannot_move_the_cursor() -> None:
    strange = parts({"a\x1b[2J" * 100: "b\n" * 1000, "c": "d" * 1000})
    told = apart({ONE: parts({}), TWO: strange})[TWO]
    assert told.isprintable() and len(told) <= 2 * WORD_CHARS + ALL_CHARS
    for broken in ({"code": 3}, {"code": {"files": []}}, {"config": {"a": None}}, {"environment": None}):
        apart({ONE: parts({}), TWO: broken})
