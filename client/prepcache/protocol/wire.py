"""The client's protocol: version, header names, limits, the messages that both sides speak, observed inputs.

Invariants:
    1. `PROTOCOL` rises when a message changes so that an older peer would misread it; members may be
       added without. A peer of another version gets status 426 and code `protocol-mismatch`.
    2. Whatever JSON comes in, `from_json` gives a whole message, checked as its annotations say, or raises
       `BadRequest` that names the member (`artifacts[3].digest`).
    3. Unknown members are ignored, so that a newer peer of the same protocol may say more. (The daemon
       refuses them in the requests of people: routes/messages.py, invariant 3.)
    4. An artifact names all that was read until it was written, in a list that grows at its end. So artifacts
       share chunks of it, and each chunk is kept, sent and checked once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, NamedTuple, Self, cast

import msgspec
from blake3 import blake3
from msgspec import Meta

from prepcache.digests import DIGEST_BYTES, Digest, Key, RecipeDigest, is_hex64
from prepcache.errors import BadRequest

PROTOCOL = 3
PROTOCOL_HEADER = "Prepcache-Protocol"
SESSION_HEADER = "Prepcache-Session"  # `<session id>.<token>`: who acts
API = "/v1"

BEAT_S = 5.0  # between two beats of a session
LAPSE_S = 15.0  # three beats: a session that missed them all, and whose process cannot be seen, has ended
MAX_WAIT_S = 2.0  # longest a lease request is kept waiting: Ctrl-C and progress lines stay alive

MAX_BODY_BYTES = 16 << 20  # a request: `MAX_ITEMS` digests in hex are 4 MiB
MAX_HEADER_BYTES = 16 << 10
MAX_ANSWER_BYTES = 64 << 20  # 200,000 artifacts that observed nothing; more is a daemon that lies
MAX_ITEMS = 65_536  # items in one lease request, and granted by one lease
MAX_LEASES = 256  # live leases of one session
MAX_LEASES_PER_COMMIT = 256
MAX_STAGED_BYTES = 64 << 30  # staged bytes of one session that no commit has taken yet
MAX_DIGESTS_PER_BEAT = 16_384
MAX_PROGRESS_PER_BEAT = 256
MAX_PARTS_BYTES = 8 << 20
MAX_NAME = 256  # characters of a name
MAX_WHY = 1000  # characters of what a job says of its miss

MAX_INT = 2**63 - 1
MAX_TALLY = 10**9
HEX = "0f" * 32
ID = "3c" * 16
_END = r"$(?!\n)"
"""`$` alone also matches before a line end; `\\Z` is not in the regular expressions of JSON Schema."""
_HEX_PATTERN = "^[0-9a-f]*" + _END
HEX64 = Meta(pattern=_HEX_PATTERN, min_length=64, max_length=64, examples=[HEX])
_FILE_NAME = Meta(pattern="^[A-Za-z0-9_-][A-Za-z0-9_.-]*" + _END, max_length=128, examples=[f"{ID}.1"])
_FOLDER = Meta(pattern="^/[^\\x00]*" + _END, max_length=4096, examples=["/var/cache/prepcache"])
_TEXT_PATTERN = "^[^\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]*" + _END
"""No controls (terminals take U+009B for an escape, too), no line ends, nothing that turns the order of
characters."""


def text(limit: int) -> Meta:
    return Meta(pattern=_TEXT_PATTERN, max_length=limit, examples=["text"])


Text = Annotated[str, text(4096)]
Token = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+" + _END, max_length=128, examples=[ID])]
Whole = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT, examples=[1])]
Natural = Annotated[int, Meta(ge=0, le=MAX_INT, examples=[1])]
Tally = Annotated[int, Meta(ge=0, le=MAX_TALLY, examples=[1])]
"""How many items, where the daemon adds them up: one request spoils no counter."""
Amount = Annotated[float, Meta(ge=0, le=1e18, examples=[1.5])]  # seconds, mostly
JsonObject = Mapping[str, Any]


def at_most(limit: int) -> Meta:
    return Meta(max_length=limit)


def hex64(value: Any, where: str) -> str:
    if not isinstance(value, str) or not is_hex64(value):
        raise _bad(where, f"64 lower-case hex digits, not {value!r:.60}")
    return value


class Message(msgspec.Struct, frozen=True):
    """Base of all messages. Their modules call `be_known` at their ends."""

    @classmethod
    def from_json(cls, value: Any, *, strict: bool = True) -> Self:
        """The message that parsed JSON holds, or, not `strict`, the texts of query parameters. Raises
        BadRequest, whose `field` names the member."""
        try:
            return msgspec.convert(value, cls, builtin_types=(bytes,), strict=strict)
        except (msgspec.ValidationError, RecursionError) as error:
            raise _refusal(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self, builtin_types=(bytes,)))


def be_known(classes: Iterable[object]) -> None:
    """Shows msgspec the messages among these, while a module is imported: in 0.22, a second thread that uses
    a class at its first use ends the process."""
    for one in classes:
        if isinstance(one, type) and issubclass(one, Message):
            msgspec.json.Decoder(one)


def _refusal(fault: str) -> BadRequest:
    """What msgspec found, by the member's path."""
    what, _, path = fault.partition(" - at `$")
    where = path.removesuffix("`").lstrip(".")
    if missing := re.match("Object missing required field `(.+)`", what):
        where = f"{where}.{missing[1]}".lstrip(".")
        return BadRequest(f"{where} is missing", field=where)
    return _bad(where, what.removeprefix("Expected ").replace(", got ", ", not "))


