"""Which items of a data set were altered since they were digested."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepcache.data.originals import Originals
from prepcache.data.plan import Distinct
from prepcache.keys.items import ItemHasher


def opened(items: list[Any]) -> Originals:
    digests, stamps = ItemHasher(memo=None).digest_many(items)
    originals = Originals(items, Distinct(digests), stamps)
    originals.end_opening()
    return originals


def test_an_item_that_was_put_back_stays_altered() -> None:
    """One thread may be at a sample of the altered item while another finds it as it was."""
    items = [{"v": 1}, {"v": 2}]
    originals = opened(items)
    items[1]["v"] = 3
    assert originals.compared(1) == {"v": 3}
    items[1]["v"] = 2
    assert originals.compared(1) == {"v": 2}
    originals.compare(np.arange(2))
    assert originals.changed(0) == []
    assert originals.changed(1) == ["item 1"]


def test_an_item_of_which_no_bytes_can_be_made_any_more_is_altered() -> None:
    items: list[Any] = [{"v": 1}, {"v": 2}]
    originals = opened(items)
    items[1]["v"] = open
    originals.compare(np.arange(2))
    items[1]["v"] = 2
    assert originals.changed(0) == []
    assert originals.changed(1) == ["item 1"]
