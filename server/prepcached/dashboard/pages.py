"""The dashboard: the page, its style sheet and script, and what changes something.

Invariants:
    1. Nothing is loaded from elsewhere (`HEADERS`), and the page works without its script.
    2. What changes something is a POST with the token of a page that this daemon gave to the same user.
    3. What the caller may not do by the API is not allowed here: both call the same functions.
    4. Each table is bounded. Texts of strangers are escaped, and shown without unprintable characters.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs

import jinja2
from fastapi import APIRouter, Query, Request
from markupsafe import Markup, escape
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from prepcache.errors import BadRequest, Forbidden, StoreError
from prepcache.protocol import inspection, status_text
from prepcache.protocol.explain import cues
from prepcache.protocol.inspection import NameSums
from prepcache.protocol.units import age_text, count_text, size_text, span_text, user_name
from prepcached.auth import TOKEN_UID, Caller
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon
from prepcached.routes import entries, explain, info, messages, sessions
from prepcached.store.records import Filter

HERE = Path(__file__).parent
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
MAX_FORM_BYTES = 4096
SORTED_NAMES = 2000  # names that are sorted; the page shows the first of them
MAX_SESSIONS = 30
MAX_NAMES = 40
MAX_ENTRIES = 20
MAX_MISSES = 10
MAX_USERS = 20
REFRESH_S = 10  # where scripts are off; else the page follows every second (dashboard.js)
SORTS: Mapping[str, str] = {
    "name": "name",
    "recipes": "recipes",
    "entries": "entries",
    "items": "items",
    "size": "size_bytes",
    "work": "cost_s",
    "used": "used_at",
}
"""Columns of the room by name, and the members that they sort by."""
PIN_EFFECTS = {"pin": "It will not be evicted.", "unpin": "It may be evicted when room is needed."}
SPANS = (("last hour", 3600.0, 60), ("last day", 86400.0, 96))  # of the charts: name, seconds, bars
SAMPLE_S, KEPT = 60.0, 24 * 60  # seconds that a sample counts, and samples that are kept
WIDTH, HEIGHT = 300, 48  # of a chart, in the units of its SVG
_HEX = frozenset("0123456789abcdef")


class Sample(NamedTuple):
    """What was counted within a minute, and the bytes on disk at its end `at`, seconds since the epoch."""

    at: float
    hit_items: float
    miss_items: float
    saved_s: float
    disk_bytes: float


class Dashboard:
    def __init__(self, daemon: Daemon, coordinator: Coordinator) -> None:
        self._daemon = daemon
        self._coordinator = coordinator
        self._secret = secrets.token_bytes(32)
        self._templates = _environment()
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._sampled = Sample(0.0, 0.0, 0.0, 0.0, 0.0)  # the counters at the last sample

    async def record(self) -> None:
        """Samples the counters for the charts until it is cancelled."""
        store = self._daemon.store
        with contextlib.suppress(StoreError):
            self._samples.extend(Sample(*one) for one in await self._daemon.quick(store.history))
        while True:
            await asyncio.sleep(SAMPLE_S)
            with contextlib.suppress(StoreError):  # said by what needs the store
                stats = await self._daemon.quick(store.stats)
                sample, self._sampled = self._sample(stats.disk_bytes), self._counted(stats.disk_bytes)
                self._samples.append(sample)
                await self._daemon.slow(store.keep_sample, tuple(sample), sample.at - KEPT * SAMPLE_S)

    def router(self) -> APIRouter:
        api = APIRouter(include_in_schema=False)
        api.add_api_route("/", self.page)
        api.add_api_route("/docs", self.docs)
        api.add_api_route("/explain", self.explain)
        api.add_api_route("/confirm", self.confirm)
        api.add_api_route("/act", self.act, methods=["POST"])
        api.add_api_route("/dashboard.css", _asset("dashboard.css", "text/css"))
        api.add_api_route("/dashboard.js", _asset("dashboard.js", "text/javascript"))
        return api

    async def page(
        self,
        request: Request,
        sort: str = "size",
        search: Annotated[str, Query(max_length=200)] = "",
        done: str = "",
    ) -> HTMLResponse:
        daemon, caller = self._daemon, messages.caller(request)
        sort = sort if sort in SORTS else "size"
        stats = await daemon.quick(daemon.store.stats)
        names = await daemon.listing(daemon.store.name_sums, SORTED_NAMES, caller.confined_to)
        found = await daemon.listing(
            daemon.store.entries, self._searched(search, caller), sort="-used_at", limit=MAX_ENTRIES
        )
        held = await daemon.listing(daemon.store.held)
        visible = sessions.visible(daemon.sessions.values(), caller)
        # Who makes something comes first, then who came last.
        shown = sorted(visible, key=lambda one: (not one.progress, -one.opened_at))[:MAX_SESSIONS]
        told = info.stats_of(daemon, self._coordinator, stats, caller)
        users = told["users"][:MAX_USERS]
        uids = {one.caller.uid for one in shown} | {entry.owner for entry in found.entries}
        uids |= {one["owner"] for one in users}
        named = await daemon.listing(lambda: {uid: user_name(uid) for uid in uids - {None, TOKEN_UID}})
        now, tier = time.time(), self._coordinator.tier
        view = {
            "info": info.info_of(daemon, stats),
            "host": socket.gethostname(),
            "stats": told,
            "hit_percent": status_text.hit_percent(told),
            "shares": _shares(names, told),
            "charts": _charts([*self._samples, self._sample(stats.disk_bytes)], now),
            "now": now,
            "sessions": sessions.seen(shown, daemon, held),
            "connected": len(visible),
            "names": _sorted_names(names, sort)[:MAX_NAMES],
            "named": len(names),
            "sort": sort,
            "entries": found.entries,
            "has_more_entries": found.cursor is not None,
            "search": search,
            "misses": self._coordinator.misses[caller.scope].latest(MAX_MISSES),
            "quotas": users if any(one["quota_bytes"] is not None for one in users) else (),
            "user": lambda uid: named.get(uid, "by token"),
            "may_change": lambda owner: caller.is_admin or owner == caller.uid,
            "tier": () if tier is None else status_text.tier(inspection.TierStatus(**tier.status())),
        }
        outcome = {"purge": "Purged.", "pin": "Pinned.", "unpin": "Unpinned."}.get(done, "")
        return self._render("page.html", view=view, sorts=list(SORTS), done=outcome)

    async def docs(self, request: Request) -> HTMLResponse:
        return self._render("docs.html", api=request.app.openapi())

    async def explain(self, request: Request, recipe: messages.HexInQuery) -> HTMLResponse:
        caller = messages.caller(request)
        asked = inspection.ExplainRequest.from_json({"recipe": recipe})
        misses = self._coordinator.misses[caller.scope]
        told = await explain.explanation(self._daemon, misses, asked, caller)
        return self._render("explain.html", told=told, cues=cues(told), now=time.time())

    async def confirm(
        self,
        request: Request,
        action: str,
        name: Annotated[str | None, Query(max_length=256)] = None,
        key: messages.HexInQuery | None = None,
    ) -> HTMLResponse:
        """What an action would do, and the form that does it."""
        caller, wanted = messages.caller(request), await self._wanted(request, action, name, key)
        what = f"all entries called {name}" + ("" if caller.is_admin else " that you own")
        if key is not None:
            entry = await entries.entry_of(self._daemon, request, key)
            what = f"{entry.name}, entry {key[:12]}: {count_text(entry.items, 'item', 'items')}"
        effect = PIN_EFFECTS.get(action)
        if effect is None:
            gone = await self._daemon.slow(self._daemon.store.purge, wanted, dry_run=True)
            kept = f"; {gone.pinned} of them pinned" if gone.pinned else ""
            effect = (
                f"Frees {size_text(gone.disk_bytes)}: {count_text(gone.entries, 'entry', 'entries')}{kept}. "
                "Jobs that read them go on; jobs that need them later preprocess them again."
            )
        fields = {"action": action, "token": self._token(caller)}
        fields |= {"key": key} if key is not None else {"name": name or ""}
        title = f"{action.capitalize()}?"
        return self._render(
            "confirm.html", title=title, what=what, effect=effect, action=action, fields=fields
        )

    async def act(self, request: Request) -> Response:
        caller = messages.caller(request)
        body = await messages.read_body(request, MAX_FORM_BYTES)
        form = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
        if not hmac.compare_digest(form.get("token", "").encode(), self._token(caller).encode()):
            raise Forbidden("this form is not from a page of this daemon: open the page again")
        action, key = form.get("action", ""), form.get("key")
        wanted = await self._wanted(request, action, form.get("name"), key)
        if key is not None and action in PIN_EFFECTS:
            await entries.set_pin(self._daemon, request, key, is_pinned=action == "pin")
        else:
            entries.log_purge(caller, await self._daemon.slow(self._daemon.store.purge, wanted))
        return RedirectResponse(f"/?done={action}", 303)

    async def _wanted(self, request: Request, action: str, name: str | None, key: str | None) -> Filter:
        """The entries that an action is for, which the caller may change."""
        if key is not None and (action == "purge" or action in PIN_EFFECTS):
            return Filter(keys=(key,), owner=await entries.owner_of(self._daemon, request, key))
        if action != "purge" or not name or name.endswith("*"):
            raise BadRequest("the action is purge with name or key, or pin or unpin with key", field="action")
        return entries.narrowed(Filter(name=name), messages.caller(request))

    def _searched(self, search: str, caller: Caller) -> Filter:
        is_recipe = 4 <= len(search) <= 64 and set(search) <= _HEX
        return Filter(
            name=None if is_recipe or not search else search.rstrip("*") + "*",
            recipe=search if is_recipe else None,
            owner=caller.confined_to,
        )

    def _counted(self, disk_bytes: int) -> Sample:
        served = self._coordinator.served
        misses = served["leased_items"] + served["declined_items"]
        return Sample(time.time(), served["found_items"], misses, served["saved_s"], disk_bytes)

    def _sample(self, disk_bytes: int) -> Sample:
        now, before = self._counted(disk_bytes), self._sampled
        hits, misses = now.hit_items - before.hit_items, now.miss_items - before.miss_items
        return Sample(now.at, hits, misses, now.saved_s - before.saved_s, disk_bytes)

    def _token(self, caller: Caller) -> str:
        return hmac.new(self._secret, str(caller.owner_uid).encode(), "sha256").hexdigest()

    def _render(self, template: str, **names: object) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(names), headers=HEADERS)


def _asset(name: str, media_type: str) -> Callable[[], Awaitable[FileResponse]]:
    async def asset() -> FileResponse:
        return FileResponse(HERE / name, media_type=media_type, headers={"cache-control": "no-cache"})

    return asset


def printable(value: Any) -> Any:
    """A text with "?" for what cannot be printed; anything else, and markup, as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in value)


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=printable,
    )
    made.filters |= {"size": size_text, "span": span_text, "age": age_text, "count": count_text}
    made.filters |= {
        "whole": lambda text: Markup(escape(text)),  # exactly this text: for form fields
        "schema": lambda value: Markup(escape(json.dumps(value, indent=2, ensure_ascii=False))),
        "capfirst": lambda text: text[:1].upper() + text[1:],
    }
    made.globals |= {
        "status_text": status_text,
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "refresh_s": REFRESH_S,
    }
    return made


