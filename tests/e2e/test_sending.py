"""A data set whose function pickle does not take reaches spawned workers where all its samples are there."""

from __future__ import annotations

import pickle

import pytest

from prepcache import CachedDataset, Client
from prepcache.errors import PreprocessError
from prepcache.pickling import Unsent


def module_level(item: int) -> int:
    return item + 1


def test_what_cannot_be_sent_is_not_needed_where_all_is_there(client: Client) -> None:
    ds = CachedDataset([1, 2], lambda item: item + 1, progress=False, client=client)
    sent = pickle.loads(pickle.dumps(ds))
    assert list(sent) == sent.__getitems__([0, 1]) == [2, 3] and sent.recipe == ds.recipe
    assert isinstance(sent._samples.by.job.function, Unsent) and list(pickle.loads(pickle.dumps(sent))) == [
        2,
        3,
    ]
    with pytest.raises(PreprocessError, match=r"lambda.*could not be sent .*top level of a module"):
        sent._samples.by.job.function(1)
    lazy = CachedDataset([1, 2, 3], lambda item: item + 2, lazy=True, progress=False, client=client)
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"lambda|local object"):
        pickle.dumps(lazy)


def test_what_can_be_sent_is(client: Client) -> None:
    sent = pickle.loads(pickle.dumps(CachedDataset([1, 2], module_level, progress=False, client=client)))
    assert sent._samples.by.job.function is module_level and list(sent) == [2, 3]
