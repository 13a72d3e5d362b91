"""The public names: lazily loaded at run time."""

from __future__ import annotations

import pytest

import prepcache
from prepcache.errors import all_errors


def test_public_names_are_there_and_others_are_said_not_to_be() -> None:
    public = {error.__name__ for error in all_errors()} & set(prepcache.__all__)
    assert 6 <= len(public) <= 8 and set(prepcache.__all__) == set(dir(prepcache))
    assert all(issubclass(error, prepcache.PrepcacheError) for error in all_errors())
    assert prepcache.errors.NotFound in all_errors()
    for name in prepcache.__all__:
        assert getattr(prepcache, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'CachedDatset'"):
        _ = prepcache.CachedDatset  # type: ignore[attr-defined]
