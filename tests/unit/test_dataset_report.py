"""Reports and progress: the counts add up, lines are few and say what people ask for."""

import io
import logging
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from prepcache import report
from prepcache.index.item_index import Catalogue, Distinct
from prepcache.index.recipe_index import RecipeIndex
from prepcache.progress import Bar, Progress
from prepcache.protocol import wire
from prepcache.report import Report, Tally, say
from prepcache.settings import Mode
from support.observing import told_by_child
from support.stores import Clock


def tally(items: list[int]) -> Tally:
    digests = np.frombuffer(b"".join(blake3(b"%d" % item).digest() for item in items), "u1")
    distinct = Distinct(digests.reshape(-1, 32))
    return Tally(distinct, Catalogue(distinct, RecipeIndex()))


def test_equal_items_count_as_hits_of_the_first():
    counted = tally([1, 2, 2, 2, 3, 4])
    counted.note_fill([0, 1], [2], 1.5)
    report = counted.report(())
    assert (report.items, report.hit, report.computed, report.waited) == (6, 2, 2, 1)
    counted.note_made(3, 0.5)
    report = counted.report(())
    assert report.hit + report.computed + report.waited + report.declined == report.items
    assert report.seconds == 2.0


def test_what_a_fill_finds_made_or_makes_again_counts_once():
    counted = tally([1, 2, 3])
    counted._catalogue.places.artifact[0] = 0
    counted.note_hits()
    counted.note_made(1, 0.5)
    counted.note_fill([0], [1, 2], 0.5)
    report = counted.report(())
    assert (report.hit, report.computed, report.waited) == (0, 2, 1)


def test_samples_that_were_made_and_are_not_stored_are_counted():
    counted = tally([1, 2, 3])
    assert counted.report(()).not_stored == 0
    counted.note_made(0, 0.5)
    counted.note_made(2, 0.5)
    assert counted.report(()).not_stored == 2
    counted._catalogue.places.artifact[0] = 0
    assert counted.report(()).not_stored == 1
    assert counted.report(()).declined == 0
    counted.note_full()
    assert counted.report(()).declined == 2


def test_a_change_is_said_once():
    counted = tally([1, 2])
    assert counted.note_changed(1, ["a.png"])
    assert not counted.note_changed(1, ["a.png"])
    assert counted.why == ["a.png changed since the data set was opened"]


def test_a_report_reads_as_a_sentence():
    report = Report(1200, 1000, 150, 50, 0, 3_500_000, 75.0, 3600.0)
    assert str(report) == (
        "1,200 items, 1,000 hit, 150 computed, 50 from other jobs, 3.3 MiB, 1.2 min spent, 1.0 h saved"
    )
    report = Report(200, 0, 200, 0, 169, 0, 6.0, 0.0, not_stored=200)
    assert str(report) == (
        "200 items, 0 hit, 200 computed, 200 of them not stored, 169 declined (no room in the cache), 0 B, "
        "6 s spent, 0 s saved"
    )


def shown(
    total: int = 10, there: int = 0, is_shown: bool | None = None, name: str = "job"
) -> tuple[Progress, Clock, list[tuple[int, int]]]:
    clock, told = Clock(0.0), list[tuple[int, int]]()
    return Progress(name, total, there, is_shown, lambda *at: told.append(at), clock), clock, told


