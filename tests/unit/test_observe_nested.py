"""Observed inputs of a function that opens a data set of its own, or calls one that prepcache keeps."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prepcache.keys.files.digest import digest_file
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.items import ItemHasher
from prepcache.keys.observation.inputs import Roots, still_true
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401


@pytest.mark.parametrize("how", ["items", "tree", "config", "observed", "listed", "within"])
def test_inputs_of_a_nested_data_set_count_for_the_function(
    project: Project, tmp_path: Path, how: str
) -> None:
    """Where the memo knows the bytes of a file, nothing is opened."""
    memo = StatCache(tmp_path / "memo", window_ns=lambda _: 0)
    path = project.put("data/v.txt", "one")
    project.write(prep="def outer(x): return x\ndef inner(x): return x\n")
    module = project.load()
    inner = Observer(recipe(module.inner))
    memo_knows = [digest_file(str(path), memo, "stat").digest]
    with inner.watching():
        path.read_text()
        os.listdir(path.parent)
    rows = inner.taken()
    outer = Observer(recipe(module.outer))
    with outer.watching():
        if how == "items":
            ItemHasher(stat_cache=memo).digest_many([path, (1, path)])
        elif how == "tree":
            ItemHasher(stat_cache=memo).digest_many([path.parent])
        elif how == "config":
            memo_knows.append(digest_file(str(path), memo, "stat").digest)
        elif how == "within":
            with inner.watching([path]):
                path.read_text()
        else:
            kind = "folder" if how == "listed" else "file"
            rows = [row for row in rows if row["kind"] == kind]
            assert still_true(rows, memo, Roots.of(recipe(module.inner))) is None
    assert len(set(memo_knows)) == 1
    names = {row["name"] for row in outer.taken()}
    assert names >= ({"project:data"} if how == "listed" else {"project:data/v.txt"})


def test_a_data_set_opened_by_another_thread_does_not_count(project: Project, tmp_path: Path) -> None:
    memo = StatCache(tmp_path / "memo", window_ns=lambda _: 0)
    path = project.put("v.txt", "one")
    project.write(prep="def outer(x): return x\n")
    outer = Observer(recipe(project.load().outer))
    digest_file(str(path), memo, "stat")
    with ThreadPoolExecutor(1) as pool:  # its thread is younger than the observer
        pool.submit(int).result()
        with outer.watching():
            pool.submit(ItemHasher(stat_cache=memo).digest_many, [path]).result()
    assert not [row for row in outer.taken() if row["name"].endswith("v.txt")]
