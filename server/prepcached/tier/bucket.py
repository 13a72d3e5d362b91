"""The object store behind the tier, through obstore, with bounded waits.

Invariants:
    1. Every call ends: a connection within `CONNECT_S`, a request without progress within `STALL_S`.
    2. Only a missing object is `Absent`; everything else is `CouldNotTell`, whose text holds no credential
       and no signed address. Credentials come from where the SDKs look for them, never from the URL.
    3. Jobs wait at most `LOST_S` in `LOST_SPAN_S` for a bucket or lead that fails (`Outage`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import LocalStore, from_url

from prepcache.errors import ConfigError

CONNECT_S = 2.0
STALL_S = 2.0
"""Longest wait for an answer to a small request, or for the next piece of a large one; a job waits for it."""
WRITE_S = 30.0  # longest wait for a small write, for which no job waits
PIECE_BYTES = 1 << 20  # each within STALL_S: a slow link is no outage
UPLOAD_RATE = 256 << 10  # bytes a second: an upload that is slower is given up

MAX_LISTED = 1_000_000  # objects that are looked at in one go

LOST_S, LOST_SPAN_S = 5.0, 3600.0
LONGEST_S = 2.0  # the longest that one failure costs a job
TICK_S = 0.5

_ANSWERS = r"<Code>(\w{1,64})</Code>", r"status code: (\d+[\w ]{0,64})", r"HTTP error: ([a-z ]{1,64})"

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Absent(Exception):
    """There is no such object."""


class CouldNotTell(Exception):
    """The object store did not answer, or refused to."""


class Damaged(Exception):
    """The object is not what its name says, or has more bytes than its reader takes."""


class Bucket:
    """One prefix of an object store. Every method may raise CouldNotTell."""

    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        self.url = url

    async def get(self, name: str, limit: int) -> bytes:
        """A small object; raises Absent, or Damaged where it has more than `limit` bytes."""
        return b"".join([piece async for piece in self.stream(name, range(limit + 1))])

    async def stream(self, name: str, sizes: range, limit_s: float = 1e9) -> AsyncIterator[memoryview]:
        """The pieces of an object; raises Absent, or Damaged where its size is not one of these. Given up
        when, at the rate so far, all of it would take longer than `limit_s`."""
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 0
        with _told(name):
            found = await _soon(obstore.get_async(self._store, name))
            size_bytes = found.meta["size"]
            if size_bytes not in sizes:
                raise Damaged(f"{name} has {size_bytes} bytes, expected {sizes[0]} to {sizes[-1]}")
            pieces: AsyncIterator[Any] = aiter(found.stream(min_chunk_size=PIECE_BYTES))
            if isinstance(self._store, LocalStore):
                pieces = self._ranges(name, size_bytes)
            while (piece := await _soon(anext(pieces, None))) is not None:
                count += len(piece)
                past_s = loop.time() - began
                if past_s > STALL_S and past_s * size_bytes > limit_s * count:
                    raise CouldNotTell(f"{name} would take longer than {limit_s:.0f} s")
                yield memoryview(piece)

    async def _ranges(self, name: str, size_bytes: int) -> AsyncIterator[Any]:
        """The pieces of a file, whose stream would be read 8 KiB at a time."""
        for at in range(0, size_bytes, PIECE_BYTES):
            length = min(PIECE_BYTES, size_bytes - at)
            yield await obstore.get_range_async(self._store, name, start=at, length=length)

    async def put(self, name: str, data: Any, *, timeout_s: float = WRITE_S) -> None:
        with _told(name, needs_bucket=True):
            await asyncio.wait_for(obstore.put_async(self._store, name, data), timeout_s)

    async def names(self, prefix: str, limit: int = MAX_LISTED, *, min_age_s: float = 0.0) -> list[str]:
        """The objects under a prefix that are so old by the bucket's clock, at most so many."""
        before = datetime.now(UTC) - timedelta(seconds=min_age_s)
        found: list[str] = []
        with _told(prefix, needs_bucket=True):
            pages = aiter(obstore.list(self._store, prefix, chunk_size=1000))
            while (page := await _soon(anext(pages, None))) is not None and len(found) < limit:
                found += [one["path"] for one in page if not min_age_s or one["last_modified"] < before]
        return found[:limit]

    async def delete(self, names: list[str]) -> None:
        for start in range(0, len(names), 1000):
            part = names[start : start + 1000]
            with contextlib.suppress(Absent), _told(part[0]):
                await asyncio.wait_for(obstore.delete_async(self._store, part), WRITE_S)


