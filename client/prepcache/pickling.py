"""A data set on its way to another process: without its function where that cannot be sent and is not needed.

DataLoader workers that are spawned get data sets by pickle, which takes neither lambdas, nor closures, nor
methods of what a training framework holds. Where all samples are there, such a worker calls no function.

Invariants:
    1. A function that can be sent is sent with its config; one that cloudpickle can send is, where the job
       has that loaded.
    2. While samples are missing, what cannot be sent is refused by pickle, as it was.
    3. A sample that got lost nevertheless is an error that says so, and what to do.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from prepcache.errors import PreprocessError
from prepcache.fill.recipe_guard import Steady

_STAYS = ("_keeper", "_view", "_executor")
"""Attributes that belong to one process."""


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


class Unsent:
    """Stands for a function that was not sent; fails when it is called."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self.why = why

    def __call__(self, item: Any, **config: Any) -> Any:
        raise PreprocessError(
            f"{self.name} could not be sent to this process ({self.why}), where a sample is missing that was "
            "there: define it at the top of a module"
        )


class _ByCloudpickle:
    """Sends a function as cloudpickle has it; what arrives is the function."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __reduce__(self) -> Any:
        return pickle.loads, (self.raw,)


def state_of(members: Mapping[str, Any]) -> dict[str, Any]:
    """What is pickled of a data set with these attributes."""
    state = {name: value for name, value in members.items() if name not in _STAYS}
    function, supply = state["_job"].function, state["_supply"]
    config = state["_job"].config
    why = "" if len(supply.catalogue.missing) else refusal(function) or refusal(config)
    if not why:
        return state
    recipe = replace(state["_recipe"], preprocess=None, config={}, asked={})
    other = None if refusal(config) else _other_way(function)
    job = replace(
        state["_job"],
        function=other or Unsent(recipe.name, why),
        config=config if other else {},
        observer=None,
    )
    light = {"_recipe": recipe, "_job": job, "_steady": Steady(recipe), "_supply": supply.sent_with(recipe)}
    return {**state, **light}


def refusal(function: Any, *, is_sure: bool = False) -> str:
    """Why pickle does not take it; "" if it does. Buffers that it holds are not copied.

    Args:
        is_sure: only what multiprocessing does not send either, whose pickles take more: locks, queues and
            shared memory, but no function or class without a name of its own.
    """
    try:
        pickle.Pickler(_Nowhere(), pickle.HIGHEST_PROTOCOL, buffer_callback=lambda _: None).dump(function)
    except (pickle.PicklingError, AttributeError) as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 - objects may raise anything when they are pickled
        return "" if is_sure else str(error) or type(error).__name__
    return ""


def _other_way(function: Callable[..., Any]) -> Any:
    cloudpickle: Any = sys.modules.get("cloudpickle")
    try:
        return None if cloudpickle is None else _ByCloudpickle(cloudpickle.dumps(function))
    except Exception:  # noqa: BLE001
        return None
