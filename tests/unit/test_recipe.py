"""The recipe as a whole: modes, config, version, names, parts."""

import json
import re
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

import prepcache
from prepcache.errors import UnkeyableError
from prepcache.keys import recipes
from prepcache.keys.items import ItemHasher
from prepcache.keys.recipes import Recipe, recipe
from prepcache.protocol.explain import differences
from support.projects import Project, changes, drift, project_fixture  # noqa: F401


def f(x: Any, **config: Any) -> Any:
    return x


def g(x: Any, **config: Any) -> Any:
    return x


async def later(x: Any) -> Any:
    return x


def test_the_name_does_not_count():
    named = recipe(f, name="other")
    assert named.name == "other"
    assert named.digest == recipe(f).digest


def test_a_directory_in_the_config_is_refused_until_it_is_marked(tmp_path):
    with pytest.raises(UnkeyableError, match=r"config\.path.*prepcache\.tree"):
        recipe(f, config={"path": tmp_path})
    assert recipe(f, config={"path": prepcache.tree(tmp_path)}).config == {"path": tmp_path}


def test_a_large_config_counts_whole_and_is_shown_short():
    large = {"text": "a" * (25 << 20), "table": bytes(25 << 20), "numbers": [*range(100_000)]}
    before = recipe(f, config=large)
    assert len(json.dumps(before.parts["config"])) < 1000
    others = {"text": large["text"] + "b"}, {"table": bytes(25 << 20) + b"b"}, {"numbers": [*range(100_001)]}
    assert len({before.digest, *(recipe(f, config=large | other).digest for other in others)}) == 4


def test_no_code_needs_a_version():
    with pytest.raises(UnkeyableError, match="version="):
        recipe(f, code=None)
    assert recipe(f, code=None, version="1").digest == recipe(g, code=None, version="1").digest


def test_no_name_of_a_file_passes_for_two_files(project):
    """One file called by the name of another, its digest, and the name of a third."""
    one, two = project.put("a.py", "one = 1"), project.put("b.py", "two = 2")
    project.write(prep="def f(x): return x")
    between = project.recipe(code=[one]).parts["code"]["files"]["a.py"]
    both = project.put(f"a.py{between}b.py", "two = 2")
    assert project.digest(code=[one, two]) != project.digest(code=[both])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preprocess": 3}, "preprocess must be callable, not int"),
        ({"preprocess": later}, "not coroutines: call asyncio.run"),
        ({"code": "func"}, "code must be 'script', 'function', a list of paths or None, not 'func'"),
        ({"code": []}, "names no file"),
        ({"config": [1]}, r'config must be a mapping .*: config=\{"cfg": list\(\.\.\.\)\} passes it .* cfg'),
        ({"config": {1: 2}}, "config keys must be str"),
        ({"config": {"a": (i for i in ())}}, "has no stable bytes"),
        ({"version": 1.5}, "version must be a str or int"),
        ({"read": "byte"}, "read must be 'path' or 'bytes' or 'text', not 'byte'"),
        ({"trust": "contents"}, "trust must be 'stat' or 'content', not 'contents'"),
        ({"untracked": "rng"}, r"untracked must be a list of names, not a str: untracked=\['rng'\]"),
        ({"environment": "numpy"}, "environment must be a list of names, not a str: "),
        ({"environment": ["no-such"]}, "which is not installed"),
    ],
)
def test_options_that_cannot_work_are_refused(options, words):
    """A guess would be another key, or files that are not read."""
    with pytest.raises((TypeError, ValueError, UnkeyableError), match=words):
        recipe(**{"preprocess": f, **options})
    if {"read", "trust"} & options.keys():
        with pytest.raises(ValueError, match=words):
            ItemHasher(**options)


def test_the_parts_are_json_and_show_the_config_leaf_by_leaf():
    made = recipe(f, config={"size": 3, "deep": {"list": [1, "b"]}}, version="7")
    parts = json.loads(json.dumps(made.parts))
    assert {path: leaf["text"] for path, leaf in parts["config"].items()} == {
        "size": "3", "deep.list[0]": "1", "deep.list[1]": "'b'",
    }  # fmt: skip
    assert parts["version"] == "7"
    assert parts["format"] == recipes.RECIPE_VERSION
    assert parts["name"].endswith("test_recipe.f")


def lines(before: Recipe, now: Recipe) -> list[str]:
    return [difference.line for difference in differences(before.parts, now.parts)]


