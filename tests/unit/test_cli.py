"""The `prepcache` command where no daemon is needed: usage, help, errors, units, `key`."""

import os
import re
import socket
import time
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import prepcache
from prepcache.command import cli, cli_tables
from prepcache.digests import Digest, Key, RecipeDigest
from prepcache.errors import ConfigError
from prepcache.protocol import inspection, wire
from prepcache.protocol.explain import LOOK_ALIKE
from prepcache.protocol.units import age_text, parse_span, span_text
from prepcached import cli as daemon_cli
from support.commands import Run, run_fixture  # noqa: F401
from support.programs import python


@pytest.mark.parametrize("app", [cli.app, daemon_cli.app])
def test_help_shows_no_flag_as_if_it_took_a_value(app):
    commands = sorted(get_command(app).commands)  # type: ignore[attr-defined]
    for arguments in ([], *([name] for name in commands)):
        told = CliRunner().invoke(app, [*arguments, "--help"]).output
        assert "--help" in told and "bool" not in told.lower() and "completion" not in told, told


@pytest.mark.parametrize(
    "arguments",
    [
        *("nonsense", "ls --nonsense", "show", "pin", "key no-colon", "key :f", "ls --limit -1"),
        *("ls --sort colour", "ls --sort size", "ls --older-than soon", "ls --owner nobody-of-that-name"),
    ],
)
def test_wrong_usage_ends_with_2_before_any_daemon_is_asked(run, monkeypatch, arguments):
    monkeypatch.setenv("PREPCACHE_URL", "unix:///nobody/listens/here.sock")
    ended = run(*arguments.split())
    assert ended.code == 2 and ended.out == "" and ended.err != ""


@pytest.mark.parametrize(
    "arguments",
    [
        *("status", "status --watch", "status --watch --json", "ls", "show abcdef", "purge --all -y"),
        *("pin abcd", "verify"),
    ],
)
def test_a_daemon_that_is_not_there_ends_with_3_and_one_line(run, monkeypatch, tmp_path, arguments):
    monkeypatch.setenv("PREPCACHE_URL", f"unix://{tmp_path}/none.sock")
    ended = run(*arguments.split())
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.count("\n") == 1 and str(tmp_path) in ended.err and "`prepcached serve`" in ended.err


