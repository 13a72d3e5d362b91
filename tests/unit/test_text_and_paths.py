"""Which str in items, configs and globals are text, and which are paths."""

import os
import types
from pathlib import Path
from typing import Any

import pytest

from prepcache import UnkeyableError, item_digest, plain, recipe, tree
from prepcache.keys.items import ItemHasher
from prepcache.keys.paths import looks_like_path

TEXT = [*["the", "cat", ".", "..", "/", "//", "./", "train", "U.S.", "3.", ".bashrc"], "Well. He left", ""]


def prep(item: Any, **config: Any) -> Any:
    return item


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def counted_stats(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []
    stat = os.stat

    def counting(path: Any, **options: Any) -> os.stat_result:
        asked.append(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", counting)
    return asked


@pytest.mark.parametrize("text", TEXT)
def test_text_keeps_its_key_beside_folders_and_files(here, text):
    before = item_digest([text]), item_digest(text), recipe(prep, config={"sep": text}).digest
    for name in {"the", "train", "U.S.", ".bashrc"} & {text}:
        (here / name).mkdir()
    assert (item_digest([text]), item_digest(text), recipe(prep, config={"sep": text}).digest) == before
    assert item_digest([text]) == item_digest([str(text)])
    assert not looks_like_path(text)


@pytest.mark.parametrize("name", ["a.txt", "d/a", "./a", "a.b c.png", "/etc/hostname"])
def test_text_that_looks_like_a_path_counts_its_file(here, name):
    assert looks_like_path(name)
    if name.startswith("/"):
        return
    before = item_digest(name), recipe(prep, config={"file": name}).digest
    (here / "d").mkdir()
    (here / name).write_bytes(b"1")
    first = item_digest(name), recipe(prep, config={"file": name}).digest
    (here / name).write_bytes(b"22")
    second = item_digest(name), recipe(prep, config={"file": name}).digest
    assert len({before[0], first[0], second[0]}) == len({before[1], first[1], second[1]}) == 3


def test_a_str_that_names_a_folder_or_a_pipe_is_text(here):
    before = item_digest(("data/en", 1)), recipe(prep, config={"split": "data/en"}).digest
    (here / "data" / "en").mkdir(parents=True)
    assert (item_digest(("data/en", 1)), recipe(prep, config={"split": "data/en"}).digest) == before
    item_digest("/dev/null")
    with pytest.raises(UnkeyableError, match="is a directory"):
        recipe(prep, config={"split": Path("data/en")})
    assert recipe(prep, config={"split": tree("data/en")}).digest != before[1]
    assert recipe(prep, config={"split": plain(Path("data/en"))}).digest != before[1]


def test_a_file_without_a_suffix_is_text_beside_it(here):
    before = item_digest("train")
    (here / "train").write_bytes(b"a file that the function opens by this name is an observed input")
    assert item_digest("train") == before
    assert item_digest(Path("train")) != before


def test_tokens_cost_no_stat(here, monkeypatch):
    sentences = [["the", "cat", f"sat{i}", ".", "/"] for i in range(500)]
    items = [*sentences, *(" ".join(words) for words in sentences), *(f"word{i}" for i in range(2000))]
    asked = counted_stats(monkeypatch)
    hasher = ItemHasher()
    stamps = hasher.digest_many(items)
    assert [name for name in asked if name in {"the", ".", "/"} or str(name).startswith("word")] == []
    assert [stamps.changed(i) for i in (0, 700, 1500)] == [[], [], []]
    assert len(asked) <= 501, "only the sentences that hold a separator may be looked up"


def test_a_vocabulary_global_is_text(here, monkeypatch):
    space = types.ModuleType("space")
    exec("VOCABULARY = ['.', '/', 'train']\ndef prep(item):\n    return VOCABULARY.index(item)", vars(space))
    before = recipe(space.prep, code="function").digest
    (here / "train").mkdir()
    asked = counted_stats(monkeypatch)
    assert recipe(space.prep, code="function").digest == before
    assert {".", "/", "train"}.isdisjoint(map(str, asked))
