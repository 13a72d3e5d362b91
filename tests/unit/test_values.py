"""Run-time values that the canonical encoding does not know: by class and state, or refused by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.encoding.objects import Unstable, parts_of
from prepcache.keys.recipes import recipe


def digest_of(value: Any) -> str:
    """The digest of a recipe whose config holds the value."""

    def f(x: Any, value: Any) -> Any:
        return x

    return recipe(f, config={"value": value}).digest


class Plain:
    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


@pytest.mark.parametrize(
    "value",
    [(i for i in [1]), Plain(k=(i for i in [1])), Plain(n=Plain(k=(i for i in [1])))],
)
def test_hidden_state_is_refused_with_its_place_and_remedy(value: Any) -> None:
    with pytest.raises(UnkeyableError) as caught:
        digest_of(value)
    message = str(caught.value)
    assert message.startswith("config.value")
    assert all(way in message for way in ("__prepcache_key__", "register_key"))
    assert "untracked=" not in message, "the function is given its config: it cannot be left out"


def test_a_standard_stream_counts_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out, open(tmp_path / "log", "w") as log:
        with pytest.raises(UnkeyableError):
            digest_of(out)  # not a standard stream, so far
        monkeypatch.setattr(sys, "stderr", out)
        first = digest_of(out)
        monkeypatch.setattr(sys, "stderr", log)
        assert digest_of(log) == first
        monkeypatch.setattr(sys, "stdout", out)
        assert digest_of(out) != first


def test_a_property_that_raises_is_never_called() -> None:
    class Trap:
        @property
        def boom(self) -> int:
            raise RuntimeError("read")

    assert digest_of(Trap()) == digest_of(Trap())


def test_a_getstate_that_raises_is_refused_by_name() -> None:
    class Broken:
        def __getstate__(self) -> None:
            raise RuntimeError("no state today")

    with pytest.raises(UnkeyableError, match=r"Broken.*no state today"):
        digest_of(Broken())


def test_hidden_state_in_c_is_never_left_out() -> None:
    with pytest.raises(Unstable):
        parts_of((i for i in [1]), is_library=True)


class Named:
    """Says that it is a global of its module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        return self.name


NAMED = Named("NAMED")


def test_an_object_reduced_to_a_missing_global_is_refused() -> None:
    with pytest.raises(UnkeyableError, match="which no module has"):
        digest_of(Named("NAMED"))
