"""The `prepcache` command where no daemon is needed: usage, help, errors, units, `key`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from prepcache.command import cli
from prepcache.errors import ConfigError
from prepcache.protocol.units import age_text, count_text, parse_span, size_text, span_text

COMMANDS = sorted(get_command(cli.app).commands)  # type: ignore[attr-defined]


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["prepcache", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return ended.value.code or 0, said.out, said.err  # type: ignore[return-value]


def test_all_commands_of_the_contract_are_there() -> None:
    assert {"status", "ls", "show", "purge", "pin", "unpin", "verify", "key"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(monkeypatch, capsys, command, "--help")
    assert code == 0 and f"Example: prepcache {command}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        *(["nonsense"], ["ls", "--nonsense"], ["show"], ["pin"], ["key", "no-colon"], ["key", ":f"]),
        *(["ls", "--limit", "-1"], ["ls", "--sort", "colour"], ["ls", "--older-than", "soon"]),
        ["ls", "--owner", "no such user"],
    ],
)
def test_wrong_usage_ends_with_2_before_any_daemon_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setenv("PREPCACHE_URL", "unix:///nobody/listens/here.sock")
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert code == 2 and out == "" and err != ""


@pytest.mark.parametrize(
    "arguments", [["status"], ["ls"], ["show", "abcdef"], ["purge", "--all"], ["pin", "abcd"], ["verify"]]
)
def test_a_daemon_that_is_not_there_ends_with_3_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.setenv("PREPCACHE_URL", f"unix://{tmp_path}/none.sock")
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1 and str(tmp_path) in err


def test_where_nothing_was_ever_cached_no_daemon_is_started_to_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("PREPCACHE_URL", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("prepcache.control.launch.SYSTEM_SOCKET", tmp_path / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, _, err = run(monkeypatch, capsys, "ls")
    assert code == 3 and "the first job starts one" in err
    assert not (tmp_path / "cache").exists()


def test_a_url_that_means_nothing_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREPCACHE_URL", "ftp://x")
    code, _, err = run(monkeypatch, capsys, "status")
    assert code == 2 and "unix:///path/to/socket" in err


def test_an_error_of_our_own_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("never")

    monkeypatch.setattr(cli, "_client", broken)
    code, _, err = run(monkeypatch, capsys, "status")
    assert code == cli.INTERNAL and err.count("\n") == 1 and "ZeroDivisionError: never" in err


def test_interrupting_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_client", interrupted)
    assert run(monkeypatch, capsys, "status")[0] == cli.INTERRUPTED


def test_key_reads_a_file_and_never_runs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "prep.py"
    script.write_text(
        "import pathlib\nSIZE = 3\npathlib.Path(__file__).with_name('ran').touch()\n"
        "def tokenize(item):\n    return item[:SIZE]\n"
    )
    first = run(monkeypatch, capsys, "key", f"{script}:tokenize", "--json")
    assert first[0] == 0 and json.loads(first[1])["files"]
    assert "tokenize" in run(monkeypatch, capsys, "key", f"{script}:tokenize")[1]
    script.write_text(script.read_text().replace("[:SIZE]", "[SIZE:]"))
    assert run(monkeypatch, capsys, "key", f"{script}:tokenize", "--json") != first
    assert not (tmp_path / "ran").exists()
    code, out, err = run(monkeypatch, capsys, "key", f"{script}:missing")
    assert code == 10 and out == "" and "tokenize" in err


def test_help_does_not_load_what_it_does_not_need() -> None:
    code = (
        "import sys\nimport prepcache.command.cli\n"
        "print(*{'torch', 'numpy', 'httpx', 'rich', 'prepcached', 'blake3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (1536, "1.5 KiB"), (150 << 10, "150 KiB")],
)
def test_sizes_have_three_digits_and_a_unit(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_counts_agree_with_their_noun() -> None:
    assert [count_text(n, "entry", "entries") for n in (0, 1, 2000)] == [
        "0 entries",
        "1 entry",
        "2,000 entries",
    ]


def test_spans_have_one_number_and_one_unit() -> None:
    spans = {0: "0 s", 0.25: "0.25 s", 59: "59 s", 90: "1.5 min", 4000: "1.1 h", 86400 * 12: "12 d"}
    assert {seconds: span_text(seconds) for seconds in spans} == spans
    assert age_text(100.0, 100.5) == "now" and age_text(200.0, 100.0) == "now"
    assert age_text(100.0, 190.0) == "1.5 min ago"


def test_spans_are_read_as_they_are_written() -> None:
    read = {"90s": 90, "45m": 2700, "12h": 43200, "30d": 2592000, "2w": 1209600, "1.5 h": 5400}
    assert {text: parse_span(text) for text in read} == read
    for text in ("", "30", "d", "3 years", "-1d", "1e3s", "5m 3s"):
        with pytest.raises(ConfigError, match="12h"):
            parse_span(text)
