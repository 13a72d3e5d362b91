"""Leases from a lead daemon, so that only one of several machines preprocesses an item.

All machines of a fleet name the same daemon as their upstream. Before a daemon grants a job an item that the
bucket lacks, it leases the item from the lead, with the request by which jobs lease, in pieces of some
seconds of work. It gives a piece back when all its items are in the bucket, or when no job here is at work on
them any more.

Invariants:
    1. The lead decides only who preprocesses. A lead that lies can cause work to be done twice, and never
       causes a wrong sample.
    2. Without the lead, all leases are local (outage.py).
    3. What was just leased is looked for in the bucket once more before a job is granted it: another machine
       may have copied it there a moment ago.

Locking: none; everything runs on the daemon's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from blake3 import blake3

from prepcache.digests import DIGEST_BYTES, RecipeDigest
from prepcache.errors import LimitExceeded, PrepcacheError, UnknownSession
from prepcache.protocol import wire
from prepcache.protocol.members import Message
from prepcached.daemon import Daemon
from prepcached.sessions import Session
from prepcached.store import scopes
from prepcached.tier.lead import CALL_S, Lead, LeadAway, M
from prepcached.tier.manifest import Index
from prepcached.tier.manifests import Manifests
from prepcached.tier.outage import Outage
from prepcached.tier.read_through import TIER_NAME, ReadThrough
from prepcached.tier.write_back import WriteBack

LOG = logging.getLogger(__name__)

PIECE_S = 10.0
"""Seconds of work that are leased at once, so that the lead is asked rarely."""
FEWEST_PIECES = 4
"""A piece is at most this part of what the job says is missing, so that machines end together."""
IDLE_S = 3.0
"""A piece that no job here works on is given back after this."""
HELD_AGE_S = 2.0
"""While other machines hold everything, the bucket is asked this often for what they have copied."""
RETRY_S = 10.0
TICK_S = 0.5


@dataclass(eq=False)
class Piece:
    """A lease of this machine: what is left to do of it.

    Args:
        used_at: when a job here was last at work on it.
        is_looked_for: whether the bucket was asked for its items since it was granted.
    """

    lease: wire.Lease
    items: set[bytes]
    used_at: float
    is_looked_for: bool = False


@dataclass(frozen=True)
class Share:
    """What a job may be granted of what it asked for.

    Args:
        allowed: items that a job here may preprocess, as far as other machines are concerned.
        holders: who has some of the rest.
    """

    allowed: Container[bytes]
    holders: tuple[wire.Holder, ...] = ()


class Upstream:
    """This machine's leases from the lead."""

    def __init__(
        self, daemon: Daemon, lead: Lead, manifests: Manifests, reading: ReadThrough, writing: WriteBack
    ) -> None:
        self.lead = lead
        self.outage = Outage(
            f"the lead {lead.url}",
            "this machine leases by itself, so that other machines may preprocess the same items",
            RETRY_S,
            CALL_S,
            daemon.clock,
        )
        self._daemon = daemon
        self._manifests = manifests
        self._reading = reading
        self._writing = writing
        self._mine: dict[str, dict[bytes, Piece]] = {}
        self._waited_for: set[str] = set()
        self._forgotten: list[str] = []
        """Ids of leases whose answers never came: the next beat ends them."""
        self._session = ""
        self._was_tried = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_away(self) -> bool:
        """Whether the lead does not answer, so that all leases are local."""
        return not (self._session and self.outage.is_usable)

    def start(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Gives everything back."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._session:
            with contextlib.suppress(LeadAway, PrepcacheError):
                await self._call("DELETE", f"/sessions/{self._session.partition('.')[0]}", None, wire.Nothing)
        await self.lead.close()

    def is_waited_for(self, recipe: str) -> bool:
        """Whether another machine waits for items of a recipe, scoped, that this one holds."""
        return bool(self._waited_for) and _name(recipe) in self._waited_for

    async def share(
        self, recipe: str, request: wire.LeaseRequest, session: Session, wait_s: float, limit_s: float
    ) -> Share | None:
        """Leases what a job asks for and this machine may not preprocess yet.

        Args:
            recipe: scoped.
            session: the job.
            wait_s: how long the lead may be waited for while other machines hold everything.
            limit_s: how long a manifest may be waited for.

        Returns:
            None where the lead does not answer: all leases are local.
        """
        if not self._was_tried.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._was_tried.wait(), CALL_S)
        if self.is_away:
            return None
        leased, told = self._daemon.leases.leased(recipe), self._manifests.told(recipe)
        mine = self._mine.get(recipe, {})
        items = _each(request.items)
        free = [item for item in items if item not in leased and item not in told]
        asked = [item for item in free if item not in mine][: wire.MAX_ITEMS]
        lacking = min(request.want, len(free)) - (len(free) - len(asked))
        holders: tuple[wire.Holder, ...] = ()
        if lacking > 0:
            may_wait = len(asked) == len(items)
            began = self._daemon.clock()
            try:
                holders = await self._lease(recipe, asked, lacking, request, wait_s if may_wait else 0.0)
            except LimitExceeded:
                return None
            except UnknownSession:
                self._forget()
                return None
            except (LeadAway, PrepcacheError) as error:
                self.outage.note_failure(error)
                self.outage.note_lost(self._daemon.clock() - began)
                return None
        mine = self._mine.get(recipe, {})
        new = {piece for item in free if (piece := mine.get(item)) and not piece.is_looked_for}
        if new or holders:
            max_age_s = 0.0 if new else HELD_AGE_S
            is_read = await self._reading.claim(recipe, request.items, session, limit_s, max_age_s)
            if is_read or not self._manifests.outage.is_usable:
                for piece in new:
                    piece.is_looked_for = True
        allowed = _Allowed(self._mine.get(recipe, {}), self._manifests.told(recipe), self._reading)
        leased = self._daemon.leases.leased(recipe)
        if not holders and not any(item in allowed or item in leased for item in items):
            holders = (wire.Holder(TIER_NAME, len(items)),)
        return Share(allowed, holders)

    def settle(self, recipe: str, told: Index) -> None:
        """The bucket has these items: they need no lease any more."""
        for item in [item for item in self._mine.get(recipe, ()) if item in told]:
            piece = self._mine[recipe].pop(item)
            piece.items.discard(item)
            if not piece.items:
                self._give_back(piece)

    # -- inside

    async def _lease(
        self, recipe: str, asked: list[bytes], lacking: int, request: wire.LeaseRequest, wait_s: float
    ) -> tuple[wire.Holder, ...]:
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
        try:
            answer = await self._call("POST", "/leases", wanted, wire.LeaseAnswer, wait_s=wait_s)
        except BaseException:  # it may have been granted
            self._forgotten.append(wanted.lease)
            raise
        if lie := answer.lie(len(asked), want):
            raise LeadAway(f"it answered {lie}")
        if answer.lease is not None:
            items = {asked[index] for index in answer.granted}
            piece = Piece(answer.lease, items, self._daemon.clock())
            self._mine.setdefault(recipe, {}).update(dict.fromkeys(items, piece))
        if answer.is_waited_for:
            self._waited_for.add(wanted.recipe)
        return answer.held

    async def _keep(self) -> None:
        beat_at = float("-inf")
        while True:
            now = self._daemon.clock()
            if self.outage.is_due if self.outage.is_on else now >= beat_at or not self._session:
                beat_at = now + wire.BEAT_S
                try:
                    await self._beat()
                except (LeadAway, PrepcacheError) as error:
                    self.outage.note_failure(error)
                except Exception:
                    LOG.exception("the lead %s is not asked", self.lead.url)
                else:
                    self.outage.note_answer()
                self._was_tried.set()
            self._give_back_idle()
            await asyncio.sleep(TICK_S)

    async def _beat(self) -> None:
        if self._session:
            lost = tuple(self._forgotten[: wire.MAX_LEASES])
            self._forgotten = self._forgotten[wire.MAX_LEASES :]
            beat = wire.BeatRequest(progress=tuple(self._progress()), lost=lost)
            try:
                path = f"/sessions/{self._session.partition('.')[0]}/beat"
                answer = await self._call("POST", path, beat, wire.BeatAnswer)
            except UnknownSession:
                self._forget()
            except (LeadAway, PrepcacheError):
                self._forgotten += lost
                raise
            else:
                self._waited_for = set(answer.waited_for)
                return
        opening = wire.SessionRequest("prepcached", os.getpid(), socket.gethostname()[:256])
        opened = await self._call("POST", "/sessions", opening, wire.SessionAnswer)
        self._session = wire.session_header(opened.session, opened.token)

    def _forget(self) -> None:
        """The lead began anew, or took this machine for dead: the leases are gone."""
        self._session = ""
        self._mine.clear()

    def _progress(self) -> Iterable[wire.Progress]:
        """How far this machine's jobs are, which shows other machines, and the lead, that they go on."""
        for recipe in list(self._mine)[: wire.MAX_PROGRESS_PER_BEAT]:
            digest = scopes.digest(recipe)
            jobs = [one.progress[digest] for one in self._daemon.sessions if digest in one.progress]
            done = sum(one.done for one in jobs)
            total = max(done + 1, sum(one.total for one in jobs))
            yield wire.Progress(_name(recipe), jobs[0].name if jobs else "", done, total)

    def _give_back_idle(self) -> None:
        now, table = self._daemon.clock(), self._daemon.leases
        for recipe, mine in list(self._mine.items()):
            leased, is_pending = table.leased(recipe), self._writing.is_pending(recipe)
            for piece in set(mine.values()):
                if is_pending or any(item in leased for item in piece.items):
                    piece.used_at = now
                elif now - piece.used_at > IDLE_S:
                    for item in piece.items:
                        mine.pop(item, None)
                    self._give_back(piece)
            if not mine:
                del self._mine[recipe]

    def _give_back(self, piece: Piece) -> None:
        self._daemon.spawn(self._release(piece.lease))

    async def _release(self, lease: wire.Lease) -> None:
        with contextlib.suppress(PrepcacheError):  # it has lapsed
            try:
                body = wire.ReleaseRequest(lease.token)
                await self._call("DELETE", f"/leases/{lease.id}", body, wire.Nothing)
            except LeadAway:
                self._forgotten.append(lease.id)

    async def _call(
        self, method: str, path: str, message: Message | None, gives: type[M], wait_s: float = 0.0
    ) -> M:
        return await self.lead.ask(method, path, message, gives, session=self._session, wait_s=wait_s)


class _Allowed:
    """What this machine has leased and the bucket lacks, or what the bucket names and is of no use here."""

    def __init__(self, mine: Mapping[bytes, Piece], told: Index, reading: ReadThrough) -> None:
        self._mine, self._told, self._reading = mine, told, reading

    def __contains__(self, item: object) -> bool:
        rows = self._told.get(item)  # type: ignore[call-overload]
        if rows is not None:
            return not self._reading.untried(rows)
        piece = self._mine.get(item)  # type: ignore[call-overload]
        return piece is not None and piece.is_looked_for


def _name(recipe: str) -> RecipeDigest:
    """What machines call a recipe, scoped, at the lead: no job's recipe, and another one for each scope."""
    return RecipeDigest(blake3(f"machines {recipe}".encode()).hexdigest())


def _each(items: bytes) -> list[bytes]:
    return [items[start : start + DIGEST_BYTES] for start in range(0, len(items), DIGEST_BYTES)]
