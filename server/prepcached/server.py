"""Running a daemon whose place is taken (start.py): its signals, its settings, and how it stops.

Invariants:
    1. A stop takes the socket's name away, finishes what was asked, then gives the root back: whoever finds
       no socket, or is refused, may start another daemon. It ends within `STOP_LIMIT_S`, whatever threads do.
    2. A daemon whose root was removed or replaced ends, and so does one whose index is damaged: its next
       start rebuilds that (store/integrity.py).
    3. SIGHUP reloads budget, minimum free, quotas, admins, trusted users, token and log level, the rest at
       the next start. Settings that are wrong change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from prepcache.errors import ConfigError, IndexCorrupt, PrepcacheError, RootUnusable, StoreError
from prepcache.protocol.status_text import page
from prepcache.protocol.units import size_text
from prepcached.app import Middleware, create_app
from prepcached.auth import Auth
from prepcached.config import Settings, read_token
from prepcached.daemon import Daemon
from prepcached.http_protocol import PeerProtocol, Slots
from prepcached.maintenance import Maintenance
from prepcached.start import BACKLOG, STOP_LIMIT_S, STOPS, Place, notify, watchdog_interval_s
from prepcached.store.records import Limits
from prepcached.store.root import give
from prepcached.store.store import Store

if TYPE_CHECKING:
    from prepcached.tier.tier import Tier

LOG = logging.getLogger(__name__)

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that it is they who close
STOP_TIMEOUT_S = 6
"""For requests under way at a stop. Clients offer again what is broken off."""
OVERDUE = 75  # exit status of a stop that did not end in time; the unit does not take it for a failure
START_S = 6 * 3600  # what systemd is asked to allow for a start
SWITCH_S = 0.0005
"""Longest time that a busy thread, such as a merge, keeps the interpreter from a request. A request takes it
back some ten times: with Python's own 5 ms, answers took 50 ms while a merge ran."""
IDLE_CHECK_S = 0.5
ROOT_CHECK_S = 1.0
ACCEPT_S = 0.05
"""Between taking the socket's name away and closing it: whoever connected before is accepted and answered."""


