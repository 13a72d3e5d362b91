"""Misses that explain themselves: real jobs, a real daemon, the line at open, the report and the command."""

import contextlib
import json
import os
import re
import sqlite3
import zlib
from typing import Any

import pytest

from prepcache import CachedDataset
from prepcache.daemon.http import Transport
from prepcache.errors import DaemonUnreachable, NotFound, StoreError
from prepcache.report import NOT_KNOWN
from support.jobs import Jobs

JOB = """
import prep
folder = Path("data")
options = json.loads(sys.argv[1])
ds = prepcache.CachedDataset(sorted(folder.iterdir()), prep.tokenize, root=folder, **options)
tell(ds, first=ds[0], recipe=ds.recipe.digest)
"""
COMMAND = "from prepcache.command.cli import main; main()"
PREP = """
from pathlib import Path

def normalise(text):
    return text.lower()

def tokenize(path, max_len=128):
    return normalise(path.read_text())[:max_len]

def unreached():
    return 1
"""


@pytest.fixture
def jobs(jobs: Jobs) -> Jobs:
    folder = jobs.box.folder
    (folder / "data").mkdir()
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (folder / "data" / name).write_text(f"Text {name}")
    (folder / "prep.py").write_text(PREP)
    jobs.write(JOB)
    return jobs


def run(jobs: Jobs, options: dict[str, Any] | None = None, **environ: str) -> tuple[str, dict[str, Any]]:
    """The job's line at open, and what it told."""
    told, err = jobs.said(jobs.box.folder / "job.py", json.dumps(options or {}), **environ)
    lines = [line for line in err.splitlines() if "; recipe " in line]
    assert len(lines) == 1, err
    assert len(err.splitlines()) <= (2 if ": hit " in err else 4), err
    return lines[0].removeprefix("prepcache: "), told


def edit(jobs: Jobs, old: str, new: str) -> None:
    file = jobs.box.folder / "prep.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def command(jobs: Jobs, *arguments: str) -> Any:
    return jobs.box.python("-c", COMMAND, "explain", *arguments).stdout


def test_the_line_at_open_says_hit_or_miss_and_why(jobs):
    """First miss, hit, config, definition, unreached lines, items, in one life of a cache."""
    line, told = run(jobs)
    assert line.startswith("miss prep.tokenize: nothing of this name is cached yet; 4 items, 0 hit")
    assert told["why"] == ["nothing of this name is cached yet"]

    line, told = run(jobs)
    assert line.startswith("hit prep.tokenize: 4 items; recipe ")
    assert told["why"] == []

    line, told = run(jobs, {"config": {"max_len": 3}})
    assert line.startswith("miss prep.tokenize: config.max_len (not there) -> 3; ")
    assert "; 4 items, 0 hit, 4 to preprocess; recipe " in line
    assert told["first"] == "tex"

    line, told = run(jobs, {"config": {"max_len": 2}})
    assert line.startswith("miss prep.tokenize: config.max_len 3 -> 2; ")
    [why] = told["why"]
    assert why in line

    edit(jobs, "text.lower()", "text.upper()")
    line, _ = run(jobs)
    assert "miss prep.tokenize: prep.py changed, prep.normalise changed; 4 items" in line

    edit(jobs, "return 1", "return 2")
    line, _ = run(jobs)
    assert "miss prep.tokenize: prep.py changed (with code=" in line

    (jobs.box.folder / "data" / "b.txt").write_text("edited")
    (jobs.box.folder / "data" / "e.txt").write_text("new")
    line, told = run(jobs)
    assert "miss prep.tokenize: 2 of 5 items not cached: b.txt, e.txt; 5 items, 3 hit" in line
    assert told["why"] == ["2 of 5 items not cached: b.txt, e.txt"]


def test_a_job_that_may_not_write_hears_why_too(jobs):
    run(jobs)
    line, told = run(jobs, {"config": {"max_len": 1}}, PREPCACHE="readonly")
    assert "miss prep.tokenize: config.max_len (not there) -> 1; PREPCACHE=readonly" in line
    assert "; PREPCACHE=readonly: new samples are not stored; 4 items, 0 hit, 4 to preprocess" in line
    assert told["first"] == "t"
    assert "readonly" not in run(jobs, PREPCACHE="readonly")[0], "where all is there, nothing is made"
    shown = command(jobs)  # though it leaves no recipe behind
    named = command(jobs, "--name", "prep.tokenize")
    assert "config.max_len" in shown
    assert _without_ages(named) == _without_ages(shown), "one is asked for a moment later"


def _without_ages(text: str) -> str:
    return re.sub(r"(just )?\bnow\b|\d+ s ago", "AGO", text)


def test_secrets_are_not_in_the_reason(jobs):
    edit(jobs, "max_len=128", "max_len=128, api_key=None")
    run(jobs, {"config": {"api_key": "hunter2"}})
    line, _ = run(jobs, {"config": {"api_key": "hunter3"}})
    assert "config.api_key may have changed: it is secret" in line
    assert "hunter" not in line
    [index] = jobs.box.folder.rglob("index.sqlite")
    with contextlib.closing(sqlite3.connect(index)) as conn:
        kept = b"".join(zlib.decompress(parts) for [parts] in conn.execute("SELECT parts FROM recipes"))
    assert b"config" in kept and b"hunter" not in kept


