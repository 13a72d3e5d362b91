"""Reading everything again finds the one wrong byte."""

from pathlib import Path
from unittest import mock

import pytest

from prepcache import errors
from prepcached.store import integrity, staging
from prepcached.store.store import Store
from support.stores import put


def spoil(store: Store, digest: str) -> Path:
    """Turns the last byte of an artifact around."""
    path = Path(store.objects) / digest[:2] / digest
    path.chmod(0o640)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_verification_that_nobody_waits_for_ends(store):
    put(store, 1)
    with pytest.raises(errors.DaemonUnreachable, match="the client has gone"):
        store.verify(is_abandoned=lambda: True)


def test_a_verification_reads_at_a_bounded_rate(store, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(store.stopping, "wait", waited.append)
    put(store, 1), put(store, 2)
    assert store.verify().read_bytes == sum(waited) * integrity.VERIFY_BYTES_PER_S > 0


def test_a_lost_file_is_a_bad_one(store):
    ref = put(store, 1).artifact
    (Path(store.objects) / ref.digest[:2] / ref.digest).unlink()
    assert store.verify().bad == (ref.key,)
    assert store.stats().entries == 0


def test_a_read_error_is_told_and_the_artifact_stays(store, monkeypatch):
    ref = put(store, 1).artifact
    monkeypatch.setattr(staging, "hash_file", mock.Mock(side_effect=OSError(5, "Input/output error")))
    found = store.verify()
    assert (found.bad, found.unreadable) == ((), (ref.key,))
    assert store.scrub_one() == ref.size_bytes
    assert store.stats().entries == 1
    assert store.stats().damaged == 0


def test_the_scrub_resumes_and_rests_between_rounds(open_store, clock):
    store = open_store()
    sizes = [put(store, name).artifact.size_bytes for name in range(4)]
    assert store.scrub_one() == sizes[0]
    store.close()
    again = open_store()
    spoil(again, again.entries(sort="created_at").entries[0].digest)
    assert [again.scrub_one() for _ in range(4)] == [*sizes[1:], 0]
    assert again.stats().damaged == 0 and again.stats().scrubbed_bytes == sum(sizes[1:])
    clock.now += integrity.ROUND_S
    again.scrub_one()
    assert again.stats().damaged == 1


def test_a_scrub_round_from_the_future_blocks_no_other(store, clock):
    ref = put(store, 1).artifact
    clock.now += 10 * 365 * 86_400
    assert [store.scrub_one(), store.scrub_one()] == [ref.size_bytes, 0]
    clock.now -= 10 * 365 * 86_400
    assert [store.scrub_one(), store.scrub_one()] == [ref.size_bytes, 0]
