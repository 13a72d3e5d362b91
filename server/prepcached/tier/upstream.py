"""Leases from a lead daemon, so that only one of several machines preprocesses an item.

All machines of a fleet name the same daemon as their upstream. Before a daemon grants a job an item that the
bucket lacks, it leases the item from the lead, with the request by which jobs lease, in pieces of some
seconds of work. It gives a piece back when no job here is at work on it any more and nothing of its recipe
waits to be copied.

Invariants:
    1. The lead decides only who preprocesses. A lead that lies can cause work to be done twice, and never
       causes a wrong sample.
    2. Without the lead, or the bucket, jobs go on: all leases are local, and what the bucket has is
       preprocessed.
    3. What was just leased is looked for in the bucket once more before a job is granted it: another machine
       may have copied it there a moment ago.
    4. An exchange that fails ends this machine's session at the lead, and all its leases with it: an answer
       that was lost leaves nothing behind.

Locking: none; everything runs on the daemon's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Container
from dataclasses import dataclass

from blake3 import blake3

from prepcache.digests import RecipeDigest
from prepcache.errors import LimitExceeded, PrepcacheError, UnknownSession
from prepcache.protocol import wire
from prepcache.protocol.members import Message
from prepcached.daemon import Daemon
from prepcached.leases import TIER_NAME, digests
from prepcached.sessions import Session
from prepcached.tier.lead import CALL_S, Lead, LeadAway, M
from prepcached.tier.outage import Outage, end
from prepcached.tier.read_through import ReadThrough
from prepcached.tier.write_back import WriteBack

PIECE_S = 10.0
"""Seconds of work that are leased at once, so that the lead is asked rarely."""
FEWEST_PIECES = 4
"""A piece is at most this part of what the job says is missing, so that machines end together."""
IDLE_S = 3.0
"""A piece that no job here works on is given back after this, at the next beat."""
BEAT_S = 2.0
HELD_AGE_S = 2.0
"""While other machines hold everything, the bucket is asked this often for what they have copied."""
LOOK_S = 0.4
"""Longest wait for a manifest after a lease. With ASKED_S and CALL_S this is less than 3 s, after which a job
takes its daemon for silent."""
RETRY_S = 10.0


@dataclass(eq=False)
class Piece:
    """A lease of this machine; `used_at` is when a job here was last at work on it."""

    lease: wire.Lease
    items: set[bytes]
    used_at: float


class Upstream:
    """This machine's leases from the lead."""

    def __init__(self, daemon: Daemon, lead: Lead, reading: ReadThrough, writing: WriteBack) -> None:
        self.lead = lead
        meanwhile = "this machine leases by itself, so other machines may preprocess the same items"
        self.outage = Outage(f"the lead {lead.url}", meanwhile, RETRY_S, CALL_S, daemon.clock)
        self._daemon = daemon
        self._reading = reading
        self._writing = writing
        self._mine: dict[str, dict[bytes, Piece]] = {}
        self._waited_for: set[str] = set()
        self._session = ""
        self._watcher: asyncio.Task[None] | None = None
        writing.is_waited_for = self.is_waited_for

    @property
    def is_away(self) -> bool:
        """Whether the lead does not answer, so that all leases are local."""
        return not (self._session and self.outage.is_usable)

    def start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self.outage.watch(self._beat, BEAT_S))

    async def stop(self) -> None:
        """Gives everything back."""
        await end([self._watcher])
        with contextlib.suppress(LeadAway):
            await self._leave()
        await self.lead.close()

    def is_waited_for(self, recipe: str) -> bool:
        """Whether another machine waits for items of a recipe, scoped, that this one holds."""
        return bool(self._waited_for) and _name(recipe) in self._waited_for

    async def share(
        self, recipe: str, request: wire.LeaseRequest, session: Session, wait_s: float
    ) -> tuple[Container[bytes] | None, tuple[wire.Holder, ...]]:
        """Leases what a job asks for and this machine may not preprocess yet.

        Args:
            recipe: scoped.
            session: the job.
            wait_s: how long the lead may be waited for while other machines hold everything.

        Returns:
            The items that a job here may preprocess, None where the lead does not answer and so all may be,
            and who has some of the rest.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.outage.was_asked.wait(), CALL_S)
        if self.is_away:
            return None, ()
        items = digests(request.items)
        mine, leased = self._mine.get(recipe, {}), self._daemon.leases.leased(recipe)
        offered = self._reading.offered(recipe, items)
        free = [item for item in items if item not in leased and item not in offered]
        asked = [item for item in free if item not in mine][: wire.MAX_ITEMS]
        lacking = min(request.want, len(free)) - (len(free) - len(asked))
        holders: tuple[wire.Holder, ...] = ()
        if lacking > 0:
            began = self._daemon.clock()
            try:
                may_wait_s = wait_s if len(asked) == len(items) else 0.0
                piece, holders = await self._lease(recipe, asked, lacking, request, may_wait_s)
            except LimitExceeded:
                return None, ()
            except UnknownSession:  # the lead has restarted: the next beat opens another one
                self._session = ""
                return None, ()
            except (LeadAway, PrepcacheError) as error:
                self.outage.note_failure(error)
                self.outage.note_lost(self._daemon.clock() - began)
                return None, ()
            try:
                max_age_s = HELD_AGE_S if piece is None else 0.0
                await self._reading.claim(recipe, request.items, session, max_age_s, LOOK_S)
            finally:
                if piece is not None:
                    self._mine.setdefault(recipe, {}).update(dict.fromkeys(piece.items, piece))
        mine, leased = self._mine.get(recipe, {}), self._daemon.leases.leased(recipe)
        if not holders and not any(item in mine or item in leased for item in items):
            holders = (wire.Holder(TIER_NAME, len(items)),)
        return mine, holders

    # -- inside

    async def _lease(
        self, recipe: str, asked: list[bytes], lacking: int, request: wire.LeaseRequest, wait_s: float
    ) -> tuple[Piece | None, tuple[wire.Holder, ...]]:
        want, item_s = lacking, request.cost_s / request.want
        if item_s > 0:
            want = max(lacking, min(int(PIECE_S / item_s), len(asked) // FEWEST_PIECES))
        wanted = wire.LeaseRequest(
            lease=secrets.token_hex(16),
            recipe=_name(recipe),
            generation=0,
            items=b"".join(asked),
            want=want,
            cost_s=item_s * want,
            wait_s=wait_s,
            is_for_machine=True,
        )
        answer = await self._call("POST", "/leases", wanted, wire.LeaseAnswer, wait_s=wait_s)
        if lie := answer.lie(len(asked), want):
            raise LeadAway(f"its answer cannot be true: {lie}")
        if not (answer.lease or answer.held):
            raise LeadAway("it neither granted the items nor said who has them")
        if answer.is_waited_for:
            self._waited_for.add(wanted.recipe)
        if answer.lease is None:
            return None, answer.held
        items = {asked[index] for index in answer.granted}
        return Piece(answer.lease, items, self._daemon.clock()), answer.held

    async def _beat(self) -> None:
        """Keeps the session at the lead, or opens one."""
        if self._session and not self.outage.is_on:
            self._give_back_idle()
            with contextlib.suppress(UnknownSession):
                answer = await self._call("POST", f"{self._path}/beat", wire.BeatRequest(), wire.BeatAnswer)
                self._waited_for = set(answer.waited_for)
                return
        await self._leave()
        self._mine.clear()
        opening = wire.SessionRequest("prepcached", os.getpid(), socket.gethostname()[:256])
        opened = await self._call("POST", "/sessions", opening, wire.SessionAnswer)
        self._session = wire.session_header(opened.session, opened.token)

    async def _leave(self) -> None:
        """Ends the session at the lead, if it still knows it."""
        if self._session:
            with contextlib.suppress(PrepcacheError):
                await self._call("DELETE", self._path, None, wire.Nothing)
        self._session = ""

    @property
    def _path(self) -> str:
        return f"/sessions/{self._session.partition('.')[0]}"

    def _give_back_idle(self) -> None:
        now = self._daemon.clock()
        for recipe, mine in list(self._mine.items()):
            leased, is_pending = self._daemon.leases.leased(recipe), self._writing.is_pending(recipe)
            for piece in set(mine.values()):
                if is_pending or any(item in leased for item in piece.items):
                    piece.used_at = now
                elif now - piece.used_at > IDLE_S:
                    for item in piece.items:
                        mine.pop(item, None)
                    self._daemon.spawn(self._release(piece.lease))
            if not mine:
                del self._mine[recipe]

    async def _release(self, lease: wire.Lease) -> None:
        try:
            path, token = f"/leases/{lease.id}", wire.ReleaseRequest(lease.token)
            await self._call("DELETE", path, token, wire.Nothing)
        except LeadAway as error:
            self.outage.note_failure(error)
        except PrepcacheError:  # it has lapsed
            pass

    async def _call(
        self, method: str, path: str, message: Message | None, gives: type[M], wait_s: float = 0.0
    ) -> M:
        return await self.lead.ask(method, path, message, gives, session=self._session, wait_s=wait_s)


def _name(recipe: str) -> RecipeDigest:
    """What machines call a recipe, scoped, at the lead: no job's recipe, and another one for each scope."""
    return RecipeDigest(blake3(f"machines {recipe}".encode()).hexdigest())