def _bad(where: str, must: str) -> BadRequest:
    return BadRequest(f"{where or 'the body'} must be {must}", field=where)


DigestRun = Annotated[
    bytes,
    Meta(
        max_length=MAX_ITEMS * DIGEST_BYTES,
        description="item digests, 64 hex digits each, concatenated",
        extra_json_schema={"contentEncoding": "base16", "examples": [HEX]},
    ),
]
"""n * 32 bytes, written as hex."""
KeyHex = Annotated[Key, HEX64]
DigestHex = Annotated[Digest, HEX64]
RecipeHex = Annotated[RecipeDigest, HEX64]
Folder = Annotated[str, _FOLDER]
StagedName = Annotated[str, _FILE_NAME]
Digests = Annotated[tuple[DigestHex, ...], at_most(MAX_DIGESTS_PER_BEAT)]
LostLeases = Annotated[tuple[Token, ...], at_most(MAX_LEASES)]


def session_header(session: str, token: str) -> str:
    return f"{session}.{token}"


def parse_session_header(value: str) -> tuple[str, str]:
    """(session id, token) of the header. Raises BadRequest."""
    session, _, token = value.partition(".")
    try:
        parsed = LeaseToken.from_json({"id": session, "token": token})
    except BadRequest:
        raise BadRequest(f"{SESSION_HEADER} must be <session id>.<token>", field=SESSION_HEADER) from None
    return parsed.id, parsed.token


class SessionRequest(Message, frozen=True):
    name: Annotated[str, text(MAX_NAME)]
    pid: Natural
    host: Annotated[str, text(MAX_NAME)]


class SessionAnswer(Message, frozen=True):
    """The session, where the store is, and how often to beat. `order` is not 0 where machines share a bucket
    without a lead: each makes missing items in another order."""

    session: Token
    token: Token
    instance: Token
    root: Folder
    staging: Folder
    beat_s: Amount = BEAT_S
    protocol: Natural = PROTOCOL
    order: Natural = 0


class Progress(Message, frozen=True):
    """How far a session is with one recipe; `done` equals `total` where it has ended."""

    recipe: RecipeHex
    name: Annotated[str, text(MAX_NAME)]
    done: Natural
    total: Natural


class BeatRequest(Message, frozen=True):
    """POST /v1/sessions/{id}/beat. `used` keeps holds from weakening; `dropped` gives them up; `lost` is as
    in `LeaseRequest`. `found_items` were there since it told last; `saved_s` is what they had cost."""

    progress: Annotated[tuple[Progress, ...], at_most(MAX_PROGRESS_PER_BEAT)] = ()
    used: Digests = ()
    dropped: Digests = ()
    lost: LostLeases = ()
    found_items: Tally = 0
    saved_s: Amount = 0.0


class BeatAnswer(Message, frozen=True):
    """`removed`: digests whose maps the session must let go."""

    removed: tuple[DigestHex, ...] = ()


class ArtifactRef(Message, frozen=True):
    """One artifact of a recipe. `observed` names the chunks of the inputs that its function was seen to take;
    `edition` is how many refreshes came before."""

    key: KeyHex
    digest: DigestHex
    size_bytes: Natural
    items: Natural
    rows: Natural
    cost_s: Amount
    observed: tuple[DigestHex, ...] = ()
    edition: Natural = 0


class ResolveRequest(Message, frozen=True):
    """POST /v1/resolve. `register` holds the recipe's readable parts, for its first time."""

    recipe: RecipeHex
    name: Annotated[str, text(MAX_NAME)] = ""
    generation: Natural = 0
    hold: bool = False
    register: JsonObject | None = None


