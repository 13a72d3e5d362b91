"""Options of a data set that cannot work are refused at once, with the mend in the message."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prepcache import CachedDataset
from prepcache.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verify_fraction": 1.5}, "between 0 and 1"),
        ({"num_workers": -1}, "forks N workers"),
        ({"num_workers": 2, "executor": ThreadPoolExecutor(1)}, "give one of them"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CachedDataset([1], str, **options)
