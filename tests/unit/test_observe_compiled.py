"""Observed inputs: what numba (`cache=True`) and torch compile, keep, and read again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from prepcache.keys.inputs import CHANGED, Input, Joined, digest_now, row_of, still_true
from prepcache.keys.observe import Observer
from prepcache.keys.roots import Roots
from support.projects import Project, project_fixture  # noqa: F401
from support.watching import HERE

COMPILING = (
    HERE
    + """
def compiled(index, text):
    try:
        if index.read_text() == text: return
    except OSError: pass
    index.with_suffix('.tmp').write_text(text)
    os.replace(index.with_suffix('.tmp'), index)

def f(x): compiled(HERE / 'prep.f{suffix}', x)
"""
)


@pytest.mark.parametrize("before", [None, "of the module as it was before"])
def test_what_a_call_compiles_counts_as_it_is_then(project: Project, before: str | None) -> None:
    path = project.folder / "prep.f.nbi"
    if before is not None:
        path.write_text(before)
    project.write(prep=COMPILING.replace("{suffix}", ".nbi"))
    made = project.recipe()
    observer, roots = Observer(made), Roots.of(made)
    assert made.preprocess is not None
    for item in ("one signature", "another"):
        with observer.watching():
            made.preprocess(item)
        taken = observer.taken()
        assert [row["name"] for row in taken] == ["project:prep.f.nbi"]
        assert still_true(taken, roots=roots) is None
    path.unlink()  # as who knows that numba did not see an edit
    assert still_true(taken, roots=roots) == "project:prep.f.nbi"


def test_any_other_file_that_a_call_reads_and_replaces_has_changed(project: Project) -> None:
    project.put("prep.f.txt", "of before")
    project.write(prep=COMPILING.replace("{suffix}", ".txt"))
    made = project.recipe()
    observer = Observer(made)
    assert made.preprocess is not None
    with observer.watching():
        made.preprocess("text")
    assert [row["digest"] for row in observer.taken()] == [CHANGED]


def test_what_several_workers_compile_is_what_it_is_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "prep.f.nbi"
    joined = Joined()
    for text in ("one signature", "one signature, another"):
        path.write_text(text)
        digest, stamp, _ = digest_now(str(path), None, "stat")
        joined.add([Input(row_of("file", str(path), digest), str(path), stamp)])
    path.write_text("one signature, another, a third")
    rows = joined.rows()
    assert still_true(rows) is None
    path.write_text("cleared")
    assert still_true(rows) == str(path)


@pytest.mark.parametrize("is_compiling", [True, False])
def test_what_torch_compiled_is_no_input(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compiling: bool
) -> None:
    """It lies in a temporary folder, which is another one in each container."""
    if is_compiling:
        monkeypatch.setitem(sys.modules, "torch._inductor", ModuleType("torch._inductor"))
    else:
        monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    kept = tmp_path / "torchinductor_me"
    kept.mkdir()
    (kept / "graph.so").write_text("compiled")
    source = """
def f(x):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(x)
    os.listdir(x)
    return (x / "graph.so").read_text()
"""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    project.write(prep=HERE + source)
    made = project.recipe()
    observer = Observer(made)
    assert made.preprocess is not None
    with observer.watching():
        made.preprocess(kept)
    names = [] if is_compiling else [str(kept), str(kept / "graph.so")]
    assert [row["name"] for row in observer.taken()] == names
