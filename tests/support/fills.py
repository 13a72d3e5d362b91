"""A job that fills over numbers, with a daemon in the same process."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from prepcache.daemon import waits
from prepcache.fill.call import Job, Part
from prepcache.fill.commit import Committer
from prepcache.fill.filler import Fill, Filled
from prepcache.fill.on_access import OnAccess
from prepcache.fill.pending import Collected, Task
from prepcache.fill.workers import InProcess, Workers
from prepcache.index.artifact_set import ArtifactSet
from prepcache.index.item_index import Catalogue, Distinct, rows_of
from prepcache.index.recipe_index import RecipeIndex, open_or_miss
from prepcache.protocol.wire import ArtifactRef
from support.fake_session import FakeDaemon, FakeSession

RECIPE = types.SimpleNamespace(digest=blake3(b"recipe").hexdigest(), name="test")


class Index(RecipeIndex):
    """Artifacts that `open_ref` maps, without a daemon."""

    def __init__(self, open_ref: Callable[[ArtifactRef], Any], *, keeps_all: bool = False) -> None:
        super().__init__(keeps_all=keeps_all)
        self.open_ref = open_ref

    def _open(self, ref: ArtifactRef, verdicts: Any) -> Any:
        return self.open_ref(ref)


class Quiet:
    def __init__(self) -> None:
        self.waits: list[tuple[Any, int]] = []
        self.counts: list[int] = []
        self.taken: list[int] = []

    def advance(self, computed: int, waited: int, pace: Any, taken: int) -> None:
        self.counts.append(computed)
        self.taken.append(taken)

    def waiting(self, holders: Any, left: int) -> None:
        self.waits.append((holders, left))


class Artifacts:
    """What a job knows of a recipe; as artifact_set.py."""

    recipe = RECIPE
    reason = ""
    budget = 32 << 20
    absorb_own = ArtifactSet.absorb_own

    def __init__(self, session: FakeSession, catalogue: Catalogue) -> None:
        self.session = self.sharing = session
        self.catalogue, self.take_in = catalogue, catalogue.index.take_in
        self.generation = 0
        self.drop = session.dropped.extend

    def lease(self, *given: Any, **named: Any) -> Any:
        answer = self.sharing.lease(*given, **named)
        if answer.look_again is not None:
            self.absorb(answer.look_again)
        return answer

    def budget_bytes(self) -> int:
        return self.budget

    def accepts(self, rows: Any) -> bool:
        return True

    def look(self) -> None:
        self.absorb(self.session.resolve(RECIPE))

    def absorb(self, resolved: Any) -> None:
        _, useless = self.take_in(resolved.artifacts, is_complete=resolved.is_complete)
        self.generation = resolved.generation
        self.drop(useless)


class By:
    """How a job makes samples; as `Preprocessing` of samples.py."""

    recipe, name = RECIPE, RECIPE.name

    def __init__(self, artifacts: Artifacts, job: Job) -> None:
        self.artifacts, self.job = artifacts, job

    @property
    def may_wait_for_others(self) -> bool:
        return self.job.may_wait_for_others


class Bench:
    """One job over the numbers `items`, whose sample is the number squared unless told otherwise."""

    def __init__(
        self,
        daemon: FakeDaemon,
        items: list[int],
        name: str = "job",
        function: Callable[[int], Any] | None = None,
        *,
        is_expanded: bool = False,
        changed: Callable[[int], list[str]] = lambda index: [],
    ) -> None:
        self.items = items
        self.session = FakeSession(daemon, name)
        self.called: list[int] = []
        self.watcher = Quiet()
        digests = np.frombuffer(b"".join(blake3(b"%d" % item).digest() for item in items), "u1").reshape(
            -1, 32
        )
        self.catalogue = Catalogue(
            Distinct(digests.reshape(-1, 32)),
            Index(lambda ref: open_or_miss(ref, self.session.path_of, RECIPE.digest)),
            is_expanded=is_expanded,
        )
        self.artifacts = Artifacts(self.session, self.catalogue)
        made = function or (lambda item: np.int64(item * item))

        def watched(item: int) -> Any:
            self.called.append(item)
            return made(item)

        self.job = Job(watched, {}, is_expanded)
        first = self.catalogue.distinct.first
        self.item_of = lambda index: items[first[index]]
        self.changed = changed

    def task(self) -> Task:
        self.artifacts.look()
        first = self.catalogue.distinct.first
        originals: Any = types.SimpleNamespace(
            item=self.item_of, position=lambda index: int(first[index]), changed=self.changed,
            name=lambda index: f"item {first[index]} ({self.item_of(index)!r})",
        )  # fmt: skip
        by: Any = By(self.artifacts, self.job)
        return Task(by, self.catalogue, originals)

    def fill(self, workers: Workers | None = None, *, budget: int | None = None) -> Filled:
        self.artifacts.budget = budget or self.artifacts.budget
        workers = workers or InProcess(self.job, self.item_of)
        task = self.task()
        self.committer = Committer(task)
        todo = self.catalogue.missing
        watcher: Any = self.watcher
        return Fill(task, workers, watcher, self.committer, todo).run()

    def missing(self) -> list[int]:
        """What it would make."""
        self.artifacts.look()
        return self.catalogue.missing.tolist()

    def commit(self) -> None:
        """Makes and commits what is missing in this thread, as another process would."""
        task = self.task()
        collected = Collected(task)
        for index in self.missing():
            collected.add(*self.job.parts(index, self.item_of(index)), None)
        Committer(task)._commit(collected.batch([]), None)

    def samples(self) -> list[Any]:
        slots, rows = rows_of(self.catalogue.distinct.inverse, self.catalogue.places)
        return [
            None if slot < 0 else self.catalogue.slots[slot].artifact.sample(row)
            for slot, row in zip(slots.tolist(), rows.tolist(), strict=True)
        ]


class AccessJob:
    """A job that makes samples of numbers on access."""

    def __init__(self, daemon: FakeDaemon, items: list[int], name: str = "job", function: Any = None) -> None:
        self.bench = Bench(daemon, items, name, function)
        self.task, self.artifacts = self.bench.task(), self.bench.artifacts
        self.committer = Committer(self.task)
        self.made = OnAccess(self.task, self.committer)

    def call(self, index: int) -> tuple[Part, bool]:
        (part,) = self.bench.job.parts(index, self.bench.item_of(index))
        if part.error is not None:
            raise part.error
        return part, True

    def samples(self, *indices: int) -> list[Any]:
        found = self.made.samples(indices, self.call, is_single=len(indices) == 1)
        return [found[index] for index in indices]

    def forget(self) -> None:
        """It commits nothing at the end of this process."""
        self.made.pid = self.committer.pid = 0


@pytest.fixture(name="daemon")
def daemon_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # locks of items are of this test alone
    # A busy machine is no slow daemon.
    monkeypatch.setattr(waits, "SPARE_S", 60.0)
    monkeypatch.setattr(waits, "COMMIT_LIMIT_S", 120.0)
    return FakeDaemon(tmp_path)


def left_behind(daemon: FakeDaemon) -> int:
    return len(daemon.table)
