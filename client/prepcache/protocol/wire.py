"""The client's protocol: version, header names, limits, and the messages that both sides speak.

Invariants:
    1. `PROTOCOL` rises when a message changes so that an older peer would misread it; members may be
       added without. A peer of another version gets status 426 and code `protocol-mismatch`.
    2. Item digests travel as one run of hex digits, n * 32 bytes, never as n strings.
    3. What is read has been checked: digests are 64 hex digits, ids, tokens and staged names cannot leave
       a folder or a header, counts and lists are bounded (members.py).

Errors are problem documents (RFC 9457) with `code`: `errors.from_problem` reads them.
Not here: how bytes travel (daemon/http.py), what a session does with them (session.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from prepcache.digests import DIGEST_BYTES, Digest, Key, RecipeDigest
from prepcache.errors import BadRequest
from prepcache.protocol.members import (
    HEX64,
    Amount,
    DigestRun,
    JsonObject,
    Message,
    Natural,
    Tally,
    Text,
    Token,
    at_most,
    file_name,
    folder,
    text,
)

PROTOCOL = 2
"""Rises with incompatible messages (invariant 1)."""
PROTOCOL_HEADER = "Prepcache-Protocol"
SESSION_HEADER = "Prepcache-Session"
"""`<session id>.<token>`: who acts. See `session_header` and `parse_session_header`."""
PROBLEM_TYPE = "application/problem+json"
API = "/v1"

BEAT_S = 5.0
"""Between two beats of a session."""
LAPSE_S = 15.0
"""Three beats: a session that missed them all, and whose process cannot be seen, has ended."""
MAX_WAIT_S = 2.0
"""Longest a lease request is kept waiting: short enough that Ctrl-C and progress lines stay alive."""

MAX_BODY_BYTES = 16 << 20
"""A request: 65,536 item digests in hex are 4 MiB; readable parts of a recipe stay below 8 MiB."""
MAX_HEADER_BYTES = 16 << 10
MAX_ANSWER_BYTES = 64 << 20
"""What a client reads of one answer: 200,000 artifacts that observed nothing. More is a daemon that lies."""
MAX_ITEMS = 65_536
"""Items in one lease request, and granted by one lease."""
MAX_LEASES = 256
"""Live leases of one session."""
MAX_LEASES_PER_COMMIT = 256
MAX_STAGED_PER_COMMIT = 64
MAX_STAGED_BYTES = 64 << 30
"""Staged bytes of one session that no commit has taken yet."""
MAX_DIGESTS_PER_BEAT = 16_384
MAX_PROGRESS_PER_BEAT = 256
MAX_PARTS_BYTES = 8 << 20
MAX_WHY = 1000
"""Characters of what a job says of its miss."""

KeyHex = Annotated[Key, HEX64]
DigestHex = Annotated[Digest, HEX64]
RecipeHex = Annotated[RecipeDigest, HEX64]
Folder = Annotated[str, folder]
StagedName = Annotated[str, file_name]
Digests = Annotated[tuple[DigestHex, ...], at_most(MAX_DIGESTS_PER_BEAT)]
LostLeases = Annotated[tuple[Token, ...], at_most(MAX_LEASES)]


def session_header(session: str, token: str) -> str:
    return f"{session}.{token}"


def parse_session_header(value: str) -> tuple[str, str]:
    """(session id, token) of the header.

    Raises:
        BadRequest: it has not that form.
    """
    session, _, token = value.partition(".")
    try:
        parsed = LeaseToken.from_json({"id": session, "token": token})
    except BadRequest:
        raise BadRequest(f"{SESSION_HEADER} must be <session id>.<token>", field=SESSION_HEADER) from None
    return parsed.id, parsed.token


@dataclass(frozen=True, slots=True)
class SessionRequest(Message):
    """POST /v1/sessions."""

    name: Annotated[str, text(256)]
    pid: Natural
    host: Annotated[str, text(256)]


@dataclass(frozen=True, slots=True)
class SessionAnswer(Message):
    """The session, where the store is, and how often to beat.

    Args:
        order: not 0 where machines share a bucket without a lead: each makes missing items in another order.
    """

    session: Token
    token: Token
    instance: Token
    root: Folder
    staging: Folder
    beat_s: Amount = BEAT_S
    lapse_s: Amount = LAPSE_S
    protocol: Natural = PROTOCOL
    order: Natural = 0


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """How far a session is with one recipe; `done` equals `total` where it has ended."""

    recipe: RecipeHex
    name: Annotated[str, text(256)]
    done: Natural
    total: Natural


@dataclass(frozen=True, slots=True)
class BeatRequest(Message):
    """POST /v1/sessions/{id}/beat. `used` keeps holds from weakening; `dropped` gives them up.

    `lost` are leases as in `LeaseRequest`. `found_items` are the items that the job has found made, by others
    or by an earlier job, since it told last; `saved_s` is what they had cost.
    """

    progress: Annotated[tuple[Progress, ...], at_most(MAX_PROGRESS_PER_BEAT)] = ()
    used: Digests = ()
    dropped: Digests = ()
    lost: LostLeases = ()
    found_items: Tally = 0
    saved_s: Amount = 0.0


@dataclass(frozen=True, slots=True)
class BeatAnswer(Message):
    """`removed`: digests whose maps the session must let go; `waited_for`: recipes that others wait for."""

    removed: tuple[DigestHex, ...] = ()
    waited_for: tuple[RecipeHex, ...] = ()


@dataclass(frozen=True, slots=True)
class ArtifactRef(Message):
    """One artifact of a recipe.

    Args:
        observed: the inputs that its function was seen to take: the names of their chunks
            (prepcache.protocol.observed).
        edition: how many refreshes came before; see recipe_index.py.
    """

    key: KeyHex
    digest: DigestHex
    size_bytes: Natural
    items: Natural
    rows: Natural
    cost_s: Amount
    observed: tuple[DigestHex, ...] = ()
    edition: Natural = 0


@dataclass(frozen=True, slots=True)
class ResolveRequest(Message):
    """POST /v1/resolve. `register` holds the recipe's readable parts, for its first time."""

    recipe: RecipeHex
    name: Annotated[str, text(256)] = ""
    generation: Natural = 0
    hold: bool = False
    register: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Resolved(Message):
    """The recipe's artifacts: all of them where `is_complete`, else those new since the asked generation.

    Args:
        objects: the folder of artifacts as the daemon sees it.
        observed: the chunks of inputs that the artifacts name.
    """

    generation: Natural
    is_complete: bool
    objects: Folder
    artifacts: tuple[ArtifactRef, ...]
    observed: Mapping[str, tuple[JsonObject, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaseRequest(Message):
    """POST /v1/leases.

    Args:
        recipe: registered before.
        generation: the one that the client has seen.
        items: the missing items' digests, in the order in which the client would do them.
        want: at most so many.
        cost_s: measured seconds of work of those wanted; 0 where nothing is known yet.
        nbytes: bytes expected from those wanted.
        wait_s: how long the request may be kept while nothing can be granted.
        left: items that the client goes on with by itself where it is declined; 0 where it asks for fewer.
        lease: the id of the lease that may be granted, made by the client and never used before: so it can
            name one whose answer never came.
        lost: leases that the session may have by the daemon's account, and not by its own: they end.
        why: what the job says of its miss, for `explain`: names of files, never a value of an item.
        cue: which kind of input that is, "data" or "observed", where it is one.
        is_for_machine: a daemon of another machine asks, on behalf of its jobs. The recipe is then a name
            that only machines use: nobody registers it, and nothing is committed to it.
    """

    RUNS: ClassVar[tuple[str, ...]] = ("items",)

    lease: Token
    recipe: RecipeHex
    generation: Natural
    items: Annotated[DigestRun, at_most(MAX_ITEMS * DIGEST_BYTES)]
    want: Natural
    cost_s: Amount = 0.0
    nbytes: Natural = 0
    wait_s: Amount = 0.0
    left: Tally = 0
    lost: LostLeases = ()
    why: Annotated[str, text(MAX_WHY)] = ""
    cue: Annotated[str, text(16)] = ""
    is_for_machine: bool = False


@dataclass(frozen=True, slots=True)
class Lease(Message):
    """Permission to preprocess some items of one recipe for `deadline_s` from now; beats renew it."""

    id: Token
    token: Token
    deadline_s: Amount


@dataclass(frozen=True, slots=True)
class Holder(Message):
    """Another session that preprocesses `items` of those asked for, and how far it is in all."""

    who: Annotated[str, text(512)]
    items: Natural
    done: Natural = 0
    total: Natural = 0


@dataclass(frozen=True, slots=True)
class LeaseAnswer(Message):
    """Look again, or a lease on `granted` (indices into the items asked for), or who has them."""

    look_again: Resolved | None = None
    lease: Lease | None = None
    granted: tuple[Natural, ...] = ()
    held: tuple[Holder, ...] = ()
    is_declined: bool = False
    reason: Text = ""
    is_waited_for: bool = False

    def lie(self, count: int, want: int) -> str:
        """Why this cannot be the answer to a request for `want` of `count` items; "" where it can be."""
        if any(index >= count for index in self.granted):
            return "a lease on items that were not requested"
        if len(set(self.granted)) < len(self.granted) or bool(self.granted) != (self.lease is not None):
            return "a lease whose items are wrong or repeated"
        says_why = self.lease or self.held or self.is_declined or self.look_again
        return "" if says_why or not (count and want) else "items that are neither leased nor available"


@dataclass(frozen=True, slots=True)
class LeaseToken(Message):
    """A lease as a commit names it."""

    id: Token
    token: Token


@dataclass(frozen=True, slots=True)
class StagedFile(Message):
    """A file in the staging folder."""

    name: StagedName
    size_bytes: Natural


@dataclass(frozen=True, slots=True)
class CommitRequest(Message):
    """POST /v1/leases/{id}/commit; the artifacts may hold items of several leases."""

    leases: Annotated[tuple[LeaseToken, ...], at_most(MAX_LEASES_PER_COMMIT)]
    staged: Annotated[tuple[StagedFile, ...], at_most(MAX_STAGED_PER_COMMIT)]


@dataclass(frozen=True, slots=True)
class Committed(Message):
    """The generation after the commit, and its artifacts in the order in which they were staged."""

    generation: Natural
    artifacts: tuple[ArtifactRef, ...]


@dataclass(frozen=True, slots=True)
class ReleaseRequest(Message):
    """DELETE /v1/leases/{id}."""

    token: Token


@dataclass(frozen=True, slots=True)
class Nothing(Message):
    """An answer without members."""
