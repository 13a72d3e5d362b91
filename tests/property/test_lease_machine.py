"""The lease table as a state machine with a fake clock, against a model that knows only who may do what."""

import itertools
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from prepcache.errors import LeaseLapsed
from prepcached.leases import Commit, Lease, LeaseTable

ITEMS = [bytes([n]) * 32 for n in range(4)]
RECIPES = ("r1", "r2")
SESSIONS = ("s1", "s2")
MIN_SPAN_S, STALL_S = 15.0, 600.0  # as the contract has them, not the table
some_items = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4, unique=True)


@dataclass
class Known:
    """What a client believes about a lease that it was given; `items` as the model counts them."""

    lease_id: str
    token: str
    session: str
    recipe: str
    items: set[bytes]
    cost_s: float
    deadline: float
    progress_at: float
    is_over: bool = False
    is_committing: bool = False
    is_orphaned: bool = False


@dataclass
class Waiter:
    """A job that waits for items, until it is woken."""

    recipe: str
    items: set[bytes]
    is_woken: bool = False


@dataclass
class Model:
    """The oracle."""

    now: float = 0.0
    known: list[Known] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RECIPES, 0))
    committed: dict[str, set[bytes]] = field(default_factory=lambda: {r: set() for r in RECIPES})

    def live(self) -> list[Known]:
        return [one for one in self.known if not one.is_over]

    def taken(self, recipe: str) -> dict[bytes, Known]:
        return {item: one for one in self.live() if one.recipe == recipe for item in one.items}

    def lapse(self) -> None:
        for one in self.live():
            if one.deadline <= self.now and not one.is_committing:
                one.is_over = True


