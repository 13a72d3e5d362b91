"""Messages of inspection and maintenance: entries, recipes, explanations, sessions, purges."""

from __future__ import annotations

from typing import Annotated

import msgspec

from prepcache.protocol.wire import (
    MAX_NAME,
    Amount,
    DigestHex,
    Folder,
    JsonObject,
    KeyHex,
    Message,
    Natural,
    Progress,
    RecipeHex,
    Text,
    Token,
    Whole,
    at_most,
    be_known,
    text,
)  # fmt: skip

MAX_DIFFERENCES = 500  # differences that one explanation lists; the rest are counted
MAX_FINDINGS = 1000
PAGE_SIZE = 100
SORTS = ("used_at", "created_at", "size_bytes", "items", "cost_s")  # members of an entry
MAX_PAGE_SIZE = 1000  # entries in one page of a listing


class Entry(Message, frozen=True):
    """GET /v1/entries/{key}: one row of the index, as people see it; in a page of them without `observed`."""

    key: KeyHex
    digest: DigestHex
    recipe: RecipeHex
    name: Text
    size_bytes: Natural
    items: Natural
    rows: Natural
    cost_s: Amount
    owner: Whole | None
    created_at: Amount
    used_at: Amount
    is_pinned: bool
    holds: Natural
    disk_bytes: Natural = 0
    producer: JsonObject = msgspec.field(default_factory=dict)
    observed: tuple[JsonObject, ...] = ()


class EntryPage(Message, frozen=True):
    """GET /v1/entries; `cursor` asks for the next page, null at the end."""

    entries: Annotated[tuple[Entry, ...], at_most(MAX_PAGE_SIZE)]
    cursor: Text | None = None


class Recipe(Message, frozen=True):
    """GET /v1/recipes/{digest}: a recipe that the store knows; its parts only when asked for by digest."""

    digest: RecipeHex
    name: Text
    generation: Natural
    created_at: Amount
    entries: Natural
    size_bytes: Natural
    parts: JsonObject | None = None


class RecipePage(Message, frozen=True):
    recipes: Annotated[tuple[Recipe, ...], at_most(MAX_PAGE_SIZE)]
    cursor: Text | None = None


class ExplainRequest(Message, frozen=True):
    """POST /v1/explain: of what the miss is to be explained, at most one of `recipe`, `key`, `name` (a prefix
    where it ends in `*`: its last miss); `parts` are of a recipe that the store need not know. By default,
    the last miss of all."""

    recipe: RecipeHex | None = None
    key: KeyHex | None = None
    name: Annotated[str, text(MAX_NAME)] | None = None
    parts: JsonObject | None = None


class Difference(Message, frozen=True):
    section: Text
    name: Text
    old: Text | None
    new: Text | None
    line: Text


class NearestRecipe(Message, frozen=True):
    """The recipe that differs least, of those with entries, and what those hold."""

    recipe: RecipeHex
    name: Text
    used_at: Amount
    entries: Natural
    items: Natural
    size_bytes: Natural
    cost_s: Amount


class Explanation(Message, frozen=True):
    """Why a recipe's samples were not there: the differences from the nearest one, and how many more."""

    recipe: RecipeHex | None
    name: Text
    entries: Natural  # by now
    was_there: bool  # whether it had entries before
    nearest: NearestRecipe | None
    differences: Annotated[tuple[Difference, ...], at_most(MAX_DIFFERENCES)] = ()
    more: Natural = 0
    summary: Text = ""
    is_partial: bool = False  # it had entries, but not of all items
    cue: Text = ""  # of such a miss, the kind of input that the job named: "data", "observed"
    missed_at: Amount = 0.0  # when a job missed it last, 0 where that is not known


class EntryFilter(Message, frozen=True):
    """Which entries: `name` is a prefix where it ends in `*`; `recipe` and `key` are first digits;
    `produced_by` is found in one of the producer's values (script, host, user)."""

    name: Text | None = None
    recipe: Text | None = None
    owner: Whole | None = None
    older_than_s: Amount | None = None
    produced_by: Annotated[Text, msgspec.Meta(min_length=1)] | None = None
    is_pinned: bool | None = None
    key: Text | None = None


Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE_SIZE, description="the most in one answer")]
Cursor = Annotated[str, text(512)]


class EntryQuery(EntryFilter, frozen=True):
    sort: Annotated[Text, msgspec.Meta(description=f"one of {', '.join(SORTS)}; - reverses it")] = "-used_at"
    cursor: Cursor | None = None
    limit: Limit = PAGE_SIZE


