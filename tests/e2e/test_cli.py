"""The `prepcache` command against a real daemon: what it prints, what it removes, how it ends."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcache.errors import NotFound
from prepcached.auth import Auth, Caller
from prepcached.store import staging
from prepcached.store.integrity import Scrubber
from support import fleet, stores
from support.commands import Run, run_fixture  # noqa: F401
from support.serving import Serving, serving
from support.stores import OTHER_RECIPE, RECIPE
from support.terminals import terminal

NOTHING = "nothing to remove: no entry that you may remove matches"


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(Scrubber, "one", lambda _: 0)  # it would find first what a test damages
    with serving(tmp_path) as box:
        monkeypatch.setenv("PREPCACHE_URL", f"unix://{box.uds}")
        monkeypatch.setenv("PREPCACHE_TOKEN", "")
        yield box


@pytest.fixture
def keys(box: Serving) -> list[str]:
    """Three entries: two of a recipe, one of another."""
    job = box.job("train.py")
    found = [job.fill(box.store.staging, [n], size_bytes=5000)["artifact"]["key"] for n in range(2)]
    other = box.job("eval.py")
    other.recipe = OTHER_RECIPE
    filled = other.fill(box.store.staging, ["x"], size_bytes=90_000)
    return [*found, filled["artifact"]["key"]]


def test_ls_shows_a_row_each_and_their_sum(run, keys):
    ended = run("ls")
    assert ended.code == 0
    for key in keys:
        assert key[:12] in ended.out
    assert "tests.recipe" in ended.out
    assert re.search(r"3 entries, \d+ KiB", ended.out)


def test_ls_prints_all_members_for_programs(run, keys):
    told = run("ls", "--json", "--sort", "size_bytes").json
    assert told[0]["key"] == keys[2] and len(told) == 3
    assert {"digest", "recipe", "items", "rows", "cost_s", "owner", "is_pinned", "holds"} <= set(told[0])


@pytest.mark.parametrize(("filters", "count"), [
    (["--name", "tests.*"], 3), (["--name", "nothing"], 0), (["--recipe", OTHER_RECIPE[:8]], 1),
    (["--owner", str(os.getuid())], 3), (["--owner", str(os.getuid() + 1)], 0), (["--older-than", "1h"], 0),
    (["--produced-by", "train.py"], 3), (["--pinned"], 0), (["--limit", "2"], 2),
])  # fmt: skip
def test_ls_filters(run, keys, filters, count):
    assert len(run("ls", "--json", *filters).json) == count


def test_show_takes_the_beginning_of_a_key_and_shows_the_recipe(run, keys):
    ended = run("show", keys[0][:10])
    assert ended.code == 0 and keys[0] in ended.out
    assert re.search(r"made by script +train.py", ended.out)
    assert re.search(r"^format +1$", ended.out, re.M)
    told = run("show", keys[0], "--json").json
    assert told["key"] == keys[0] and told["parts"] == {"format": 1}


def test_a_key_that_is_not_there_or_is_none(run, keys):
    missing = f"{(int(keys[0][:8], 16) + 1) % 16**8:08x}"
    for command in ("show", "pin", "unpin", "verify"):
        ended = run(command, missing)
        assert (ended.code, ended.out) == (1, "") and "no key begins with" in ended.err
        ended = run(command, "../../etc")
        assert ended.code == 2 and "'../../etc' must be 4 to 64 hex digits" in ended.err
    assert run("show", "ab" * 32).code == 1


def test_pin_and_unpin(run, keys):
    pinned = run("pin", keys[0][:12], keys[1]).out.splitlines()
    assert [line.partition(" (")[0] for line in pinned] == [f"pinned {key[:12]}" for key in keys[:2]]
    assert {one["key"] for one in run("ls", "--pinned", "--json").json} == set(keys[:2])
    assert "in use" in run("ls").out and "pinned" in run("ls").out
    assert run("unpin", *keys[:2]).out.startswith(f"unpinned {keys[0][:12]} (")
    assert run("ls", "--pinned", "--json").json == []


def test_of_several_keys_none_is_pinned_where_one_is_not_there(run, keys):
    missing = f"{(int(keys[0][:8], 16) + 1) % 16**8:08x}"
    assert run("pin", keys[0], missing).code == 1
    assert run("ls", "--pinned", "--json").json == []


def test_a_purge_says_how_many_pinned_entries_go(run, keys):
    run("pin", keys[0])
    assert run("purge", "--all", "--dry-run").out.endswith(" (1 of them pinned)\n")
    assert run("purge", "--all", "--dry-run", "--json").json["pinned"] == 1
    assert run("purge", keys[1], "--yes").out.startswith("removed 1 entry") and "pinned" not in run("ls").err
    assert run("purge", "--all", "-y").out.endswith(" (1 of them pinned)\n")


def test_purge_with_dry_run_only_says_what_it_would_do(run, keys):
    for chosen in (["--recipe", OTHER_RECIPE], [keys[2][:8]], ["--older-than", "0s"], ["--all"]):
        lines = run("purge", *chosen, "--dry-run").out.splitlines()
        assert lines[0].startswith("KEY") and lines[-1].startswith("would remove "), lines
        assert keys[2][:12] in [line[:12] for line in lines]
    told = run("purge", "--all", "--dry-run", "--json").json
    assert told["dry_run"] and told["entries"] == 3 and set(told["keys"]) == set(keys)
    assert len(run("ls", "--json").json) == 3


@pytest.fixture
def idle(box: Serving) -> list[str]:
    """Four entries that no job reads, the coldest first, of which the second is pinned."""
    keys = [stores.put(box.store, n, size_bytes=50_000).artifact.key for n in range(4)]
    box.store.set_pin(keys[1], True, os.getuid())
    return keys


def test_purge_frees_so_much_and_the_coldest_go_first(run, box, idle):
    """What is pinned stays, and so does what a job reads."""
    order = [one["key"] for one in run("ls", "--json", "--sort", "created_at").json]
    assert order[::-1] == idle
    listed = run("purge", "--free", "90KB", "--dry-run")
    assert [line[:12] for line in listed.out.splitlines()[1:-1]] == [idle[0][:12], idle[2][:12]]
    assert listed.out.splitlines()[-1].startswith("would remove 2 entries") and listed.err == ""
    assert len(run("ls", "--json").json) == 4
    assert run("purge", "--free", "90KB", "--yes").out.startswith("removed 2 entries")
    assert {one["key"] for one in run("ls", "--json").json} == {idle[1], idle[3]}

    assert box.job().resolve().status_code == 200
    ended = run("purge", "--free", "90KB", "--dry-run")
    assert (ended.out, ended.err) == (f"{NOTHING}\n", "")
    assert run("purge", "--free", "90KB", idle[3]).code == 2


@pytest.mark.parametrize(
    "arguments", [[], ["--all", "--name", "x"], ["--all", "abcdef"], ["--all", "--free", "1GB"]]
)
def test_a_purge_says_what_or_all_and_not_both(run, keys, arguments):
    ended = run("purge", *arguments)
    assert ended.code == 2 and ended.err == "prepcache: give keys, filters or --free, or --all alone\n"
    assert len(run("ls", "--json").json) == 3


def test_explain_takes_the_beginning_of_a_name(run, box, keys):
    assert re.search(r"^name +tests.recipe$", run("explain", "--name", "tests.*").out, re.M)
    job = box.job()
    job.recipe = "5a" * 32
    job.resolve(name="tests.other")
    assert re.search(r"^name +tests.other$", run("explain", "--name", "tests.*").out, re.M)
    assert re.search(r"^name +tests.recipe$", run("explain", "--name", "tests.r*").out, re.M)
    assert run("explain", "--name", "nothing*").code == 1


PURGE = [sys.executable, "-c", "from prepcache.command.cli import main; main()", "purge", "--all"]


def test_where_there_is_nobody_to_ask_a_purge_wants_yes(run, keys):
    for answer in ("y\n", ""):
        ended = subprocess.run(PURGE, input=answer, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith("prepcache: there is no terminal to ask at: add --yes")
    for option, left in (("--dry-run", 3), ("--json", 0)):
        ended = subprocess.run(
            [*PURGE, option], input="n\n", capture_output=True, text=True, timeout=60, check=True
        )
        assert "3" in ended.stdout
        assert len(run("ls", "--json").json) == left


def test_on_a_terminal_a_purge_asks_first(run, keys):
    for answer, left in (("n\n", 3), ("y\n", 0)):
        with terminal("purge", "--all", environ={}) as seen:
            seen.until("This removes 3 entries")
            seen.type(answer.encode())
            assert (seen.ended() == 0) == (left == 0)
        assert len(run("ls", "--json").json) == left


def test_a_purge_leaves_what_others_own(run, box, keys, monkeypatch):
    monkeypatch.setattr(Auth, "caller", lambda _, peer, *__: Caller(4242, peer))
    for chosen in (("--name", "tests.recipe"), ("--all",)):
        ended = run("purge", *chosen, "--yes")
        assert (ended.code, ended.out) == (0, f"{NOTHING}\n")
    ended = run("purge", keys[0], "--yes")
    assert ended.code == 18 and f"entry {keys[0][:12]} (tests.recipe) belongs to uid" in ended.err
    assert len(run("ls", "--json").json) == 3


def test_verify_reports_unreadable_entries_as_unknown(run, keys, monkeypatch):
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(staging, "hash_file", fail)
    ended = run("verify", keys[0])
    assert ended.code == 1 and "0 damaged" in ended.out
    assert f"could not be read (see the daemon's log): {keys[0][:12]}\n" in ended.out
    assert run("verify", keys[0], "--json").json["unreadable"] == [keys[0]]


def test_verify_reads_all_and_its_exit_code_tells_damage(run, box, keys):
    ended = run("verify")
    assert ended.code == 0 and "read 3 entries" in ended.out and "0 damaged" in ended.out
    (digest,) = {one["digest"] for one in run("ls", "--json").json if one["key"] == keys[2]}
    path = Path(box.store.root, "v1", "objects", digest[:2], digest)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    ended = run("verify")
    told = f"damaged and removed: {keys[2][:12]}\nthe next job that needs their samples recomputes them\n"
    assert ended.code == 1 and ended.out.endswith(told)
    assert keys[2] not in {one["key"] for one in run("ls", "--json").json}
    assert not path.exists()


def test_status_shows_the_daemon_its_store_and_who_is_connected(run, box, keys):
    ended = run("status")
    assert ended.code == 0
    for text in (str(box.uds), box.store.root, "train.py", "eval.py"):
        assert text in ended.out
    told = run("status", "--json").json
    assert told["stats"]["entries"] == 3 and told["names"]["names"][0]["entries"] == 3
    assert told["miss"]["name"] == "tests.recipe"
    assert {one["name"] for one in told["sessions"]} == {"train.py", "eval.py"}
    assert "token" not in json.dumps(told["sessions"])


def test_tier_pull_and_gc(run, tmp_path, monkeypatch):
    """An artifact is fetched by its recipe; one that no manifest names is listed, then deleted."""
    (bucket := tmp_path / "bucket").mkdir()
    with fleet.box(tmp_path / "first", bucket) as first:
        monkeypatch.setenv("PREPCACHE_URL", f"unix://{first.uds}")
        first.job().fill(first.store.staging, ["a", "b"])
        run("tier", "push")
    with fleet.box(tmp_path / "second", bucket) as second:
        monkeypatch.setenv("PREPCACHE_URL", f"unix://{second.uds}")
        assert run("tier", "pull", "0" * 64).code == NotFound.exit_code
        pulled = run("tier", "pull", RECIPE)
        assert (pulled.code, pulled.out) == (0, "fetched 1 artifact\n")
        assert second.store.stats().entries == 1
        [kept] = [path for path in (bucket / "cas").rglob("*") if path.is_file()]
        stray = kept.with_name(kept.name[:2] + "0" * 62)
        stray.write_bytes(b"left by a crash")
        os.utime(stray, (0, 0))
        assert run("tier", "gc").out.splitlines() == [
            f"cas/v1/{kept.name[:2]}/{stray.name}",
            "found 1 artifact that no recipe uses",
        ]
        assert run("tier", "gc", "--yes").out.endswith("deleted 1 artifact that no recipe uses\n")
        assert kept.exists() and not stray.exists()


def test_a_pipe_that_closes_early_is_no_error(keys):
    program = f"{sys.executable} -c 'from prepcache.command.cli import main; main()'"
    ended = subprocess.run(
        ["bash", "-c", f"{program} ls --json | head -c 1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stderr == ""