def test_an_edited_config_file_is_explained_by_its_contents(tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_text("one")
    before = recipe(f, config={"path": path, "text": str(path)})
    path.write_text("two")
    found = lines(before, recipe(f, config={"path": path, "text": str(path)}))
    assert [line.split(" ")[0] for line in found] == ["config.path", "config.text"]
    for line in found:
        was, now = re.findall(r"contents ([0-9a-f]{8}) of '?/", line)
        assert was != now


@dataclass
class Settings:
    size: int
    deep: Any = None


@dataclass
class Account:
    api_key: str


def test_a_dataclass_in_the_config_is_explained_by_its_fields():
    before = recipe(f, config={"settings": Settings(1, Settings(2))})
    [line] = lines(before, recipe(f, config={"settings": Settings(128, Settings(2))}))
    assert line == "config.settings.size 1 -> 128"
    [line] = lines(before, recipe(f, config={"settings": Settings(1, Settings(3))}))
    assert line == "config.settings.deep.size 2 -> 3"
    assert "hidden" not in json.dumps(recipe(f, config={"account": Account("hidden")}).parts)


def test_an_unkeyable_value_is_refused_without_inner_frames():
    with pytest.raises(UnkeyableError, match=r"config\.a\[0\]\.file.*cannot pickle") as refused:
        recipe(f, config={"a": [Holder()]})
    assert refused.value.__cause__ is None and refused.value.__suppress_context__
    assert len(refused.traceback) == 2, "the test and the public function"


class Holder:
    def __init__(self) -> None:
        self.file = (line for line in ())


def test_a_config_that_the_function_changes_is_named():
    made = recipe(f, config={"sizes": [1, 2]})
    made.config["sizes"].append(3)
    assert drift(made) == {"config.sizes[2]": True}
    made.config["sizes"][0] = 7
    assert drift(made) == {"config.sizes[2]": True, "config.sizes[0]": True}


ALTERING = """
import threading
COUNT, TABLE, TOOLS, FLAG, NAMES, SEEN, CACHE = 0, {}, [], False, {1}, [], {}
class Tool:
    size = 3
    def resize(self): type(self).size = 4
TOOL = Tool()
LOCAL = threading.local
def count():
    global COUNT
    COUNT += 1
def f(x):
    count()
    TABLE[x] = x
    return TOOLS, FLAG, TOOL.resize()
def g(x):
    SEEN.append(x)
    return [name for name in NAMES], len(CACHE)
def h(x, part=f): return part(x), g(x)
"""


def test_globals_that_the_code_stores_to_are_recognized(project):
    project.write(prep=ALTERING)
    module = project.load()
    made = recipe(module.h)
    module.h(1)
    module.FLAG = True
    module.TOOLS = [1]
    module.NAMES.add(2)
    module.CACHE["x"] = 1
    assert drift(made) == {
        "prep.COUNT": True, "prep.TABLE": True, "prep.SEEN": True, "prep.Tool.size": True,
        "prep.FLAG": False, "prep.TOOLS": True, "prep.NAMES": True, "prep.CACHE": True,
    }  # fmt: skip


def test_classes_of_items_count_by_what_they_reach(project):
    project.write(
        prep="def f(item): return item['spec'].value()",
        specs="import helper\nclass Spec(int):\n    def value(self): return helper.scale(self)",
        helper="def scale(x): return 2 * x",
    )
    module = project.load()
    (spec,) = (project.load("specs").Spec,)
    hasher = ItemHasher()
    hasher.digest_many(
        [{"spec": spec(1), "when": date(2020, 1, 1), "n": 1}, {"spec": None, "when": 1, "n": 2}]
    )
    assert list(hasher.classes) == [spec]
    bare = recipe(module.f)
    made = recipes.with_classes(bare, hasher.classes)
    assert made.digest != bare.digest
    assert set(made.parts["code"]["definitions"]) == {
        "prep.f",
        "specs.Spec",
        "specs.Spec.value",
        "helper.scale",
    }
    assert list(made.parts["code"]["files"]) == ["prep.py"]
    assert drift(made) == {}
    alone = recipe(module.f, code=None, version=1)
    assert recipes.with_classes(alone, hasher.classes).digest == alone.digest
    project.write(helper="def scale(x): return 3 * x")
    again = recipes.with_classes(recipe(project.load().f), [project.load("specs").Spec])
    assert again.digest != made.digest


def test_two_classes_of_items_with_one_name_are_refused(project):
    project.write(prep="def made(n):\n    class Item(int): pass\n    return Item\ndef f(item): return item")
    module = project.load()
    with pytest.raises(UnkeyableError, match=r"two classes are named prep\.made\.<locals>\.Item"):
        recipes.with_classes(recipe(module.f), [module.made(1), module.made(2)])