def test_explain_takes_a_name_a_recipe_and_an_entry(jobs):
    _, first = run(jobs)
    _, second = run(jobs, {"config": {"max_len": 7}})
    told = json.loads(command(jobs, "--json"))
    assert told["recipe"] == second["recipe"]
    assert told["nearest"]["recipe"] == first["recipe"]
    assert [d["line"] for d in told["differences"]] == ["config.max_len (not there) -> 7"]
    assert json.loads(command(jobs, "--json", "--name", "prep.tokenize")) == told
    assert json.loads(command(jobs, "--json", second["recipe"][:12])) == told | {"missed_at": 0.0}

    listed = json.loads(jobs.box.python("-c", COMMAND, "ls", "--json").stdout)
    key = next(one["key"] for one in listed if one["recipe"] == second["recipe"])
    people = command(jobs, key[:16])
    assert "config.max_len (not there) -> 7" in people
    assert "prep.tokenize" in people and "4 items" in people
    assert re.search(r"^config +changed +config.max_len \(not there\) -> 7$", people, re.M)
    assert re.search(r"^code +same *$", people, re.M)


def test_explain_agrees_with_the_job_on_partial_misses(jobs):
    _, first = run(jobs)
    _, second = run(jobs, {"config": {"max_len": 7}})
    jobs.box.python("-c", COMMAND, "purge", "--recipe", second["recipe"], "--yes")
    line, _ = run(jobs, {"config": {"max_len": 7}})
    assert "it was cached, but has been evicted, purged or found damaged; 4 items, 0 hit" in line
    people = command(jobs)
    assert "it was cached, but has been evicted, purged or found damaged" in people
    assert re.findall(r"^(\w+) +same *$", people, re.M) == [
        "data",
        "code",
        "config",
        "environment",
        "observed",
    ]

    (jobs.box.folder / "data" / "e.txt").write_text("new")
    line, _ = run(jobs)
    assert "1 of 5 items not cached: e.txt" in line
    told = json.loads(command(jobs, "--json"))
    assert told["recipe"] == first["recipe"] and told["summary"] == "1 of 5 items not cached: e.txt"


def test_explain_gives_the_same_reason_as_the_job(jobs):
    edit(
        jobs,
        "return normalise(",
        'if Path(__file__).with_name("stop.txt").exists(): return ""\n'
        '    return Path(__file__).with_name("vocab.txt").read_text() + normalise(',
    )
    vocabulary, folder = jobs.box.folder / "vocab.txt", jobs.box.folder / "data"
    vocabulary.write_text("one ")
    run(jobs)

    states: list[tuple[str | None, str | None]] = []

    def agrees(**environ: str) -> str:
        line, told = run(jobs, **environ)
        [why] = told["why"]
        assert line.startswith(f"miss prep.tokenize: {why}; ")
        shown = command(jobs)
        assert f"why      {why}" in shown
        assert re.search(r"^config +same *$", shown, re.M) and re.search(r"^code +same *$", shown, re.M)
        observed = re.search(r"^observed +(\w+)", shown, re.M)
        data = re.search(r"^data +(\w+)", shown, re.M)
        states.append((data and data[1], observed and observed[1]))
        return str(why)

    assert agrees(PREPCACHE="refresh") == "PREPCACHE=refresh: cached samples are not used"
    vocabulary.write_text("two ")
    assert agrees() == "vocab.txt, which the function used, changed"
    stop = jobs.box.folder / "stop.txt"
    stop.write_text("")
    assert agrees() == "stop.txt, which the function used, appeared"
    stop.unlink()
    assert agrees() == "stop.txt, which the function used, is gone"
    for file in folder.iterdir():
        file.write_text(f"another {file.name}")
    assert agrees() == "4 of 4 items not cached: a.txt, b.txt, c.txt and 1 more"
    assert states == [("same", "same"), *[("same", "changed")] * 3, ("incomplete", "same")]


@pytest.mark.parametrize(
    "error",
    [DaemonUnreachable("gone", why="broken"), NotFound("no such endpoint"), StoreError("the disk says no")],
)
def test_a_daemon_that_does_not_explain_is_no_error(client, monkeypatch, error):
    call = Transport.call

    def refused(self: Transport, method: str, path: str, *given: Any, **named: Any) -> Any:
        if path == "/v1/explain":
            raise error
        return call(self, method, path, *given, **named)

    monkeypatch.setattr(Transport, "call", refused)
    assert CachedDataset([1], str, client=client, progress=False).report().why == (NOT_KNOWN,)


def test_a_miss_names_files_and_no_values(client, tmp_path):
    (tmp_path / "a.txt").touch()
    options: Any = {"code": None, "version": "1", "root": tmp_path, "client": client, "progress": False}
    CachedDataset(["there"], str, **options)
    items = [tmp_path / "a.txt", "a text of somebody", {"password": "hunter2"}, 7, "there"]
    why = CachedDataset(items, str, **options).report().why
    assert why == ("4 of 5 items not cached: a.txt and 3 more",)


def test_a_damaged_artifact_is_not_explained_by_another_recipe(client, tmp_path):
    options: Any = {"code": None, "client": client, "progress": False}
    for version in "12":
        CachedDataset(["a", "b"], str, version=version, **options)
    for path in tmp_path.glob("**/objects/*/*"):
        os.truncate(path, 0)
    assert CachedDataset(["a", "b"], str, version="2", **options).report().why == ("2 of 2 items not cached",)
