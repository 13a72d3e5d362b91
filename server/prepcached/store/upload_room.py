"""Room for an upload: looked for when it is announced, made as its bytes come.

Invariants:
    1. Nothing is evicted for bytes that never come. Room that is announced is kept from others for as long as
       the upload goes on, and so no longer than its lease (routes/data.py).
    2. Uploads that go on at once are admitted only where there is room for all of them, so that none is
       declined for the sake of another when most of it has come. A commit may still be quicker.
    3. What was announced and what was reserved is given back in one place, when the upload ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prepcache import errors
from prepcached.store import removal
from prepcached.store.commit import no_space_declined
from prepcached.store.core import Core, io_told

STEP_BYTES = 16 << 20
"""Room is made for so much at once."""


class Upload:
    """A new staged file that is being uploaded.

    Args:
        fd: open for writing; the caller closes it.
        size_bytes: as announced.
    """

    def __init__(self, core: Core, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self._core = core
        self._announced = size_bytes
        self._expected = 0
        self._reserved = 0

    def expect(self, size_bytes: int) -> None:
        """Makes room for so many more bytes, evicting what is idle; call it before they are written.

        Raises:
            Declined: no room can be made any more.
        """
        self._expected += size_bytes
        while self._reserved < self._expected:
            step = max(1, min(STEP_BYTES, self._announced - self._reserved))
            removal.reserve(self._core, step)
            with self._core.memory:
                self._core.ledger.announced_bytes -= step
            self._reserved += step

    def end(self) -> None:
        """Gives back the room; what was written counts as staged from here on."""
        with self._core.memory:
            self._core.ledger.reserved_bytes -= self._reserved
            self._core.ledger.announced_bytes -= self._announced - self._reserved


@contextlib.contextmanager
def uploading(core: Core, name: str, size_bytes: int) -> Iterator[Upload]:
    """See `Store.upload`."""
    with no_space_declined(core), io_told("a staged file could not be written"):
        core.look_at_staging()
        _admit(core, size_bytes)
        upload = Upload(core, -1, size_bytes)
        try:
            with core.staged_area.uploading(name):
                upload.fd = core.staged_area.new(name)
                yield upload
        finally:
            upload.end()


def _admit(core: Core, size_bytes: int) -> None:
    """
    Raises:
        Declined: there is no room beside what was announced before.
    """
    free = core.root.free_bytes()
    with core.memory:
        if core.fits(size_bytes, free):
            core.ledger.announced_bytes += size_bytes
            return
        core.counters.declined += 1
        why, limit = core.ledger.refusal(size_bytes, free), core.ledger.limit(free)
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=limit)
