"""For all unit tests: asynchronous ones run in asyncio, and jobs of some do without a daemon."""

from pathlib import Path

import pytest

from prepcache.keys.observation.watches import STATE


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_kept_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that forks keeps samples of this process from being stored for no longer than its test."""
    monkeypatch.setattr(STATE, "parents", set())


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Jobs make samples by themselves, with a cache folder of the test's own."""
    monkeypatch.setenv("PREPCACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
