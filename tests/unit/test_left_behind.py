"""Commits that take too long: the job goes on with what it has made, and they go on without it."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from prepcache import artifact
from prepcache.daemon import waits
from prepcache.daemon.transfer import Staged
from prepcache.digests import RecipeDigest
from prepcache.errors import ArtifactError, DaemonUnreachable, Declined, StoreError
from prepcache.fill.pending import LocalFile
from support.fake_session import FakeDaemon
from support.fills import RECIPE, Bench, daemon_fixture, left_behind  # noqa: F401
from support.serving import wait_until

pytestmark = pytest.mark.timeout(60)
ITEMS = list(range(40))


class Hung:
    """The commits of a session hang until `end`; each may fail then."""

    all: ClassVar[list[Hung]] = []

    def __init__(self, bench: Bench, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self.begun = 0
        self._error = error
        bench.session.fail = self._fail
        self.all.append(self)

    def _fail(self, method: str) -> None:
        if method == "commit":
            self.begun += 1
            assert self.may_end.wait(60)
            if self._error is not None:
                raise self._error

    def end(self, bench: Bench) -> None:
        """Lets them end, and waits until they have."""
        self.may_end.set()
        assert wait_until(lambda: not bench.committer.late_items)


@pytest.fixture(autouse=True)
def short_waits(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commits are waited for a moment."""
    for name, value in {"SPARE_S": 0.05, "FREE_S": 0.01, "COMMIT_BYTES_PER_S": 1e18}.items():
        monkeypatch.setattr(waits, name, value)
    yield
    while Hung.all:
        Hung.all.pop().may_end.set()


def rows(item: int) -> Any:
    return np.full(1000, item, "i8")


def test_a_job_goes_on_with_its_samples_while_a_commit_hangs(daemon):
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)
    filled = bench.fill()
    assert (sorted(filled.computed), filled.late, filled.reason) == (ITEMS, len(ITEMS), "")
    assert bench.samples() == [i * i for i in ITEMS]
    assert daemon.vain_s > 0, "so much was lost to the daemon"
    assert daemon.artifacts == {}
    assert "lost" not in bench.session.calls, "others would make them, too"
    hung.end(bench)
    assert len(Bench(daemon, ITEMS, "after").missing()) == 0, "it was stored all the same"
    assert left_behind(daemon) == 0
    assert bench.samples() == [i * i for i in ITEMS]


def test_while_one_is_left_behind_no_other_is_waited_for(daemon):
    bench = Bench(daemon, ITEMS, function=rows)
    hung = Hung(bench)
    filled = bench.fill(budget=32 * 40_000)
    assert (hung.begun, filled.late) == (1, len(ITEMS))
    assert daemon.vain_s < 2 * waits.SPARE_S
    hung.end(bench)
    assert len(Bench(daemon, ITEMS, "after", rows).missing()) == 0
    assert left_behind(daemon) == 0


@pytest.mark.parametrize(
    ("error", "is_offered"),
    [
        (DaemonUnreachable("it was killed"), True),
        (StoreError("Input/output error"), True),
        (Declined("there is no room"), False),
        (ValueError("a bug"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_uncommitted_samples_are_offered_later(daemon, error, is_offered, caplog):
    """If it is gone, or its store failed once; not if it refused, which is said. Others may make the items,
    either way."""
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench, error)
    assert bench.fill().late == len(ITEMS)
    hung.end(bench)
    assert bench.committer.is_idle != is_offered
    said = [message for message in caplog.messages if "no longer stored" in message]
    assert len(said) == (not is_offered) and all(str(error) in message for message in said)
    assert left_behind(daemon) == 0
    assert bench.samples() == [i * i for i in ITEMS]
    bench.session.fail = lambda method: None
    bench.committer.flush()
    assert bool(daemon.artifacts) == is_offered
    assert bench.samples() == [i * i for i in ITEMS]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ArtifactError("too many inputs")])
def test_without_a_file_pending_samples_are_recomputed(daemon, monkeypatch, error):
    bench = Bench(daemon, ITEMS)

    class Full(LocalFile):
        def __init__(self, *_: Any) -> None:
            raise error

    monkeypatch.setattr("prepcache.fill.pending.LocalFile", Full)
    filled = bench.fill()
    assert f"could not be written to a temporary file: {error}" in filled.reason
    assert bench.samples() == [None] * len(ITEMS)
    assert left_behind(daemon) == 0


def test_a_lease_is_given_back_after_the_last_of_its_commits(daemon):
    """One of its items changed, so that the daemon does not end it by itself."""
    bench = Bench(daemon, ITEMS, function=rows, changed=lambda index: ["x"] if index == 30 else [])
    hung = Hung(bench)
    filled = bench.fill(budget=32 * 40_000)
    assert filled.late == len(ITEMS) - 1 and filled.changed == {30: ["x"]}
    other = Bench(daemon, ITEMS, "other", rows)

    def granted() -> list[int]:
        todo = other.missing()
        digests = other.catalogue.distinct.digests[todo]
        asked = {"want": 40, "cost_s": 0.0, "nbytes": 0, "wait_s": 0.0}
        answer = other.session.lease(RECIPE.digest, other.artifacts.generation, digests, **asked)
        return [todo[at] for at in answer.granted]

    assert granted() == [], "they lie in commits that go on"
    hung.end(bench)
    assert other.missing() == [30] and granted() == [30]


class Refused(artifact.Writer):
    """Its file is not taken by the filesystem."""

    def write(self, file: Any, **names: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_full_filesystem_is_reported_with_its_folder(tmp_path, monkeypatch):
    mend = "free space there, make it writable, or "
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writer, said = Refused(RecipeDigest("0" * 64)), f"{os.strerror(errno.EROFS)}, in {tmp_path}"
    with pytest.raises(OSError, match=re.escape(f"{said}: {mend}set TMPDIR to another folder")):
        LocalFile(writer, {})
    staged = Staged.new(None, tmp_path / "scratch", "s")
    with pytest.raises(OSError, match=re.escape(f"/scratch: {mend}set XDG_CACHE_HOME to another folder")):
        LocalFile(writer, {}, (), staged)
