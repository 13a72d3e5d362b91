"""The public names: lazily loaded at run time."""

from __future__ import annotations

import subprocess
import sys

import pytest

import prepcache
from prepcache.errors import all_errors

MOST_MODULES = 130
"""Of ours, that the first use of `CachedDataset` may load: most of them are about keys."""


def test_public_names_are_there_and_others_are_said_not_to_be() -> None:
    public = {error.__name__ for error in all_errors()} & set(prepcache.__all__)
    assert 6 <= len(public) <= 8 and set(prepcache.__all__) == set(dir(prepcache))
    assert all(issubclass(error, prepcache.PrepcacheError) for error in all_errors())
    assert prepcache.errors.NotFound in all_errors()
    for name in prepcache.__all__:
        assert getattr(prepcache, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'CachedDatset'"):
        _ = prepcache.CachedDatset  # type: ignore[attr-defined]


def test_what_makes_samples_is_loaded_when_one_is_missing() -> None:
    script = "import sys, prepcache; prepcache.CachedDataset; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name for name in told.stdout.split() if name.startswith("prepcache")}
    assert "prepcache.samples" in loaded
    assert loaded.isdisjoint({"prepcache.making", "prepcache.fill.filler", "prepcache.fill.workers"})
    assert len(loaded) <= MOST_MODULES, sorted(loaded)