class LeaseMachine(RuleBasedStateMachine):
    """Jobs lease, beat, commit, release, die and oversleep, in every order."""

    leases = Bundle("leases")
    commits = Bundle("commits")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.waiters: list[Waiter] = []
        self.numbers = itertools.count()
        self.table = LeaseTable(lambda: self.model.now, self.changed)

    def changed(self, recipe: str) -> None:
        for waiter in self.waiters:
            waiter.is_woken = waiter.is_woken or waiter.recipe == recipe

    @rule(
        target=leases,
        session=st.sampled_from(SESSIONS),
        recipe=st.sampled_from(RECIPES),
        items=some_items,
        want=st.integers(1, 4),
        behind=st.integers(0, 1),
        cost_s=st.sampled_from([0.0, 2.0, 100.0]),
    )
    def ask(
        self, session: str, recipe: str, items: list[bytes], want: int, behind: int, cost_s: float
    ) -> Known | None:
        model = self.model
        generation = model.generations[recipe] - behind
        # Who knows the generation knows what was committed, and asks for none of it.
        items = [item for item in items if item not in model.committed[recipe]]
        if not items:
            return None
        answer = self.table.grant(
            session, session, recipe, generation, b"".join(items),
            lease_id=f"lease{next(self.numbers)}", want=want, cost_s=cost_s,
        )  # fmt: skip
        model.lapse()
        if behind:
            assert answer.is_behind and answer.lease is None
            return None
        taken = model.taken(recipe)
        free = [index for index, item in enumerate(items) if item not in taken]
        assert answer.granted == free[:want]
        assert bool(answer.lease) == bool(answer.granted)
        if answer.lease is None:
            assert sum(answer.held.values()) == len(items)
            self.waiters.append(Waiter(recipe, set(items)))
            waited_for = {one.id for one in self.table.waited_for()}
            assert {taken[item].lease_id for item in items} <= waited_for
            return None
        known = Known(
            answer.lease.id,
            answer.lease.token,
            session,
            recipe,
            {items[index] for index in answer.granted},
            cost_s,
            model.now + max(MIN_SPAN_S, 4 * cost_s),
            model.now,
        )
        model.known.append(known)
        return known

    @rule(
        session=st.sampled_from(SESSIONS),
        moved=st.sets(st.sampled_from(RECIPES)),
        times=st.sampled_from([1, 1, 1, 60]),
    )
    def beat(self, session: str, moved: set[str], times: int) -> None:
        for _ in range(times):
            self.beat_once(session, moved)
            self.model.now += 14.0 if times > 1 else 0.0

    def beat_once(self, session: str, moved: set[str]) -> None:
        self.model.lapse()
        self.table.beat(session, moved)
        for one in self.model.live():
            if one.session == session:
                one.progress_at = self.model.now if one.recipe in moved else one.progress_at
                stall_at = one.progress_at + max(STALL_S, 40 * one.cost_s)
                renewed = min(self.model.now + max(MIN_SPAN_S, 4 * one.cost_s), stall_at)
                one.deadline = max(one.deadline, renewed)

    @rule(seconds=st.sampled_from([0.5, 14.0, 16.0, 401.0, 700.0]))
    def sleep(self, seconds: float) -> None:
        self.model.now += seconds

    @rule()
    def tick(self) -> None:
        self.table.lapse()

    @rule(known=leases)
    def release(self, known: Known | None) -> None:
        if known is None:
            return
        self.model.lapse()
        try:
            self.table.release(known.session, known.lease_id, known.token)
        except LeaseLapsed:
            assert known.is_over or known.is_committing
        else:
            assert not known.is_over and not known.is_committing
            known.is_over = True

    @rule(known=leases, session=st.sampled_from(SESSIONS))
    def forsake(self, known: Known | None, session: str) -> None:
        """A session says which leases it never heard of; of another's it says it in vain."""
        if known is None:
            return
        self.model.lapse()
        self.table.forsake(session, [known.lease_id, known.lease_id, "no such lease"])
        if session == known.session and not known.is_over:
            known.is_over = not known.is_committing
            known.is_orphaned = known.is_committing

    @rule(target=commits, known=leases)
    def begin(self, known: Known | None) -> tuple[Known, Commit] | None:
        if known is None:
            return None
        try:
            commit = self.table.begin_commit(known.session, [(known.lease_id, known.token)])
        except LeaseLapsed:
            self.model.lapse()
            assert known.is_over or known.is_committing
            return None
        self.model.lapse()
        assert not known.is_over and not known.is_committing, "a fenced token never commits"
        assert commit.items == known.items
        known.is_committing = True
        return known, commit

    @rule(begun=consumes(commits), share=st.floats(0, 1), fails=st.booleans())
    def finish(self, begun: tuple[Known, Commit] | None, share: float, fails: bool) -> None:
        if begun is None:
            return
        known, commit = begun
        model = self.model
        done = set(sorted(commit.items)[: round(share * len(commit.items))])
        if fails or not done:
            done = set()
            self.table.abort_commit(commit)
        else:
            model.generations[known.recipe] += 1
            self.table.finish_commit(commit, done, model.generations[known.recipe])
        assert not done & model.committed[known.recipe], "no item is committed twice"
        model.committed[known.recipe] |= done
        known.items -= done
        known.is_committing = False
        known.progress_at = model.now
        known.deadline = model.now + max(MIN_SPAN_S, 4 * known.cost_s)
        known.is_over = not known.items or known.is_orphaned

    @rule(known=leases, other=st.sampled_from(SESSIONS), token=st.sampled_from(["", "0" * 32, "ü"]))
    def forge(self, known: Known | None, other: str, token: str) -> None:
        if known is None:
            return
        pairs = [(other, known.token), (known.session, token)]
        for session, shown in pairs:
            if (session, shown) == (known.session, known.token):
                continue
            try:
                self.table.begin_commit(session, [(known.lease_id, shown)])
            except LeaseLapsed:
                self.model.lapse()
            else:
                raise AssertionError("a forged token commits nothing")

    @rule(session=st.sampled_from(SESSIONS))
    def die(self, session: str) -> None:
        self.table.end_session(session)
        for one in self.model.live():
            if one.session == session:
                one.is_over = not one.is_committing
                one.is_orphaned = one.is_committing
        assert all(lease.is_committing for lease in self.table.of_session(session))

    @invariant()
    def the_table_is_the_model(self) -> None:
        """At most one live lease an item; what is over is free; what is live is held.

        The table may not have looked at its clock yet; what is past its deadline counts as over.
        """
        self.model.lapse()
        live = {one.lease_id: one for one in self.model.live()}
        assert {lease.id: lease.items for lease in self.table if self.is_valid(lease)} == {
            k: one.items for k, one in live.items()
        }
        for recipe in RECIPES:
            taken = self.model.taken(recipe)
            assert sum(len(o.items) for o in live.values() if o.recipe == recipe) == len(taken)
            for item in ITEMS:
                holder = self.holder(recipe, item)
                if holder is not None and self.is_valid(holder):
                    assert holder.id == taken[item].lease_id
                else:
                    assert item not in taken

    def holder(self, recipe: str, item: bytes) -> Lease | None:
        """The lease that the table takes to name an item."""
        return self.table._by_item.get(recipe, {}).get(item)

    def is_valid(self, lease: Lease) -> bool:
        return lease.is_committing or lease.deadline > self.model.now

    @invariant()
    def nobody_waits_for_what_is_free(self) -> None:
        """No item is lost between waiters: whoever waits for one that nobody holds has been woken."""
        for waiter in self.waiters:
            holders = [self.holder(waiter.recipe, item) for item in waiter.items]
            assert waiter.is_woken or all(holder is not None for holder in holders)


LeaseMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=50, deadline=None)
test_leases_are_exclusive_fenced_and_never_lost = LeaseMachine.TestCase
