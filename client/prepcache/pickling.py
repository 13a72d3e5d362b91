"""A data set on its way to another process: without its function where that cannot be sent and is not needed.

DataLoader workers that are spawned get data sets by pickle, which takes neither lambdas, nor closures, nor
methods of what a training framework holds. Where all samples are there, such a worker calls no function.

Invariants:
    1. A function that can be sent is sent with its config.
    2. While samples are missing, what cannot be sent is refused by pickle, as it was.
    3. A sample that got lost nevertheless is an error that says so, and what to do.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prepcache.errors import PreprocessError

if TYPE_CHECKING:
    from prepcache.fill.call import Job
    from prepcache.keys.recipes import Recipe


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
            f"{self.name} could not be sent to this process ({self.why}), and a sample that "
            "needs it is not cached any more: define it at the top level of a module"
        )


def sendable(job: Job, recipe: Recipe) -> tuple[Job, Recipe] | None:
    """The forms of these that can be sent; None where they can be as they are."""
    why = refusal(job.function) or refusal(job.config)
    if not why:
        return None
    sent = replace(job, function=Unsent(recipe.name, why), config={}, observer=None)
    return sent, replace(recipe, preprocess=None, config={}, asked={})


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
