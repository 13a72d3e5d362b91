"""A client of one daemon, for people: look at what is there, purge, pin, verify.

Invariant: every call ends within `timeout`, or raises `DaemonUnreachable` or the error that the daemon named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

from prepcache.daemon import waits
from prepcache.daemon.launcher import BaseClient
from prepcache.digests import Key
from prepcache.protocol import inspection, wire
from prepcache.protocol.wire import hex64

M = TypeVar("M")


class Filters(TypedDict, total=False):
    """Which entries: those that pass each filter that is given."""

    name: str | None  # of the recipe; a prefix where it ends in `*`
    recipe: str | None  # the first digits of the recipe's digest
    owner: int | None  # a uid
    older_than_s: float | None  # not used for so long
    produced_by: str | None  # found in one of the producer's values (script, host, user)


class Client(BaseClient):
    """Speaks with one daemon.

    Args:
        url: `unix:///path` or `http://host:port`; default `PREPCACHE_URL`, else the system service's
            socket, else the user's own daemon, started on demand.
        token: for a daemon on TCP; default `PREPCACHE_TOKEN`.
        timeout: seconds that one call may take.
        budget: what sessions of this client may lose to the daemon; default the process's one.

    Raises:
        ConfigError: the URL, or a `PREPCACHE*` variable, means nothing. Of all calls: DaemonUnreachable where
            no daemon answers in time, and the error that it answered with.
    """

    def info(self) -> inspection.Info:
        return self.call(inspection.Info, "GET", "/v1/info")

    def stats(self) -> Mapping[str, Any]:
        return self.call(dict, "GET", "/v1/stats")

    def resolve(self, recipe: str, generation: int = 0) -> wire.Resolved:
        """The artifacts that the recipe of this digest has new since `generation`; takes no holds."""
        asked = wire.ResolveRequest.from_json({"recipe": recipe, "generation": generation})
        return self.call(wire.Resolved, "POST", "/v1/resolve", asked)

    def entries(
        self,
        *,
        is_pinned: bool | None = None,
        key: str | None = None,
        sort: str = "-used_at",
        **filters: Unpack[Filters],
    ) -> Iterator[inspection.Entry]:
        """The entries, page by page, those used last first.

        Args:
            is_pinned: pinned ones, or the others.
            key: the first digits of their keys.
            sort: used_at, created_at, size_bytes, items or cost_s; a leading `-` reverses the order.
            filters: see `Filters`.
        """
        chosen = inspection.EntryFilter(is_pinned=is_pinned, key=key, **filters)
        query = {
            name: json.dumps(value) if isinstance(value, bool) else str(value)
            for name, value in chosen.to_json().items()
            if value is not None
        }
        for page in self._pages(inspection.EntryPage, "/v1/entries", {**query, "sort": sort}):
            yield from page.entries

    def _pages(self, gives: type[M], path: str, query: dict[str, str]) -> Iterator[M]:
        query["limit"], seen = str(inspection.MAX_PAGE_SIZE), set[str]()
        while True:
            page: Any = self.call(gives, "GET", path, params=query)
            yield page
            if page.cursor is None or page.cursor in seen:
                return
            seen.add(page.cursor)
            query["cursor"] = page.cursor

    def entry(self, key: str) -> inspection.Entry:
        """One entry. Raises NotFound where there is none of that key."""
        return self.call(inspection.Entry, "GET", f"/v1/entries/{hex64(key, 'key')}")

    def names(self, limit: int = inspection.PAGE_SIZE) -> inspection.Names:
        """The sums of the entries of each recipe name, the largest first."""
        return self.call(inspection.Names, "GET", "/v1/names", params={"limit": str(limit)})

    def recipes(self, digest: str | None = None) -> Iterator[inspection.Recipe]:
        """The recipes whose digests begin so, or all that the store knows, without their parts."""
        query = {} if digest is None else {"digest": digest}
        for page in self._pages(inspection.RecipePage, "/v1/recipes", query):
            yield from page.recipes

    def recipe(self, digest: str) -> inspection.Recipe:
        """One recipe, with its readable parts."""
        return self.call(inspection.Recipe, "GET", f"/v1/recipes/{hex64(digest, 'digest')}")

    def explain(
        self,
        recipe: str | None = None,
        *,
        key: str | None = None,
        name: str | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> inspection.Explanation:
        """Why a recipe's samples were not there: how it differs from the nearest one that has some.

        Args:
            recipe: its digest; by default, the recipe of the last miss.
            key: of one of its entries.
            name: the last miss of that name; of those that begin so where it ends in `*`.
            parts: `Recipe.parts` of one that the daemon need not know.

        Raises:
            NotFound: there is no such recipe, entry or miss.
        """
        given = {"recipe": recipe, "key": key, "name": name, "parts": parts}
        asked = inspection.ExplainRequest.from_json(given)
        return self.call(inspection.Explanation, "POST", "/v1/explain", asked)

    def purge(
        self,
        keys: Sequence[str] | None = None,
        *,
        free_bytes: int | None = None,
        everything: bool = False,
        dry_run: bool = False,
        **filters: Unpack[Filters],
    ) -> inspection.Purged:
        """Removes entries, held ones too; a filter or keys or `everything=True` must be given.

        Args:
            keys: exactly these.
            free_bytes: bytes on disk after which to stop. The least recently used entries go first; pinned
                ones, and those that jobs read, stay.
            everything: all entries that the filters leave.
            dry_run: only say what would be removed, and list the first of it.
            filters: see `Filters`.

        Raises:
            BadRequest: neither a filter, nor keys, nor everything.
            Forbidden: entries of somebody else were named.
        """
        asked = inspection.PurgeRequest(
            keys=_checked(keys), free_bytes=free_bytes, all=everything, dry_run=dry_run, **filters
        )
        return self.call(inspection.Purged, "POST", "/v1/purge", asked, limit_s=waits.VERIFY_S)

    def pin(self, key: str) -> None:
        """Keeps an entry from being evicted."""
        self.call(dict, "PUT", f"/v1/entries/{hex64(key, 'key')}/pin")

    def unpin(self, key: str) -> None:
        """Lets an entry be evicted again."""
        self.call(dict, "DELETE", f"/v1/entries/{hex64(key, 'key')}/pin")

    def verify(self, keys: Sequence[str] | None = None, *, differs: str = "") -> inspection.Verified:
        """Reads every byte of these entries, or of all, and compares; damaged ones are removed. `differs`
        says how their samples, made again, were others: they are removed unread. Raises Forbidden where
        somebody else owns such an entry, NotFound where it is not there."""
        asked = inspection.VerifyRequest(_checked(keys), differs[:512])
        limit_s = None if differs else waits.VERIFY_S
        return self.call(inspection.Verified, "POST", "/v1/verify", asked, limit_s=limit_s)

    def sessions(self) -> tuple[inspection.SessionSeen, ...]:
        """The connected jobs and their progress."""
        return self.call(inspection.SessionList, "GET", "/v1/sessions").sessions


def _checked(keys: Sequence[str] | None) -> tuple[Key, ...] | None:
    return None if keys is None else tuple(Key(hex64(key, "keys")) for key in keys)