def test_a_log_gets_few_lines_with_speed_time_and_disk_to_go(capsys):
    progress, clock, told = shown(1000, 100)
    for second in range(1, 301):
        clock.now = float(second)
        progress.advance(second, 0, 2_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert 4 <= len(lines) <= 8
    assert lines[0] == (
        "prepcache: job: 105 of 1,000 items, 15 min and 1.7 GiB to go, 1.0 items/s, 100 hit, 5 computed"
    )
    assert told[-1] == (400, 1000)


def test_a_line_says_for_whom_a_job_waits(capsys):
    progress, clock, _ = shown(1000, 100)
    clock.now = 15.0
    progress.waiting([wire.Holder("train.py (pid 7)", 600, 340, 1000)], 600)
    waiting = "100 of 1,000 items, waiting for train.py (pid 7) (340 of 1,000) to finish 600 items"
    assert waiting in capsys.readouterr().err


def test_the_end_of_a_fill_reports_all_that_was_made():
    progress, clock, told = shown(1000, 100)
    clock.now = 1.0
    progress.advance(20, 0)
    progress.advance(24, 2)  # at once: not worth a line, but it counts
    assert told == [(100, 1000), (120, 1000)]
    progress.close()
    assert told[-1] == (126, 126)


@pytest.mark.parametrize("is_shown", [None, True])
def test_a_dumb_terminal_has_lines(capsys, monkeypatch, is_shown):
    """rich draws nothing there: a fill of hours once told of nothing."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    progress, clock, _ = shown(is_shown=is_shown)
    clock.now = 6.0
    progress.advance(5, 0)
    assert capsys.readouterr().err.startswith("prepcache: job: 5 of 10 items")


@pytest.mark.parametrize("width", [80, 160])
def test_a_bar_is_one_line_of_the_terminal_and_goes_away(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    name = "a_package.of_mine.for_preparation.with_names.tokenizer.tokenize"
    progress, clock, _ = shown(1000, 100, True, name)
    clock.now = 2.0
    progress.advance(200, 150, 2_000_000)
    progress.close()
    first, *drawn, last = capsys.readouterr().err.split("\r\x1b[J")
    bar = "a_package.of_... [===.....]"
    said = f"{bar} 450 of 1,000 items, 3 s and 1.0 GiB to go"
    more = ", 100.0 items/s, 100 hit, 200 computed, 150 from other jobs"
    assert set(drawn) == {said + more * (width > 80)}, "no part of it is cut"
    assert (first, last) == ("", "")


def test_a_bar_of_a_notebook_is_one_whole_line_and_stays(capsys, monkeypatch):
    monkeypatch.setattr("prepcache.progress._is_notebook", lambda: True)
    bar = Bar()
    bar.draw(["x" * 200])
    bar.draw(["y"])
    bar.stop()
    assert capsys.readouterr().err == f"\r{'x' * 200}\r{'y':200}\n"


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class Tee:
    """As training scripts have it: what is written goes to a file too, and nothing else was thought of."""

    text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


def closed() -> io.StringIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("is_shown", [None, True])
@pytest.mark.parametrize("make", [lambda: None, closed, Broken, Tee], ids=["none", "closed", "broken", "tee"])
def test_a_job_goes_on_whatever_its_stderr_is(make, is_shown, monkeypatch, capsys):
    stderr = make()
    monkeypatch.setattr(sys, "stderr", stderr)
    say("opened")
    progress, clock, told = shown(is_shown=is_shown)
    for done in (5, 6):
        clock.now += 6.0
        progress.advance(done, 0)
    progress.close()
    assert told == [(0, 10), (5, 10), (6, 10), (6, 6)]
    assert not capsys.readouterr().out
    assert stderr is None or not hasattr(stderr, "text") or stderr.text.startswith("prepcache: opened\n")


def test_lines_go_to_the_log_where_one_listens(caplog):
    with caplog.at_level(logging.INFO, "prepcache"):
        say("hello")
        say("unheard", False)
    assert [record.getMessage() for record in caplog.records] == ["hello"]


def test_ranks_other_than_the_first_say_only_what_is_wrong(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    say("as it should")
    say("wrong", is_wrong=True)
    say("asked for", True)
    progress, clock, _ = shown()
    clock.now = 60.0
    progress.advance(5, 0)
    assert capsys.readouterr().err == "prepcache: wrong\nprepcache: asked for\n"


def test_samples_of_workers_are_counted_however_they_start():
    parent = tally([1, 2, 3])
    sent = pickle.dumps(parent)
    copy = pickle.loads(sent)
    # The second as a spawned one gets it.
    told_by_child(lambda: [parent.note_made(1, 2.5), pickle.loads(sent).note_made(2, 0.5)])
    copy.note_made(0, 1.0)
    told = parent.report(())
    assert (told.computed, told.seconds) == (2, 3.0)
    assert (copy.report(()).computed, copy.report(()).seconds) == (1, 1.0)


def test_what_changed_is_told_printable_and_bounded():
    names = "project:v\n.txt", "/etc/v:1.txt", *(f"/{n}" for n in range(99))
    found = tuple((name, "changed") for name in names)
    session = SimpleNamespace(is_away=False)
    artifacts: Any = SimpleNamespace(session=session, reason="", mode=Mode.ON, changed_inputs=found)
    report.why_missing(artifacts, SimpleNamespace(missing=[0]), [], None)  # type: ignore[arg-type]
    told = "v?.txt, which the function used, changed; /etc/v:1.txt, which the function used, changed; /0, "
    assert artifacts.why.startswith(told) and len(artifacts.why) == wire.MAX_WHY
    assert artifacts.why.isprintable()
