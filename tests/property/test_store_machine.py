"""The store against a dict: whatever is done in whatever order, it answers what the dict says.

The oracle is independent: it knows only which items were committed, held, pinned and purged.
Each run ends with `check()` finding nothing and the disk's blocks equal to the sums.
"""

import shutil
import tempfile
from collections.abc import Collection
from unittest import mock

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from prepcache import errors
from prepcached.store import compaction
from prepcached.store.records import Filter, Limits
from prepcached.store.store import Store, rebuild
from support import stores
from support.stores import OTHER_RECIPE, RECIPE, Clock

BUDGET = 12 * 8192
"""A dozen of the small artifacts, 8 KiB on disk each."""
RECIPES = st.sampled_from([RECIPE, OTHER_RECIPE])
SESSIONS = st.sampled_from(["a", "b"])
ITEMS = st.lists(st.integers(0, 40), min_size=1, max_size=3, unique=True)


class StoreMachine(RuleBasedStateMachine):
    keys = Bundle("keys")

    @initialize()
    def open(self) -> None:
        self.small_merges = mock.patch.object(compaction, "FANOUT", 3)
        self.small_merges.start()
        self.folder = tempfile.mkdtemp(dir=stores.MEMORY)
        self.clock = Clock()
        self.expected: dict[str, tuple[str, str, frozenset[bytes]]] = {}  # digest -> (recipe, key, items)
        self.pinned: set[str] = set()
        self.seen: dict[str, tuple[int, set[str]]] = {}  # a client's view: recipe -> (generation, digests)
        self.held: dict[str, set[str]] = {"a": set(), "b": set()}
        self.store = self.new_store()

    def new_store(self) -> Store:
        limits = Limits(max_bytes=BUDGET, min_free_bytes=0, hold_idle_s=1e6)
        return Store(self.folder, limits=limits, clock=self.clock, monotonic=self.clock)

    def gone(self) -> set[str]:
        """What the dict has and the store has no more."""
        there = {
            ref.digest for recipe in (RECIPE, OTHER_RECIPE) for ref in self.store.resolve(recipe).artifacts
        }
        return self.expected.keys() - there

    def note_evicted(self, replaced: Collection[str] = ()) -> None:
        held = set().union(*self.held.values())
        for digest in self.gone():
            if digest not in replaced:
                event("evict")
                assert digest not in held, "eviction took what is held"
                assert self.expected[digest][1] not in self.pinned, "eviction took what is pinned"
            del self.expected[digest]

    @rule(target=keys, names=ITEMS, recipe=RECIPES, seed=st.integers(0, 1), holder=st.none() | SESSIONS)
    def commit(self, names: list[int], recipe: str, seed: int, holder: str | None) -> object:
        try:
            done = stores.put(self.store, *names, recipe=recipe, seed=seed, holder=holder)
        except errors.Declined:
            assert self.store.sweep_staging("s".__ne__).files == 1
            self.note_evicted()
            assert self.protected() + 8192 > BUDGET - 8192, "declined although there was idle room"
            return multiple()
        ref = done.artifact
        is_again = ref.digest in self.expected
        self.note_evicted([one for one, of in self.expected.items() if of[:2] == (recipe, ref.key)])
        self.expected[ref.digest] = (recipe, ref.key, frozenset(stores.item(name) for name in names))
        if holder is not None:
            self.held[holder].add(ref.digest)
        generation = self.store.generation(recipe)
        assert done.generation == generation or (is_again and 0 < done.generation < generation)
        return ref.key

    @rule(first=st.integers(0, 90), count=st.integers(3, 6), holder=st.none() | SESSIONS)
    def fill(self, first: int, count: int, holder: str | None) -> None:
        for name in range(first, first + count):
            self.clock.now += 1
            self.commit([name], RECIPE, 0, holder)

    @rule(names=ITEMS, recipe=RECIPES)
    def commit_under_a_lapsed_lease(self, names: list[int], recipe: str) -> None:
        def lapsed(_: object) -> None:
            raise errors.LeaseLapsed("too late")

        before = stores.digests_on_disk(self.store)
        try:
            stores.put(self.store, *names, recipe=recipe, in_transaction=lapsed)
        except (errors.LeaseLapsed, errors.Declined):
            self.store.sweep_staging("s".__ne__)
        else:
            raise AssertionError("the lapsed lease was accepted")
        assert stores.digests_on_disk(self.store) <= before
        self.note_evicted()

    @rule(recipe=RECIPES, holder=st.none() | SESSIONS)
    def resolve_from_where_the_client_is(self, recipe: str, holder: str | None) -> None:
        since, known = self.seen.get(recipe, (0, set()))
        try:
            answer = self.store.resolve(recipe, since, holder=holder)
        except errors.FutureGeneration:  # a rebuilt index knows no recipe without artifacts
            answer = self.store.resolve(recipe, holder=holder)
        digests = {ref.digest for ref in answer.artifacts}
        known = digests if answer.is_complete else known | digests
        self.seen[recipe] = (answer.generation, known)
        assert known == self.live(recipe)
        if holder is not None:
            self.held[holder] |= digests

    @rule(session=SESSIONS)
    def end_session(self, session: str) -> None:
        self.store.release(session)
        self.held[session].clear()
        assert self.store.to_let_go(session) == []

    @rule(session=SESSIONS)
    def beat(self, session: str) -> None:
        leaving = self.store.to_let_go(session)
        self.store.release(session, leaving)
        self.held[session] -= set(leaving)

    @rule(key=keys)
    def pin(self, key: str) -> None:
        try:
            assert self.store.set_pin(key, True).is_pinned
            self.pinned.add(key)
        except errors.NotFound:
            assert key not in self.live_keys()

    @rule(key=keys)
    def unpin(self, key: str) -> None:
        try:
            assert not self.store.set_pin(key, False).is_pinned
        except errors.NotFound:
            assert key not in self.live_keys()
        self.pinned.discard(key)

    @rule(key=consumes(keys))
    def purge(self, key: str) -> None:
        removed = self.store.purge(Filter(keys=(key,)))
        for digest in self.gone():
            assert self.expected.pop(digest)[1] == key
        assert removed.entries == (removed.keys == (key,))
        assert key not in self.live_keys()
        self.pinned.discard(key)

    @rule()
    def merge(self) -> None:
        before = {recipe: stores.items_of(self.store, recipe) for recipe in (RECIPE, OTHER_RECIPE)}
        self.store.merge_some()
        merged_away = self.gone()
        for recipe, items in before.items():
            assert stores.items_of(self.store, recipe) == items
            for ref in self.store.resolve(recipe).artifacts:
                if ref.digest not in self.expected:
                    parts = [self.expected[digest] for digest in merged_away]
                    items_of_parts = frozenset().union(*(part[2] for part in parts))
                    self.expected[ref.digest] = (recipe, ref.key, items_of_parts)
        for digest in merged_away:
            del self.expected[digest]

    @rule(seconds=st.integers(1, 100))
    def maintain(self, seconds: int) -> None:
        self.clock.now += seconds
        self.store.maintain()
        self.note_evicted()

    @rule()
    def scrub_and_verify(self) -> None:
        assert self.store.scrub_one() >= 0
        assert self.store.verify().bad == ()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.new_store()
        for session in self.held.values():
            session.clear()

    @precondition(lambda self: not self.pinned)
    @rule()
    def rebuild(self) -> None:
        self.store.close()
        rebuild(self.folder)
        self.store = self.new_store()
        for session in self.held.values():
            session.clear()
        self.clock.now += 1

    @invariant()
    def answers_what_the_dict_says(self) -> None:
        for recipe in (RECIPE, OTHER_RECIPE):
            expected = {digest: entry for digest, entry in self.expected.items() if entry[0] == recipe}
            refs = {ref.digest: ref.key for ref in self.store.resolve(recipe).artifacts}
            assert refs == {digest: entry[1] for digest, entry in expected.items()}
            assert stores.items_of(self.store, recipe) == sorted(i for e in expected.values() for i in e[2])

    @invariant()
    def keeps_the_budget_and_the_sums(self) -> None:
        stats = self.store.stats()
        assert stats.entries == len(self.expected)
        assert stats.disk_bytes - stats.unlinked_bytes == stores.disk_use(self.store)
        assert stats.disk_bytes <= BUDGET
        assert stats.reserved_bytes == stats.staged_bytes == 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert self.store.check() == [] and stores.sums_agree(self.store)
            self.store.close()
            shutil.rmtree(self.folder)
            self.small_merges.stop()

    def live(self, recipe: str) -> set[str]:
        return {digest for digest, entry in self.expected.items() if entry[0] == recipe}

    def live_keys(self) -> set[str]:
        return {key for _, key, _ in self.expected.values()}

    def protected(self) -> int:
        stats = self.store.stats()
        return stats.held_bytes + stats.pinned_bytes + stats.unlinked_bytes


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)
"""Some seconds of one core: what bounds it is steps, for a crowded machine takes ten times as long."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
class TestStoreLong(StoreMachine.TestCase):
    settings = settings(max_examples=500, stateful_step_count=60, deadline=None)
