"""Options of a data set that cannot be."""

from __future__ import annotations

from concurrent.futures import Executor

from prepcache.errors import ConfigError


def check(verify_fraction: float, num_workers: int, executor: Executor | None) -> None:
    """Refuses numbers out of their range, and options that exclude each other.

    Raises:
        ConfigError: the message says what there is instead.
    """
    if not 0.0 <= verify_fraction <= 1.0:
        raise ConfigError(f"verify_fraction={verify_fraction}: a share of the hits is between 0 and 1")
    if num_workers < 0:
        raise ConfigError(f"num_workers={num_workers}: 0 preprocesses in this process, N forks N workers")
    if num_workers and executor is not None:
        raise ConfigError("num_workers= and executor= both say who preprocesses: give one of them")