class NameQuery(Message, frozen=True):
    limit: Limit = PAGE_SIZE


class RecipeQuery(Message, frozen=True):
    """GET /v1/recipes; `digest` is the beginning of theirs."""

    cursor: Cursor | None = None
    limit: Limit = PAGE_SIZE
    digest: Text | None = None


class NameSums(Message, frozen=True):
    name: Text
    recipes: Natural
    entries: Natural
    items: Natural
    size_bytes: Natural
    cost_s: Amount
    used_at: Amount


class Names(Message, frozen=True):
    """GET /v1/names: the largest names first, and how many there are beyond those."""

    names: Annotated[tuple[NameSums, ...], at_most(MAX_PAGE_SIZE)]
    more: Natural = 0


class PurgeRequest(EntryFilter, frozen=True):
    """POST /v1/purge. A purge without any filter must say `all`. With `free_bytes`, as much as that on disk
    goes, the least recently used entries first; pinned ones, and those that jobs read, stay."""

    keys: Annotated[tuple[KeyHex, ...], at_most(MAX_PAGE_SIZE)] | None = None
    free_bytes: Natural | None = None
    all: bool = False
    dry_run: bool = False


class Purged(Message, frozen=True):
    """What was removed, or would be: the first 1000 keys and, of a dry run, the first entries."""

    entries: Natural
    size_bytes: Natural
    disk_bytes: Natural = 0
    keys: tuple[KeyHex, ...] = ()
    dry_run: bool = False
    pinned: Natural = 0
    listed: Annotated[tuple[Entry, ...], at_most(PAGE_SIZE)] = ()


class VerifyRequest(Message, frozen=True):
    """POST /v1/verify; without keys, everything. `differs` says how samples that a job made again were
    others: those entries are removed unread."""

    keys: Annotated[tuple[KeyHex, ...], at_most(MAX_PAGE_SIZE)] | None = None
    differs: Annotated[str, text(512)] = ""


class Verified(Message, frozen=True):
    """The keys that were found damaged are removed; those that could not be read stay."""

    checked: Natural
    read_bytes: Natural
    bad: tuple[KeyHex, ...] = ()
    unreadable: tuple[KeyHex, ...] = ()


class TierStatus(Message, frozen=True):
    """GET /v1/tier: the bucket that is shared with other machines; counters are since the start."""

    url: str
    mode: str
    is_paused: bool = False
    hits: Natural = 0
    hit_bytes: Natural = 0
    misses: Natural = 0
    could_not_tell: Natural = 0
    last_failure: str = ""
    bad: Natural = 0
    written: Natural = 0
    written_bytes: Natural = 0
    waiting: Natural = 0
    dropped: Natural = 0
    upstream: str = ""
    is_upstream_away: bool = False
    upstream_failures: Natural = 0
    last_upstream_failure: str = ""


class TierPullRequest(Message, frozen=True):
    """POST /v1/tier/pull: all that the bucket has of one recipe."""

    recipe: RecipeHex


class TierGarbageRequest(Message, frozen=True):
    delete: bool = False


class TierDone(Message, frozen=True):
    """What was copied or deleted, how many artifacts could not be, and the first names of what `gc` found."""

    artifacts: Natural
    failed: Natural = 0
    names: tuple[str, ...] = ()


class Finding(Message, frozen=True):
    code: Token
    what: Text


class Checked(Message, frozen=True):
    """POST /v1/check: the first `MAX_FINDINGS`, and how many more there are."""

    findings: tuple[Finding, ...]
    more: Natural = 0


class Info(Message, frozen=True):
    """GET /v1/info. `isolation`: "group" shares all entries; with "user", each user sees his own."""

    version: Text
    protocol: Natural
    instance: Token
    root: Folder
    pid: Natural = 0
    started_at: Amount = 0.0
    limits: JsonObject = msgspec.field(default_factory=dict)
    isolation: Text = "group"


class SessionSeen(Message, frozen=True):
    """GET /v1/sessions: who is connected, and how far at `seen_at`; `holds` are artifacts that it reads."""

    session: Token
    name: Text
    host: Text
    pid: Natural
    owner: Whole | None = None
    opened_at: Amount = 0.0
    seen_at: Amount = 0.0
    leases: Natural = 0
    leased_items: Natural = 0
    holds: Natural = 0
    held_bytes: Natural = 0
    declined_items: Natural = 0
    progress: tuple[Progress, ...] = ()


class SessionList(Message, frozen=True):
    sessions: tuple[SessionSeen, ...]


be_known(list(vars().values()))