def opened(url: str) -> Bucket:
    """The bucket at a URL; raises ConfigError."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            "tier: the URL must not hold credentials or parameters: set them where the SDK looks for them, "
            "such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the daemon's environment"
        )
    mend = "give s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
    try:
        if parts.scheme == "file":
            folder = unquote(parts.path)
            if parts.netloc or not Path(folder).is_dir():
                raise ConfigError(f"tier: {url} names no folder that is there: create it, or mount it")
            return Bucket(LocalStore(prefix=folder), url)
        store = from_url(
            url,
            client_options={
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(hours=1),
                "allow_http": True,  # used only where AWS_ENDPOINT_URL says http://
            },
            retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=STALL_S)},
        )
    except (exceptions.BaseError, ValueError, OSError) as error:
        raise ConfigError(f"tier: {url} cannot be opened ({_why(error)}): {mend}") from None
    return Bucket(store, url)


async def _soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(STALL_S):
        return await work


@contextlib.contextmanager
def _told(name: str, *, needs_bucket: bool = False) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, exceptions.NotFoundError):
        raise (CouldNotTell("there is no such bucket") if needs_bucket else Absent(name)) from None
    except TimeoutError:
        raise CouldNotTell(f"{name or 'a listing'}: no answer within {STALL_S:.0f} s") from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise CouldNotTell(f"{name or 'a listing'}: {_why(error)}") from None


def _why(error: Exception) -> str:
    """What a server answered, such as AccessDenied, or the first words: the rest of the text may hold request
    addresses, and answers that repeat a key's id."""
    for pattern in _ANSWERS:
        if said := re.search(pattern, str(error)):
            return said[1]
    line = str(error).strip().split("\n")[0].split("http", 1)[0].strip(" (:,")
    return f"{type(error).__name__}: {line[:200]}" if line else type(error).__name__


class Outage:
    """The state of one service; `meanwhile` says what happens without it."""

    def __init__(self, name: str, meanwhile: str, retry_s: float, clock: Callable[[], float]) -> None:
        self.failures = 0
        self.last_failure = ""
        self.is_on = False  # whether it failed, and has not answered since
        self.was_asked = asyncio.Event()
        self._name = name
        self._meanwhile = meanwhile
        self._retry_s = retry_s
        self._clock = clock
        self._ask_at = float("inf")
        self._lost: list[tuple[float, float]] = []

    @property
    def is_usable(self) -> bool:
        since = self._clock() - LOST_SPAN_S
        return not self.is_on and sum(s for at, s in self._lost if at > since) + LONGEST_S <= LOST_S

    def note_lost(self, since: float) -> None:
        """A job waited in vain since then. What several wait for at the same time is lost once."""
        now = self._clock()
        if self._lost:
            since = max(since, self._lost[-1][0])
        kept = [one for one in self._lost if one[0] > now - LOST_SPAN_S]
        self._lost = [*kept, (now, now - since)]

    def note_failure(self, error: Exception) -> None:
        """Logged once for each outage."""
        self.failures += 1
        self.last_failure = str(error)
        if not self.is_on:
            LOG.warning("%s cannot be used (%s): %s", self._name, error, self._meanwhile)
        self.is_on = True
        self._ask_at = self._clock() + self._retry_s

    def note_answer(self) -> None:
        if self.is_on:
            LOG.info("%s answers again", self._name)
        self.is_on = False

    async def watch(self, ask: Callable[[], Awaitable[object]], every_s: float = float("inf")) -> None:
        """Asks it at the start, and while it fails, until cancelled; and so often while it answers."""
        self._ask_at = self._clock()
        while True:
            if self._clock() >= self._ask_at:
                try:
                    await ask()
                except Exception as error:
                    LOG.debug("%s was asked in vain", self._name, exc_info=error)
                    self.note_failure(error)
                else:
                    self.note_answer()
                    self._ask_at = self._clock() + every_s
                self.was_asked.set()
            await asyncio.sleep(TICK_S)
