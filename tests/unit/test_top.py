"""`prepcache top` without a terminal or a daemon: its rates, its screens, its lines, and how it goes on."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from prepcache.command import cli_names, cli_top
from prepcache.command.cli_rates import COUNTERS, PACE_S, History, Look, numbers
from prepcache.command.cli_screen import View, line, screen
from prepcache.command.cli_top import Onlooker, Watch
from prepcache.control.client import Client
from prepcache.digests import RecipeDigest
from prepcache.errors import DaemonUnreachable
from prepcache.protocol import inspection, wire
from support.fake_daemon import FakeDaemon, Hang, Request, reply

RECIPE = RecipeDigest("1f" * 32)
INFO = inspection.Info(version="1", protocol=2, instance="i", root="/root", pid=7, started_at=100.0)
STATS = {
    "disk_bytes": 40 << 30, "effective_limit_bytes": 100 << 30, "max_bytes": 100 << 30, "entries": 1204,
    "yielding_bytes": 30 << 30, "uptime_s": 7200.0, "cost_s": 90000.0, "coldest_age_s": 86400.0 * 3,
    "found_items": 1000, "leased_items": 500, "committed_items": 400, "committed_bytes": 4 << 20,
    "evictions": 3,
}  # fmt: skip


def session(number: int, name: str = "train.py", **members: Any) -> inspection.SessionSeen:
    told = {"owner": 1000, "opened_at": 900.0, "seen_at": 1000.0, **members}
    return inspection.SessionSeen(f"{number:032x}", name, "box", 4000 + number, **told)


def progress(done: int, total: int = 1000, name: str = "prep.tokenise") -> wire.Progress:
    return wire.Progress(RECIPE, name, done, total)


def look(at_s: float = 0.0, *sessions: inspection.SessionSeen, pid: int = 7, **stats: float) -> Look:
    return Look(at_s, 1000.0 + at_s, "unix:///s", replace(INFO, pid=pid), STATS | stats, sessions)


def view(*looks: Look, **members: Any) -> View:
    history = History()
    for one in looks:
        history.note(one)
    return View(looks[-1], history, 2.0, lambda uid: "anna", **members)


def shown(of: View, width: int = 80, height: int = 24) -> str:
    return "\n".join(one.plain for one in screen(of, width, height))


def test_rates_are_since_the_last_look_and_over_a_minute() -> None:
    history = History()
    assert history.rates().now is None
    for second in range(0, 101, 2):
        history.note(look(second, found_items=10 * second if second <= 90 else 900 + (second - 90)))
    rates = history.rates()
    assert rates.now is not None and rates.now["found_items"] == 1
    assert rates.minute is not None and rates.minute["found_items"] == pytest.approx((910 - 400) / 60)


def test_a_restarted_daemon_counts_anew_and_nothing_is_ever_less_than_nothing() -> None:
    history = History()
    history.note(look(0, found_items=1000))
    history.note(look(2, found_items=5, pid=8))
    assert history.rates().now is None
    history.note(look(4, found_items=3, pid=8))
    assert history.rates().now == dict.fromkeys(COUNTERS, 0.0)


def pace(*told: tuple[float, float, int, int]) -> float | None:
    """Of (looked at, told at, done, total)."""
    history = History()
    for at_s, seen_at, done, total in told:
        history.note(look(at_s, session(1, seen_at=seen_at, progress=(progress(done, total),))))
    return history.items_per_s(session(1).session, RECIPE)


def test_a_jobs_pace_goes_by_when_it_told_how_far_it_is() -> None:
    """A beat comes each 5 s and a look each 2 s: by the looks it would stand still and jump."""
    assert pace((0, 1000, 100, 1000), (2, 1000.01, 100, 1000)) is None
    assert pace((0, 1000, 100, 1000), (6, 1005, 150, 1000), (8, 1005.001, 150, 1000)) == pytest.approx(10)
    slower = [(5.0 * n, 1000 + 5.0 * n, 500 * min(n, 10), 9000) for n in range(11 + int(PACE_S / 5))]
    assert pace(*slower) == 0
    assert pace((0, 1000, 900, 1000), (6, 1005, 10, 1000)) is None, "another fill of the recipe began"


def test_a_screen_says_how_full_how_fast_who_makes_what_and_what_is_left() -> None:
    jobs = (
        session(1, progress=(progress(200),), leases=1),
        session(2, "eval.py", holds=3, held_bytes=3 << 30),
    )
    later = (replace(jobs[0], seen_at=1005.0, progress=(progress(300),)), jobs[1])
    text = shown(view(look(0, *jobs), look(6, *later, found_items=1060, committed_bytes=(4 << 20) + 6144)))
    for told in (
        *("pid 7, up for 2.0 h", "/root at unix:///s", "40.0 GiB (40 % of 100 GiB)", "1,204 entries"),
        *("10.0 GiB in use or pinned", "10/s", "1.0 KiB/s", "1,060", "q ends"),
        *("prep.tokenise  ", "300/1,000  20/s  35 s left", "3 of 3.0 GiB", "preprocessing", "reading"),
    ):
        assert told in text, text
    assert "and " not in text


def test_a_screen_says_who_waits_for_whom_and_what_there_is_no_room_for() -> None:
    maker, other = session(1, progress=(progress(5),)), session(9).session
    wait = inspection.Wait(RECIPE, (maker.session, other))
    text = shown(view(look(0, maker, session(2, "eval.py", waits=(wait,), declined_items=12))))
    assert "waits for train.py (pid 4001), one that has ended to make prep.tokenise" in text
    assert "no room for 12 items" in text
    unknown = replace(wait, recipe=RecipeDigest("ab" * 32))
    assert "to make abababababab" in shown(view(look(0, session(2, waits=(unknown,)))))


def test_alarms_are_told() -> None:
    assert "saturated: nothing more is kept" in shown(view(look(disk_bytes=99 << 30, yielding_bytes=0)))
    assert "full: the coldest make room" in shown(view(look(disk_bytes=97 << 30)))
    assert "the disk has no more" in shown(view(look(max_bytes=200 << 30)))
    assert "in quarantine: 2.0 MiB" in shown(view(look(quarantine_bytes=2 << 20)))
    assert "saturated" not in shown(view(look()))


def test_an_alarm_is_whole_where_the_screen_is_narrow() -> None:
    saturated = shown(view(look(disk_bytes=99 << 30, yielding_bytes=0)))
    assert "or the disk is too full" in " ".join(saturated.split())
    gone = shown(
        view(look(), trouble=f"the daemon at unix:///{'deep/' * 14}s cannot be reached: no such file")
    )
    assert "cannot be reached: no such file" in " ".join(gone.split())


def test_a_daemon_that_is_gone_is_said_to_be_with_how_old_the_rest_is() -> None:
    text = shown(view(look(0, session(1)), trouble="the daemon is gone", age_s=40.0))
    assert "the daemon is gone" in text and "of 40 s ago" in text and "train.py" in text


def test_a_job_that_is_silent_has_no_pace() -> None:
    looks = [
        look(at, session(1, seen_at=1000.0 + min(at, 10), progress=(progress(int(at)),)))
        for at in (0, 10, 30)
    ]
    assert "left" in shown(view(*looks[:2])) and "silent 20 s" in shown(view(*looks))
    assert "left" not in shown(view(*looks))


@pytest.mark.parametrize("width", [20, 40, 80, 99, 100, 140, 300])
@pytest.mark.parametrize("height", [4, 16, 17, 18, 24, 60])
def test_every_screen_fits_and_what_does_not_is_counted(width: int, height: int) -> None:
    wait = inspection.Wait(RECIPE, tuple(session(n).session for n in range(9)))
    many = tuple(
        session(
            n,
            "a_script_with_quite_a_long_name_訓練.py",
            progress=(progress(10**6 - n, 10**6, "packages_of_the_project.preprocessing.音声.mel"),)
            * (n % 7),
            waits=(wait,) * (n % 2),
            holds=n,
            held_bytes=n << 30,
        )
        for n in range(40)
    )
    lines = screen(
        view(look(0, *many), look(2, *many, disk_bytes=99 << 30), trouble="gone " * 30), width, height
    )
    assert len(lines) <= height and max(cell_len(one.plain) for one in lines) <= width
    if height > 4 and width > 20:
        assert lines[-1].plain.startswith("and ") and lines[-1].plain.endswith(" more")


def test_a_list_that_just_fits_is_whole() -> None:
    jobs = tuple(session(n) for n in range(12))
    lines = shown(view(look(0, *jobs))).splitlines()
    assert len(lines) == 24 and all(f" {4000 + n} " in "\n".join(lines) for n in range(12))
    assert "and 3 more" in shown(view(look(0, *jobs, session(12), session(13))))[-12:]


def test_no_escape_reaches_the_terminal_and_no_markup_is_obeyed() -> None:
    job = session(1, "[red]x[/]\x1b[2J\x9b1m", progress=(progress(1, 2, "\x1b]0;t\x07"),))
    evil = replace(look(0, job), info=replace(INFO, root="/\x1b[2J"))
    of = View(evil, History(), 2.0, lambda uid: "\x1bc", trouble="\x1b[1m")
    for text in (shown(of, 140), line(of), line(replace(of, trouble=""))):
        assert all(c.isprintable() or c == "\n" for c in text), text
    assert "[red]x[/]?[2J" in shown(of, 140)


def test_a_line_names_the_jobs_that_make_something_or_wait() -> None:
    busy = session(1, progress=(progress(5),))
    waiting = session(2, "eval.py", waits=(inspection.Wait(RECIPE, (busy.session,)),))
    told = line(
        view(look(0, busy, waiting, session(3, "idle.py")), look(2, busy, waiting, session(3, "idle.py")))
    )
    assert "\n" not in told and "on disk 40.0 GiB (40 % of 100 GiB)" in told and "hits 0/s" in told
    assert told.endswith(
        "3 jobs; train.py (pid 4001): prep.tokenise 5/1,000 …; "
        "eval.py (pid 4002): waits for train.py (pid 4001) to make prep.tokenise"
    )


def test_what_is_no_number_counts_for_nothing() -> None:
    odd = {"a": 1, "b": True, "c": "9" * 9, "d": float("nan"), "e": None, "f": {}, "g": 2.5}
    assert numbers(odd) == {"a": 1, "g": 2.5}


def answers(request: Request) -> Any:
    told = {
        "/v1/info": INFO.to_json(),
        "/v1/stats": {**STATS, "disk_bytes": "much"},
        "/v1/sessions": inspection.SessionList((session(1, progress=(progress(1),)),)).to_json(),
    }
    return reply(told[request.path])


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    with FakeDaemon(str(tmp_path / "s"), answers) as fake:
        yield fake


@pytest.fixture
def onlooker(tmp_path: Path, fake: FakeDaemon) -> Iterator[Onlooker]:
    """Whose clock is ten seconds later at each look."""
    clock = itertools.count(0.0, 10.0)
    with contextlib.closing(Onlooker(lambda: Client(f"unix://{fake.path}"), lambda: next(clock))) as one:
        yield one


def test_it_goes_on_while_the_daemon_is_gone_and_shows_the_one_that_comes(
    onlooker: Onlooker, fake: FakeDaemon
) -> None:
    watch = Watch(onlooker, 2.0, lambda: 50.0)
    told: list[Any] = []
    with contextlib.ExitStack() as later:

        def wait(seconds: float) -> bool:
            assert seconds == 2.0
            if len(told) == 1:
                fake.close()
            if len(told) == 3:
                later.enter_context(FakeDaemon(fake.path, answers))
            return len(told) < 4

        cli_top.tell(watch, True, lambda text: told.append(json.loads(text)), wait)
    assert ["trouble" in one for one in told] == [False, True, True, False]
    assert "cannot be reached" in told[1]["trouble"] and "disk_bytes" not in told[3]["stats"]
    assert told[0]["rates"]["now"] is None and told[3]["rates"]["now"]["found_items"] == 0
    assert told[3]["sessions"][0]["progress"][0]["items_per_s"] is None


def test_a_daemon_that_hangs_or_lies_is_trouble_and_no_traceback(
    onlooker: Onlooker, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(onlooker, 2.0)
    monkeypatch.setattr(cli_top, "LOOK_S", 0.05)

    def hang(_: Request) -> Any:
        raise Hang

    evil = reply({"sessions": [session(1).to_json() | {"name": "\x1b[31m"}]})
    for answer in (hang, lambda _: reply([]), lambda _: evil, lambda _: None):
        fake.answer = answer
        watch.go_on()
        assert watch.view.trouble and watch.view.look.info.pid == 7
    fake.answer = answers
    monkeypatch.setattr(cli_top, "LOOK_S", 60.0)
    watch.go_on()
    assert not watch.view.trouble


def test_it_starts_no_daemon_where_the_users_own_one_went_away(
    tmp_path: Path, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store is there: any other command would start it."""
    monkeypatch.delenv("PREPCACHE_URL", raising=False)
    monkeypatch.setattr("prepcache.control.launch.SYSTEM_SOCKET", tmp_path / "none")
    monkeypatch.setattr("prepcache.control.launch.own_socket", lambda _: tmp_path / "s")
    monkeypatch.setattr("prepcache.control.launch.own_root", lambda _: tmp_path / "root")
    monkeypatch.setattr("prepcache.control.launch.Launcher.start", lambda _: pytest.fail("started one"))
    (tmp_path / "root" / "v1").mkdir(parents=True)
    with contextlib.closing(Onlooker(Client)) as onlooker:
        watch = Watch(onlooker, 2.0)
        fake.close()
        for _ in range(2):
            watch.go_on()
            assert watch.view.trouble
        assert "no daemon listens for" in watch.view.trouble
        with pytest.raises(DaemonUnreachable, match="no daemon listens for"):
            Watch(onlooker, 2.0)


def test_users_have_names() -> None:
    assert cli_names.user_name(0) == "root" and cli_names.user_name(None) == "by token"
    assert cli_names.user_name(3_999_999_999) == "uid 3999999999"