def _shares(names: Iterable[NameSums], stats: Mapping[str, Any]) -> Sequence[tuple[str, float]]:
    """The largest names and their shares of the room, in percent; then what is left of what is used."""
    limit = max(1, stats["effective_limit_bytes"])
    largest = sorted(names, key=lambda one: one.size_bytes, reverse=True)[:6]
    shown = [(one.name, 100 * one.size_bytes / limit) for one in largest]
    rest = 100 * stats["disk_bytes"] / limit - sum(share for _, share in shown)
    return [*shown, ("other", max(0.0, rest))]


def _hit_rate(samples: Sequence[Sample]) -> float | None:
    hits, misses = sum(one.hit_items for one in samples), sum(one.miss_items for one in samples)
    return hits / (hits + misses) if hits + misses > 0 else None


_KINDS: Sequence[tuple[str, Callable[[Sequence[Sample]], float | None], Callable[[float], str]]] = (
    ("hit rate", _hit_rate, lambda one: f"{100 * one:.0f} %"),
    ("time saved", lambda samples: sum(one.saved_s for one in samples) or None, span_text),
    ("on disk", lambda samples: samples[-1].disk_bytes or None, size_text),
)
"""Of the charts: name, value of a bar, and that value for people."""


def _charts(samples: Sequence[Sample], now: float) -> Sequence[tuple[str, str, str]]:
    """(title, value at the peak, path of the SVG)"""
    made = []
    for span, span_s, bars in SPANS:
        groups: list[list[Sample]] = [[] for _ in range(bars)]
        for one in samples:
            at = int((one.at - now + span_s) * bars / span_s)
            if 0 <= at <= bars:
                groups[min(at, bars - 1)].append(one)
        for kind, value, told in _KINDS:
            values = [value(group) if group else None for group in groups]
            peak = max((one for one in values if one is not None), default=None)
            title = f"{kind}, {span}", "nothing yet" if peak is None else f"up to {told(peak)}"
            made.append((*title, _path(values, 1.0 if value is _hit_rate else peak or 1.0)))
    return made


def _path(values: Sequence[float | None], top: float) -> str:
    step = WIDTH / len(values)
    return "".join(
        f"M{i * step:.1f} {HEIGHT}V{HEIGHT * (1 - one / top):.1f}h{step * 0.8:.1f}V{HEIGHT}z"
        for i, one in enumerate(values)
        if one is not None
    )


def _sorted_names(names: Iterable[NameSums], sort: str) -> list[NameSums]:
    """By a column of the table, largest first, names from A on."""
    found = sorted(names, key=lambda one: one.name)
    if sort != "name":
        found.sort(key=lambda one: getattr(one, SORTS[sort]), reverse=True)
    return found