def serve(place: Place, load: Callable[[], Settings], settings: Settings, environ: Mapping[str, str]) -> None:
    """Runs a daemon until it is told to stop or was idle for long; `load` reads the settings again."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a hardened unit may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = assemble(place, settings, environ)
    server.load = load
    server.end_now = os._exit
    gc.collect()
    gc.freeze()  # a collection that looks through all that is loaded would stop requests for 50 ms
    gc.enable()
    sys.setswitchinterval(SWITCH_S)  # here: `assemble` may run in a process that is not the daemon's alone
    server.run(sockets=place.listeners)
    if server.ends_with is not None:
        raise server.ends_with


def assemble(
    place: Place,
    settings: Settings,
    environ: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
) -> Server:
    # An index that is lost is made again from every artifact.
    notify(f"EXTEND_TIMEOUT_USEC={START_S * 1_000_000}\nSTATUS=opening the store", environ)
    store = Store(place.root, limits=_limits(settings))
    try:
        _check_store(store, settings)
    except BaseException:
        store.close()
        raise
    auth = Auth(
        token=settings.token,
        admins=settings.admins,
        hosts=[*settings.allowed_hosts, *([settings.host] if settings.host else [])],
        is_by_user=settings.isolation == "user",
        trusted=settings.trusted,
        metrics_port=None if settings.metrics_listen is None else settings.metrics_listen[1],
    )
    daemon = Daemon(store, clock=clock, auth=auth)
    slots = Slots()
    middleware = create_app(daemon, Maintenance(store), slots, _tier(daemon, settings))
    config = uvicorn.Config(
        middleware,
        http=partial(PeerProtocol, slots=slots),  # type: ignore[arg-type]
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
        backlog=BACKLOG,
    )
    return Server(config, daemon, middleware, place, settings, environ)


class Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        daemon: Daemon,
        middleware: Middleware,
        place: Place,
        settings: Settings,
        environ: Mapping[str, str],
    ) -> None:
        super().__init__(config)
        self.daemon = daemon
        self.middleware = middleware
        self.load: Callable[[], Settings] = lambda: settings
        self.end_now: Callable[[int], object] | None = None
        """Ends the process at once with a status; None where the server is not all of the process."""
        self._settings = settings
        self._environ = environ
        self._place = place
        self._watches: list[asyncio.Task[None]] = []
        self.ends_with: BaseException | None = None  # what `serve` raises after the stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for one in STOPS:
                loop.add_signal_handler(one, self.ask_to_stop, one.name)
            loop.add_signal_handler(signal.SIGHUP, lambda: self.daemon.spawn(self._reload()))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # blocked since __main__.py
        try:  # not in the lifespan: uvicorn ends what fails there with a traceback and a code of its own
            await self.daemon.start()
        except BaseException:
            self._place.drop_socket()
            self.daemon.store.close()
            raise
        await super().startup(sockets)
        watches = [self._stop_when_unusable()]
        if self._settings.idle_exit is not None:
            watches.append(self._stop_when_idle(self._settings.idle_exit))
        watchdog_s = watchdog_interval_s(self._environ)
        if watchdog_s is not None:
            watches.append(self._feed_watchdog(watchdog_s))
        self._watches = [loop.create_task(one) for one in watches]
        at = (one.getsockname() for one in sockets or ())
        names = ", ".join(f"unix://{a}" if isinstance(a, str) else f"http://{a[0]}:{a[1]}" for a in at)
        LOG.info("serving %s on %s (pid %d)", self._settings.root, names, os.getpid())
        if self._settings.uds is not None:
            LOG.info("page for people: %s", page(os.fspath(self._settings.uds), socket.gethostname()))
        notify("READY=1\nSTATUS=", self._environ)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        limit = threading.Timer(STOP_LIMIT_S, self._stop_is_overdue)
        limit.daemon = True
        limit.start()
        try:
            await self._shut_down(sockets)
        finally:
            limit.cancel()

    def _stop_is_overdue(self) -> None:
        if self.end_now is not None:
            LOG.warning(
                "stopping took over %d s: exiting without waiting for what is under way", STOP_LIMIT_S
            )
            self.end_now(OVERDUE)

    async def _shut_down(self, sockets: list[socket.socket] | None) -> None:
        notify("STOPPING=1", self._environ)
        for watch in self._watches:  # else it may ask a store that is closed by then
            watch.cancel()
        self._place.drop_socket()
        await asyncio.sleep(ACCEPT_S)
        self.daemon.begin_stop()
        await super().shutdown(sockets)
        LOG.info("stopped")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's would raise the signal again after a clean stop, and so end with another exit status."""
        yield

    def ask_to_stop(self, why: str) -> None:
        LOG.info("stopping: %s", why)
        self.should_exit = True

    async def _reload(self) -> None:
        try:
            settings = await self.daemon.slow(self.load)  # looks up users, which may take a while
            await self.daemon.quick(self.daemon.store.set_limits, _limits(settings))
        except PrepcacheError as error:
            LOG.error("settings were not reloaded: %s", error.message)
            return
        self.daemon.auth.set_people(settings.token, settings.admins, settings.trusted)
        logging.getLogger().setLevel(settings.log_level.upper())
        stats = await self.daemon.quick(self.daemon.store.stats)
        kept, free = size_text(stats.max_bytes), size_text(stats.min_free_bytes)
        LOG.info(
            "reloaded: the budget is %s, with %s kept free; see the docs for what needs a restart", kept, free
        )

    async def _stop_when_idle(self, idle_s: float) -> None:
        """What only looks keeps no daemon: a page or a watching command that is left open over a weekend."""
        since = time.monotonic()
        seen = -1
        while not self.should_exit:
            await asyncio.sleep(min(IDLE_CHECK_S, idle_s))
            uses = self.middleware.uses
            if self.daemon.sessions or self.middleware.under_way or uses != seen:
                since, seen = time.monotonic(), uses
            elif self._place.is_lost:  # no other daemon can start while this one has the root
                self.ask_to_stop("its socket was removed, and no job uses it")
            elif time.monotonic() - since >= idle_s:
                self.ask_to_stop(f"idle for {idle_s:.0f} s")

    async def _feed_watchdog(self, interval_s: float) -> None:
        """Tells systemd that the event loop turns; where it stops to, systemd starts another daemon."""
        while True:
            notify("WATCHDOG=1", self._environ)
            await asyncio.sleep(interval_s)

    async def _stop_when_unusable(self) -> None:
        while not self.should_exit:
            await asyncio.sleep(ROOT_CHECK_S)
            with contextlib.suppress(StoreError):  # a disk that fails is not a root that is gone
                if not await self.daemon.quick(self.daemon.store.is_there):
                    self.ends_with = RootUnusable(
                        f"{self._settings.root} was removed with everything in it; the next start begins "
                        "with an empty store"
                    )
                    self.ask_to_stop("its root was removed or replaced")
                elif self.daemon.store.index.is_damaged:
                    # Said below: an error as its last line would keep jobs from a new start.
                    self.ends_with = SystemExit(IndexCorrupt.exit_code)
                    self.ask_to_stop("its index is damaged or was removed; the next start rebuilds it")


def _tier(daemon: Daemon, settings: Settings) -> Tier | None:
    if settings.tier is None:
        return None
    try:
        from prepcached.tier import bucket, tier
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise ConfigError('tier: needs obstore: in its checkout, pip install ".[fleet]"') from None
    upstream, file = settings.tier.upstream, settings.tier.upstream_token_file
    lead = (upstream, read_token("tier.upstream_token_file", file)) if upstream and file else None
    is_read_only = settings.tier.mode == "read-only"
    return tier.Tier(daemon, bucket.opened(settings.tier.url), is_read_only=is_read_only, lead=lead)


def _check_store(store: Store, settings: Settings) -> None:
    """Opens the folders to the socket's group. Raises ConfigError where users cannot be isolated."""
    if settings.isolation == "user" and not store.keeps_marks():
        raise ConfigError(
            f'isolation = "user": the filesystem of {store.root} has no extended attributes, which record '
            "the owners of artifacts in case the index is lost: choose another root (--root), or set "
            'isolation = "group"'
        )
    if settings.group is not None:
        give(store.layout, settings.group)


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_bytes=settings.max_bytes,
        min_free_bytes=settings.min_free,
        user_quota_bytes=settings.user_quota,
        quotas=settings.quotas,
    )