class Resolved(Message, frozen=True):
    """The recipe's artifacts: all of them where `is_complete`, else those new since the asked generation; and
    the chunks of observed inputs that they name."""

    generation: Natural
    is_complete: bool
    artifacts: tuple[ArtifactRef, ...]
    observed: Mapping[str, tuple[JsonObject, ...]] = msgspec.field(default_factory=dict)


class LeaseRequest(Message, frozen=True):
    """POST /v1/leases."""

    lease: Token  # the id that it shall have: the client can name a lease whose answer never came
    recipe: RecipeHex
    generation: Natural  # the one that the client has seen
    items: DigestRun  # the missing ones, in the order in which the client would do them
    want: Natural  # at most so many
    cost_s: Amount = 0.0  # of those wanted; 0 where nothing is known yet
    nbytes: Natural = 0
    wait_s: Amount = 0.0  # how long the request may be kept while nothing can be granted
    left: Tally = 0  # items that the client goes on with by itself where it is declined
    lost: LostLeases = ()  # leases that the session may have only by the daemon's account: they end
    why: Annotated[str, text(MAX_WHY)] = ""  # what the job says of its miss: never a value of an item
    cue: Annotated[str, text(16)] = ""  # which kind of input that is, "data" or "observed", where it is one
    is_for_machine: bool = False
    """The daemon of another machine asks. Nobody registers its recipe or commits to it."""

    @classmethod
    def from_json(cls, value: Any, *, strict: bool = True) -> Self:
        run = value.get("items", "") if isinstance(value, dict) else ""
        try:
            items = bytes.fromhex(run) if run.isalnum() or not run else None
        except (AttributeError, TypeError, ValueError):
            items = None
        if items is None or len(items) % DIGEST_BYTES:
            raise _bad("items", f"hex digits, a multiple of {DIGEST_BYTES} bytes")
        given = {**value, "items": items} if "items" in value else value
        return super().from_json(given, strict=strict)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"items": self.items.hex()}


class Lease(Message, frozen=True):
    """Permission to preprocess some items of one recipe for `deadline_s` from now; beats renew it."""

    id: Token
    token: Token
    deadline_s: Amount


class Holder(Message, frozen=True):
    """Another session that preprocesses `items` of those asked for, and how far it is in all."""

    who: Annotated[str, text(512)]
    items: Natural
    done: Natural = 0
    total: Natural = 0


class LeaseAnswer(Message, frozen=True):
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


class LeaseToken(Message, frozen=True):
    id: Token
    token: Token


class StagedFile(Message, frozen=True):
    name: StagedName
    size_bytes: Natural


class CommitRequest(Message, frozen=True):
    """POST /v1/leases/{id}/commit; the artifact may hold items of several leases."""

    leases: Annotated[tuple[LeaseToken, ...], at_most(MAX_LEASES_PER_COMMIT)]
    staged: StagedFile


class Committed(Message, frozen=True):
    generation: Natural
    artifact: ArtifactRef


class ReleaseRequest(Message, frozen=True):
    token: Token


class Nothing(Message, frozen=True):
    """An answer without members."""


# Observed inputs.

CHUNK_INPUTS = 128  # inputs of one chunk
RANDOM = "random"  # the kind of a row that names a generator which the function drew from; it is no input
_DRAW = "draws:"

Row = Mapping[str, Any]  # an observed input: its kind, name and digest


class Chunk(NamedTuple):
    name: str
    rows: tuple[Row, ...]


def draws_in(rows: Iterable[Row]) -> set[str]:
    return {str(row.get("name")).removeprefix(_DRAW) for row in rows if row.get("kind") == RANDOM}


def with_draws(rows: Collection[Row], drawn: Iterable[str]) -> list[Any]:
    found = [{"kind": RANDOM, "name": _DRAW + name, "digest": ""} for name in sorted(drawn)]
    return in_order({str(row["name"]): row for row in (*rows, *found)}) if found else list(rows)


def draws_text(drawn: Iterable[str]) -> str:
    names = ", ".join(sorted(drawn))
    return f"preprocessed with random draws ({names}), the same in every epoch; move them to transform="


def in_order(rows: Mapping[str, Row]) -> list[Any]:
    """Inputs in the order in which they were seen; those of a single chunk are sorted."""
    return [rows[name] for name in sorted(rows)] if len(rows) <= CHUNK_INPUTS else list(rows.values())


def chunks_of(rows: Iterable[Row]) -> list[Chunk]:
    left = iter(rows)
    pieces = iter(lambda: tuple(islice(left, CHUNK_INPUTS)), ())
    return [Chunk(blake3(text_of(some).encode()).hexdigest(), some) for some in pieces]


def text_of(rows: Collection[Row]) -> str:
    """Inputs as the text of which their chunk has its name."""
    return json.dumps(list(rows), sort_keys=True)


be_known(list(vars().values()))