def test_no_daemon_is_started_to_say_that_nothing_is_cached(run, monkeypatch, tmp_path):
    for name in ("PREPCACHE_URL", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("prepcache.daemon.launcher.SYSTEM_SOCKET", tmp_path / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for command in ("ls", "status"):
        ended = run(command)
        assert ended.code == 3 and "A job that stores something starts it" in ended.err
    assert not (tmp_path / "cache").exists()
    log = tmp_path / "cache" / "prepcache" / "prepcached.log"
    log.parent.mkdir(parents=True)
    log.write_text("prepcached: PREPCACHED_MAX_BYTES = 'foo': must be a size\n")
    told = "The last one ended with an error: prepcached: PREPCACHED_MAX_BYTES = 'foo'"
    assert told in run("status").err


def test_an_error_of_our_own_is_one_line_too(run, monkeypatch):
    monkeypatch.setattr(cli, "_client", mock.Mock(side_effect=ZeroDivisionError("never")))
    ended = run("status")
    assert ended.code == cli.INTERNAL and ended.err.count("\n") == 1
    assert "ZeroDivisionError: never" in ended.err


def test_key_reads_a_file_and_never_runs_it(run, tmp_path):
    script = tmp_path / "prep.py"
    script.write_text(
        "import pathlib\nSIZE = 3\npathlib.Path(__file__).with_name('ran').touch()\n"
        "def tokenize(item):\n    return item[:SIZE]\n"
    )
    first = run("key", f"{script}:tokenize", "--json")
    assert first.code == 0 and first.json["files"]
    assert "tokenize" in run("key", f"{script}:tokenize").out
    script.write_text(script.read_text().replace("[:SIZE]", "[SIZE:]"))
    assert run("key", f"{script}:tokenize", "--json") != first
    assert not (tmp_path / "ran").exists()
    ended = run("key", f"{script}:missing")
    assert ended.code == 10 and ended.out == "" and "tokenize" in ended.err
    ended = run("key", f"{tmp_path}/pepr.py:tokenize")
    assert ended.code == 2 and ended.out == "" and "of a file that is there" in ended.err


@pytest.mark.parametrize(
    ("command", "missing"), [("serve", "uvicorn"), ("check", "sqlalchemy"), ("rebuild", "sqlalchemy")]
)
def test_a_daemon_without_its_extra_says_what_to_install(tmp_path, command, missing):
    program = f"import sys; sys.modules[{missing!r}] = None; from prepcached.cli import main; main()"
    ended = python("-c", program, command, "--root", tmp_path, code=1)
    assert ended.stdout == ""
    mend = 'in its checkout, pip install ".[server]"'
    told = f"the daemon's dependencies are not installed ({missing}): {mend}"
    assert ended.stderr == f"prepcached: {told}\n"


@pytest.mark.parametrize("command", ["prepcache.command.cli", "prepcached.cli"])
def test_the_version_is_told(command):
    code = f"import sys, {command} as it; sys.argv = ['x', '--version']; it.main()"
    done = python("-c", code)
    assert done.stdout == f"{command.partition('.')[0]} {prepcache.__version__}\n"


ENTRY = inspection.Entry(
    key=Key("3f" * 32), digest=Digest("ab" * 32), recipe=RecipeDigest("cd" * 32),
    name="packages_of_the_project.preprocessing.audio_features.extract_log_mel_spectrogram",
    size_bytes=150 << 20, items=1_000_000, rows=1_000_000, cost_s=5000.0, owner=os.getuid(), created_at=0.0,
    used_at=time.time() - 5000, is_pinned=True, holds=12,
)  # fmt: skip


def test_an_entry_shows_some_of_the_many_inputs_that_it_observed(capsys):
    """Each kind in one line: names of one kind once hid each other."""
    files = [{"kind": "file", "name": f"items:{n}.png", "digest": ""} for n in range(1022)]
    folder = {"kind": "folder", "name": "project:parts", "digest": ""}
    cli_tables.entry(replace(ENTRY, observed=(*files[:1], folder, *files[1:])), None)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("observed")]
    assert len(lines) == 2 and lines[1].endswith("  project:parts")
    assert "  items:0.png, items:1.png, " in lines[0] and lines[0].endswith(" items:19.png and 1,002 more")
    cli_tables.entry(replace(ENTRY, observed=tuple(files[:20])), None)
    assert " more" not in capsys.readouterr().out


def test_an_entry_shows_its_recipe_and_config(capsys):
    config = {"config": {"size": {"digest": "", "text": "x" * 100}}}
    cli_tables.entry(ENTRY, inspection.Recipe(ENTRY.recipe, ENTRY.name, 1, 0.0, 1, 1, config))
    assert re.search(rf"^config.size.text +{'x' * 100}$", capsys.readouterr().out, re.M)


def test_a_listing_says_whose_each_entry_is(capsys):
    cli_tables.entries([replace(ENTRY, owner=0), replace(ENTRY, owner=None)], more=False)
    lines = capsys.readouterr().out.splitlines()
    assert ["OWNER" in lines[0], "  root  " in lines[1], "  by token  " in lines[2]] == [True] * 3
    cli_tables.entries([replace(ENTRY, owner=os.getuid())], more=False)
    assert "OWNER" not in capsys.readouterr().out  # a box of one's own has wider names


STATS = {
    "effective_limit_bytes": 100 << 30, "max_bytes": 100 << 30, "disk_bytes": 50 << 30,
    "free_bytes": 60 << 30, "min_free_bytes": 10 << 30, "pinned_bytes": 0, "held_bytes": 0,
    "yielding_bytes": 50 << 30, "declined_items": 750, "declined": 1,
}  # fmt: skip


NO_NAMES = inspection.Names(())
INFO = inspection.Info(version="1", protocol=1, instance="i", root="/r")


def shown(capsys: pytest.CaptureFixture[str], stats: dict[str, Any], **members: Any) -> str:
    """The status of a daemon with these counters."""
    look = {"info": INFO, "sessions": [], "url": "unix:///s", "names": NO_NAMES, "miss": None} | members
    cli_tables.show(*cli_tables.status_lines(cli_tables.Status(stats=STATS | stats, **look)))
    return capsys.readouterr().out


FULL = {"disk_bytes": 99 << 30}
HELPED = {"found_items": 900, "leased_items": 100, "declined_items": 0, "seconds_saved": 51_120.0}
NO_DISK = {"effective_limit_bytes": 0, "free_bytes": 5 << 30}


@pytest.mark.parametrize(
    ("changed", "told", "not_told"),
    [
        ({}, "not stored for lack of room, since the start: 750 items, 1 finished file", "saturated"),
        ({}, "50.0 GiB of 100 GiB on disk (50 %)", "budget"),
        (
            FULL | {"yielding_bytes": 4 << 30, "pinned_bytes": 50 << 30, "held_bytes": 50 << 30},
            "saturated: new samples are not stored; all entries are pinned or in use",
            "evicted in",
        ),
        (FULL | {"yielding_bytes": 5 << 30}, "evicted in the last minute", "saturated"),
        ({"unlinked_bytes": 2 << 20}, "these stay; 2.0 MiB of removed entries, freed when", "budget"),
        ({"effective_limit_bytes": 50 << 30}, "the budget is 100 GiB, the disk is too small", "removed"),
        (NO_DISK, "50.0 GiB on disk, budget 100 GiB", "of 0 B"),
        (NO_DISK, "the disk has 5.0 GiB free, of which 10.0 GiB must stay free", "the disk is too small"),
        ({"staged_bytes": 2 << 20}, "2.0 MiB written by jobs but not committed yet", "saturated"),
        ({"declined": 0, "declined_items": 0}, "no job has asked for items", "lack of room"),
        (HELPED, "hit rate 90 % (900 items found), 14 h of preprocessing saved in 2.0 d", "no job has asked"),
        ({"coldest_age_s": 1e6}, "--free 50GB --dry-run; least recently used entry: 12 d ago", "rebuilt"),
        ({"recovered": {"new index": 1, "indexed": 3}}, "index rebuilt when the daemon started", "damaged"),
        ({"recovered": {"indexed": 3}}, "50.0 GiB of 100 GiB", "index rebuilt"),
    ],
)
def test_status_tells_how_full_the_store_is_and_whether_it_helps(capsys, changed, told, not_told):
    out = shown(capsys, {"uptime_s": 2 * 86400.0, **changed})
    assert told in out and not_told not in out, out


SUMS = inspection.NameSums(
    "a_project.preprocessing.audio_features.extract", 9, 999, 9_000_000, 9 << 37, 1e6, 0.0
)
MISS = inspection.Explanation(
    None, "train.load", 0, False, None, missed_at=time.time() - 12.2 * 86400,
    summary="config.max_len 128 -> 256, audio_features.py: def extract changed, 3 of 2,000 items not cached",
)  # fmt: skip
JOB = inspection.SessionSeen(
    "2" * 32, "a_long_training_script.py", "a-long-host-name", 123456, holds=99, leases=1
)
BUSY = {"found_items": 10**9, "leased_items": 10**8, "seconds_saved": 1e7, "coldest_age_s": 1e6}
CROWDED: dict[str, Any] = {
    "names": inspection.Names((SUMS,) * cli_tables.NAMES_SHOWN, more=7), "miss": MISS, "sessions": [JOB] * 3
}  # fmt: skip
QUESTIONS = {
    *("What is cached?", "Is it helping?", "What was the last miss, and why?", "How do I free 50 GB?"),
    "Who is connected?",
}


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    terminal = Console(force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(cli_tables, "console", lambda: terminal)


def test_status_is_one_screen_and_all_have_80_columns(monkeypatch, capsys):
    found = [replace(ENTRY, owner=owner, used_at=time.time() - 570) for owner in (0, os.getuid())]
    for width in (60, 80):
        on_a_terminal(monkeypatch, width)
        cli_tables.rows_of(found, 9)
        rows = capsys.readouterr().out.splitlines()
        assert len(rows) == 4 and max(map(len, rows)) <= width, rows
    cli_tables.entry(replace(ENTRY, observed=({"kind": "file", "name": "x" * 300, "digest": ""},)), None)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    out = shown(capsys, BUSY, **CROWDED)
    lines = out.splitlines()
    assert len(lines) <= 32 and max(map(len, lines)) <= 80, out
    assert set(lines) > {*QUESTIONS, "and 7 more names"}
    assert "12 d ago, train.load: config.max_len 128 -> 256, audio_features.py: def extract" in lines
    cli_tables.explanation(replace(MISS, is_partial=True, cue="data"))
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) <= 80 and sum("extract changed" in line for line in told) == 2, told


def rows_by_cue(explanation: inspection.Explanation) -> dict[str, tuple[str, list[str]]]:
    rows = cli_tables.explanation_json(explanation)["cues"]
    return {one["cue"]: (one["state"], one["lines"]) for one in rows}


def test_explain_has_a_row_for_each_cue():
    near = inspection.NearestRecipe(RecipeDigest("1" * 64), "f", 0.0, 1, 1, 4096, 0.5)
    moved = {"config": "size", "definition": "f", "value": "v", "distribution": "numpy"}
    named = {"environment": "python", "setting": "version"}
    lines = [(*one, f"{one[1]} 1 -> 2") for one in moved.items()] + [(*one, one[1]) for one in named.items()]
    differences = [inspection.Difference(section, name, "1", "2", line) for section, name, line in lines]
    missed = inspection.Explanation(RecipeDigest("2" * 64), "f", 0, False, near, tuple(differences))
    assert rows_by_cue(missed) == {
        "data": ("not compared", []),
        "code": ("changed", ["f 1 -> 2", "v 1 -> 2", "version"]),
        "config": ("changed", ["size 1 -> 2"]),
        "environment": ("changed", ["numpy 1 -> 2", "python"]),
        "observed": ("not compared", []),
    }
    first = replace(missed, nearest=None, differences=())
    assert {state for state, _ in rows_by_cue(first).values()} == {"new"}
    evicted = replace(first, was_there=True, entries=1)
    assert {state for state, _ in rows_by_cue(evicted).values()} == {"same"}
    partial = replace(first, is_partial=True, cue="data", summary="1 of 5 items not cached: e.txt")
    assert rows_by_cue(partial)["data"] == ("incomplete", ["1 of 5 items not cached: e.txt", LOOK_ALIKE])
    assert {rows_by_cue(partial)[name][0] for name in ("code", "config", "observed")} == {"same"}


@pytest.mark.parametrize(("version", "is_told"), [(prepcache.__version__, False), ("0.0.1", True)])
def test_status_says_where_the_daemon_is_of_another_version(capsys, version, is_told):
    out = shown(capsys, {}, info=replace(INFO, version=version))
    assert f"prepcached {version}, pid 0, up 0 s\nat unix:///s, root /r\n" in out
    assert (f"installed: {prepcache.__version__}; run `prepcached stop`" in out) is is_told, out


def test_status_says_how_a_browser_reaches_the_page(capsys):
    told = f"page ssh -N -L 8080:/s {socket.gethostname()}, then http://localhost:8080/"
    assert told in shown(capsys, {})
    assert "page" not in shown(capsys, {}, url="http://box:8470"), "a browser has no token to show"


def test_status_shows_a_root_that_no_terminal_obeys(capsys):
    """A path is any bytes; other texts were checked when they were read."""
    assert "/r?[2J" in shown(capsys, {}, info=replace(INFO, root="/r\x1b[2J"))


@pytest.mark.parametrize(
    ("seen", "doing"),
    [
        ({}, "connected"),
        ({"holds": 2}, "reading"),
        ({"holds": 2, "leases": 1}, "preprocessing"),
        ({"leases": 1, "progress": (wire.Progress(RecipeDigest("1" * 64), "big.f", 26, 30),)}, "big.f 26/30"),
    ],
)
def test_status_shows_a_job_before_its_first_progress(capsys, seen, doing):
    one = inspection.SessionSeen("2" * 32, "train.py", "box", 7, **seen)
    assert re.search(rf"^train.py .* {doing}$", shown(capsys, {}, sessions=[one]), re.M)


def test_spans_have_one_number_and_one_unit():
    spans = {0: "0 s", 0.25: "0.25 s", 59: "59 s", 90: "1.5 min", 4000: "1.1 h", 86400 * 12: "12 d"}
    assert {seconds: span_text(seconds) for seconds in spans} == spans
    assert age_text(100.0, 100.5) == "now" and age_text(200.0, 100.0) == "now"
    assert age_text(100.0, 190.0) == "1.5 min ago"


def test_spans_are_read_as_they_are_written():
    read = {"90s": 90, "45m": 2700, "12h": 43200, "30d": 2592000, "2w": 1209600, "1.5 h": 5400}
    assert {text: parse_span(text) for text in read} == read
    for text in ("", "30", "d", "3 years", "-1d", "1e3s", "5m 3s"):
        with pytest.raises(ConfigError, match="12h"):
            parse_span(text)
