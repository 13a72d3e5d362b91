"""Filling the cache together: what `resolve`, `lease`, `commit` and beats do.

Invariants:
    1. Between the check of the generation and the grant nothing is awaited (leases.py, invariant 3).
    2. A warm opening needs no writer: a recipe that is known is not registered again.
    3. A commit goes on when its client hangs up, and its leases cannot lapse meanwhile. Asked for again,
       since its answer was lost, it is answered as the first time. One that fails takes its file along.
    4. The store takes holds in one step with the look-up; those of a session that ended meanwhile are given
       back.
    5. Messages name plain recipes; here and in the store they are scoped (store/scopes.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.errors import (
    BadRequest,
    Declined,
    FutureGeneration,
    LimitExceeded,
    PrepcacheError,
    RequestError,
    StagedFileRefused,
    UnknownRecipe,
    UnknownSession,
)
from prepcache.protocol import wire
from prepcached.daemon import Daemon, Session
from prepcached.leases import TIER_NAME, TIER_SESSION, Commit, digests
from prepcached.metrics import SERVED, Counters
from prepcached.store import scopes

if TYPE_CHECKING:
    from prepcached.tier.tier import Tier

MAX_MISSES = 1024  # kept in memory, until a restart
KEPT_COMMITS = 2
"""Of a session, whose answers are kept: a fill and what is made on access each commit one after the other."""


@dataclass(slots=True)
class Miss:
    """A job looked for a recipe that had no entries or, if `is_partial`, not all of its items.

    Args:
        why: the reason on one line: what the job said, or the first explanation.
        cue: which kind of input that is, "data" or "observed", where the job said so.
    """

    name: str
    recipe: str
    is_partial: bool = False
    why: str = ""
    cue: str = ""
    session: str = ""
    at: float = field(default_factory=time.time, compare=False)


class Misses:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, bool], Miss] = OrderedDict()

    def note(self, miss: Miss) -> None:
        """A job missed; one that looks again before anything was made has missed once."""
        of = miss.name, miss.recipe, miss.is_partial
        before = self._kept.pop(of, None)
        is_again = before is not None and before.session == miss.session and not miss.why
        self._kept[of] = before if before is not None and is_again else miss
        if len(self._kept) > MAX_MISSES:
            self._kept.popitem(last=False)

    def note_reason(self, recipe: str | None, why: str) -> None:
        """The first explanation of a miss of a whole recipe is the reason that is shown."""
        for miss in self._kept.values():
            if miss.recipe == recipe and not miss.is_partial and not miss.why:
                miss.why = why

    def latest(self, count: int, name: str | None = None) -> list[Miss]:
        """The last misses, the last one first; of a name, or a prefix that ends in `*`."""
        found = (
            miss
            for miss in reversed(self._kept.values())
            if name in (None, miss.name) or (name and name[-1] == "*" and miss.name.startswith(name[:-1]))
        )
        return list(islice(found, count))


class Coordinator:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.tier: Tier | None = None  # the bucket that is shared with other machines
        self.misses: defaultdict[str, Misses] = defaultdict(Misses)  # by scope
        self._registered: dict[str, str] = {}  # recipes that are known, and their names
        self._commits: dict[str, list[tuple[wire.CommitRequest, asyncio.Task[wire.Committed]]]] = {}
        self.served = Counters(daemon.registry, SERVED)

    async def resolve(
        self, session: Session | None, request: wire.ResolveRequest, scope: str = ""
    ) -> wire.Resolved:
        """The recipe's artifacts, held for the session if it wishes; `scope` is the caller's."""
        daemon, recipe, misses = self._daemon, request.recipe + scope, self.misses[scope]
        if request.register is not None:
            try:
                if not await daemon.quick(daemon.store.is_registered, recipe):
                    await daemon.slow(daemon.store.register, recipe, request.name, request.register)
            except RecursionError:
                raise BadRequest("register is nested too deeply", field="register") from None
            except Declined as error:
                misses.note(Miss(request.name, request.recipe, why=error.message))
                raise
            self._registered[recipe] = request.name
        holder = session if request.hold else None
        found = await self._resolve(holder, recipe, request.generation)
        if holder is not None and found.is_complete and not found.artifacts:  # else nobody reads
            self.served.add(misses=1)
            misses.note(Miss(request.name, request.recipe, session=holder.id))
        return found

    async def lease(self, session: Session, request: wire.LeaseRequest) -> wire.LeaseAnswer:
        """Grants what nobody else has; waits up to `wait_s` if there is nothing."""
        daemon, table, recipe = self._daemon, self._daemon.leases, request.recipe + session.caller.scope
        if request.lost:
            table.forsake(session.id, request.lost)
        if request.is_for_machine:
            return await self._grant(session, request)
        await self._check_recipe(session, recipe)
        if request.why and (name := self._registered.get(recipe)):
            miss = Miss(name, request.recipe, True, request.why, request.cue, session.id)
            self.misses[session.caller.scope].note(miss)
        await self._catch_up(session, request)
        refusal = ""
        if request.nbytes:
            refusal = await daemon.quick(daemon.store.refusal, request.nbytes)
        if refusal:
            if request.left:
                self.served.add(declined_items=session.note_declined(request.recipe, request.left))
            is_waited_for = recipe in self._waited_for(session)
            return wire.LeaseAnswer(is_declined=True, reason=refusal, is_waited_for=is_waited_for)
        if self.tier is not None and request.generation >= table.generation(recipe):
            await self.tier.claim(recipe, request.items, session)
        return await self._grant(session, request)

    async def _grant(self, session: Session, request: wire.LeaseRequest) -> wire.LeaseAnswer:
        """As `lease`, once the tier was asked."""
        daemon, table, recipe = self._daemon, self._daemon.leases, request.recipe + session.caller.scope
        upstream = None if self.tier is None or request.is_for_machine else self.tier.upstream
        until = daemon.clock() + min(request.wait_s, wire.MAX_WAIT_S)
        while True:
            bell = daemon.bell(recipe)
            allowed: Container[bytes] | None = None
            others: tuple[wire.Holder, ...] = ()
            if not request.is_for_machine:
                await self._catch_up(session, request)
            if upstream is not None and request.generation >= table.generation(recipe):
                wait_s = max(0.0, until - daemon.clock())
                allowed, others = await upstream.share(recipe, request, session, wait_s)
                await self._catch_up(session, request)  # a commit may have failed, or been done, meanwhile
            if session.id not in daemon.sessions:
                raise UnknownSession(f"{session.label}: the session ended while it waited; open a new one")
            answer = table.grant(
                session.id,
                session.label,
                recipe,
                request.generation,
                request.items,
                lease_id=request.lease,
                want=min(request.want, wire.MAX_ITEMS),
                cost_s=request.cost_s,
                allowed=allowed,
            )
            if answer.is_behind:
                return wire.LeaseAnswer(look_again=await self._resolve(session, recipe, request.generation))
            if answer.lease is not None:
                session.declined.pop(request.recipe, None)
                self.served.add(leases=1)
                self.served.add(leased_items=len(answer.lease.items))
                break
            left_s = until - daemon.clock()
            if not (answer.held or others) or left_s <= 0 or daemon.stopping.is_set():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), left_s)
        lease = answer.lease
        return wire.LeaseAnswer(
            lease=None if lease is None else wire.Lease(lease.id, lease.token, lease.span_s),
            granted=tuple(answer.granted),
            held=(*self._holders(request.recipe, answer.held), *others),
            is_waited_for=recipe in self._waited_for(session),
        )

    async def commit(self, session: Session, request: wire.CommitRequest) -> wire.Committed:
        staged = request.staged
        if not staged.name.startswith(session.id + "."):
            raise StagedFileRefused(
                f"{staged.name}: not staged by {session.label}: names begin with the session's id and a dot"
            )
        if staged.size_bytes > wire.MAX_STAGED_BYTES:
            raise LimitExceeded(f"{session.label}: commit at most {wire.MAX_STAGED_BYTES} bytes at once")
        known = self._commits.get(session.id, [])
        task = next((task for asked, task in known if asked == request and not _has_failed(task)), None)
        if task is None:
            pairs = [(lease.id, lease.token) for lease in request.leases]
            try:
                commit = self._daemon.leases.begin_commit(session.id, pairs)
            except RequestError:
                await self._drop(session, staged)
                raise
            task = self._daemon.spawn(self._commit(session, commit, staged))
            for ended in [one for one in self._commits if one not in self._daemon.sessions]:
                del self._commits[ended]
            self._commits[session.id] = [*known, (request, task)][-KEPT_COMMITS:]
        return await asyncio.shield(task)

    def stage(self, session: Session, name: str, size_bytes: int) -> None:
        """Counts an upload against what one session may have staged; raises LimitExceeded."""
        others = sum(session.staged.values()) - session.staged.get(name, 0)
        if others + size_bytes > wire.MAX_STAGED_BYTES:
            raise LimitExceeded(
                f"{session.label} has staged {others} uncommitted bytes; one session may stage "
                f"{wire.MAX_STAGED_BYTES}: commit some, or end the session (DELETE /v1/sessions/{{id}})",
                staged_bytes=others,
            )
        session.staged[name] = size_bytes

    # -- inside

    async def _resolve(self, holder: Session | None, recipe: str, since: int) -> wire.Resolved:
        daemon = self._daemon
        holder_id = None if holder is None else holder.id
        found = await daemon.quick(daemon.store.resolve, recipe, since, holder=holder_id)
        self.served.add(resolves=1)
        self.served.add(artifacts=len(found.artifacts))
        if holder is not None:
            await self._check_holder(holder)
        return found

    async def beat(self, session: Session, request: wire.BeatRequest) -> wire.BeatAnswer:
        """Keeps a session and its leases, and counts what the job found made."""
        daemon, table = self._daemon, self._daemon.leases
        self.served.add(found_items=request.found_items)
        self.served.add(saved_s=request.saved_s)
        session.beat_at = daemon.clock()
        moved = session.note_progress(request.progress)
        table.forsake(session.id, request.lost)
        table.beat(session.id, [recipe + session.caller.scope for recipe in moved])
        removed = await daemon.quick(self._note_used, session.id, request)
        return wire.BeatAnswer(tuple(removed))  # type: ignore[arg-type]

    def _note_used(self, session_id: str, request: wire.BeatRequest) -> list[str]:
        store = self._daemon.store
        if request.used:
            store.touch(session_id, request.used)
        if request.dropped:
            store.release(session_id, request.dropped)
        return store.to_let_go(session_id)

    def _waited_for(self, session: Session) -> set[str]:
        """The recipes, scoped, of which somebody waits for what the session has leased, here or elsewhere."""
        table = self._daemon.leases
        found = {lease.recipe for lease in table.waited_for() if lease.session == session.id}
        if self.tier is not None:
            found |= self.tier.hurried(session, table.of_session(session.id))
        return found

    async def _check_holder(self, session: Session) -> None:
        """Gives back the holds of a session that ended while they were taken."""
        if session.id not in self._daemon.sessions:
            await self._daemon.quick(self._daemon.store.release, session.id)
            raise UnknownSession(f"{session.label}: the session has ended; open a new one")

    async def _check_recipe(self, session: Session, recipe: str) -> None:
        if recipe in self._registered:
            return
        if not await self._daemon.quick(self._daemon.store.is_registered, recipe):
            raise UnknownRecipe(
                f"{session.label} asks for items of recipe {scopes.digest(recipe)}, which is not registered: "
                "resolve it first, with its parts in `register`",
                recipe=scopes.digest(recipe),
            )
        self._registered[recipe] = ""  # a job before the start has told its name

    async def _catch_up(self, session: Session, request: wire.LeaseRequest) -> None:
        """Raises the table's generation to the store's, which may be ahead. Not to the client's: between the
        two may lie a commit that the client has not seen."""
        recipe, table = request.recipe + session.caller.scope, self._daemon.leases
        if table.knows(recipe) and request.generation <= table.generation(recipe):
            return
        newest = await self._daemon.quick(self._daemon.store.generation, recipe)
        if request.generation > newest:
            raise FutureGeneration(
                f"{session.label} has seen generation {request.generation} of recipe {request.recipe}, but "
                f"this index has {newest}: another root, or a rebuilt index; resolve again from generation 0",
                generation=newest,
                recipe=request.recipe,
            )
        table.raise_generation(recipe, newest)

    async def _commit(self, session: Session, commit: Commit, staged: wire.StagedFile) -> wire.Committed:
        daemon = self._daemon
        seen: list[bytes] = []

        def allowed(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            items = digests(rows.tobytes())
            seen.extend(items)
            return np.fromiter((item in commit.items for item in items), bool, len(items))

        daemon.commits[session.id] = daemon.commits.get(session.id, 0) + 1
        try:
            done = await daemon.slow(
                daemon.store.commit,
                commit.recipe,
                staged,
                owner_uid=session.caller.owner_uid,
                allowed_items=allowed,
                holder=session.id,
            )
        except RequestError as error:
            daemon.leases.abort_commit(commit)
            if isinstance(error, UnknownRecipe):  # swept: the next lease tells the client to register it
                self._registered.pop(commit.recipe, None)
            await self._drop(session, staged)
            is_mended = isinstance(error, StagedFileRefused)
            mend = "; its leases stay valid: write the files again and commit" if is_mended else ""
            raise type(error)(f"{session.label}: {error.message}{mend}", **error.data) from error
        except BaseException:
            daemon.leases.forget_generation(commit.recipe)
            daemon.leases.abort_commit(commit)
            await self._drop(session, staged)
            raise
        else:
            committed = commit.items.intersection(seen)
            daemon.leases.finish_commit(commit, committed, done.generation)
            self.served.add(committed_items=len(committed))
            self.served.add(committed_bytes=done.artifact.size_bytes)
            if self.tier is not None:
                self.tier.note_committed(commit.recipe)
            session.staged.pop(staged.name, None)
        finally:
            daemon.commits[session.id] -= 1
            if not daemon.commits[session.id]:
                del daemon.commits[session.id]
            if session.id not in daemon.sessions:
                await daemon.clean_session(session.id)
        if session.id in daemon.sessions:
            await self._check_holder(session)
        return done

    async def _drop(self, session: Session, refused: wire.StagedFile) -> None:
        """Deletes the file of a commit that was not done, whose client may hear of it or not."""
        session.staged.pop(refused.name, None)
        with contextlib.suppress(PrepcacheError):  # what cannot be deleted goes with its session
            await self._daemon.quick(self._daemon.store.unstage, refused.name)

    def _holders(self, recipe: str, held: Mapping[str, int]) -> Iterator[wire.Holder]:
        fetched = 0
        for session_id, items in held.items():
            session = self._daemon.sessions.get(session_id)
            if session_id.startswith(TIER_SESSION):
                fetched += items
            elif session is None:
                yield wire.Holder("a session that has just closed", items)
            else:
                progress = session.progress.get(recipe)
                done, total = (progress.done, progress.total) if progress else (0, 0)
                yield wire.Holder(session.label, items, done, total)
        if fetched:
            yield wire.Holder(TIER_NAME, fetched)


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
