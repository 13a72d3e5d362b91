"""What other caches would use as the key of a corpus case: a maker of a keyer for each.

Each gives {mode: text, "items": [text], "stale": None}: two runs with equal answers would be a hit there. A
key that the library cannot make is `refused: ...`.
"""

import functools
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Job = dict[str, Any]
Keyer = Callable[[Job, Job], Job]


def answer(mode: str, job: Job, key: Callable[..., str], item_key: Callable[[Any], str]) -> Job:
    """The answer of one library, with what it raises as a refusal."""
    told: Job = {"stale": None, "items": []}
    try:
        told[mode] = key(job["fn"], job.get("config") or {})
        told["items"] = [item_key(item) for item in job.get("items", [])]
    except Exception as error:  # noqa: BLE001 (whatever it is, the library made no key)
        told[mode] = f"refused: {type(error).__name__}: {error}"
    return told


def joblib_keyer() -> Keyer:
    """`joblib.Memory`: the function's name and its source text, and a hash of the arguments."""
    import joblib
    from joblib.func_inspect import get_func_code, get_func_name

    def key(fn: Any, config: dict[str, Any]) -> str:
        modules, name = get_func_name(fn)
        return f"{modules} {name} {get_func_code(fn)[0]!r} {joblib.hash(config)}"

    return lambda job, case: answer("joblib", job, key, joblib.hash)


def datasets_keyer() -> Keyer:
    """Hugging Face `datasets`: `Hasher.hash` of what `Dataset.map` is given; rows by value."""
    from datasets.fingerprint import Hasher

    return lambda job, case: answer("datasets", job, lambda *recipe: Hasher.hash(recipe), Hasher.hash)


def monai_keyer() -> Keyer:
    """MONAI `PersistentDataset(hash_transform=pickle_hashing)`: pickles of the transform and of the item."""
    from monai.data import PersistentDataset
    from monai.data.utils import pickle_hashing
    from monai.transforms import Compose

    def key(fn: Any, config: dict[str, Any]) -> str:
        transform = Compose([functools.partial(fn, **config)])
        return str(
            PersistentDataset([], transform, cache_dir=None, hash_transform=pickle_hashing).transform_hash
        )

    return lambda job, case: answer("monai", job, key, lambda item: pickle_hashing(item).decode())


def marimo_keyer() -> Keyer:
    """`marimo.cache` around a function of a plain module: its code and what it refers to, and the arguments.

    In a notebook, what a function refers to counts by the code of its cells. Without cells, marimo
    warns, and fails where values do not tell.
    """
    import marimo

    logging.getLogger("marimo").setLevel(logging.ERROR)

    def key(fn: Any, config: dict[str, Any], item: Any = None) -> str:
        # It looks names up where it is called: in the function's module.
        cached = eval("_cache(_fn)", {**fn.__globals__, "_cache": marimo.cache, "_fn": fn})
        return str(cached._prepare_call_execution((item,), config)[2].hash)

    return call_keyer("marimo", key)


def redun_keyer() -> Keyer:
    """redun: the task's name and source text, and a hash of the arguments."""
    from redun import task
    from redun.hashing import hash_eval
    from redun.value import get_type_registry

    def key(fn: Any, config: dict[str, Any], item: Any = None) -> str:
        made = task(namespace="corpus", name=fn.__name__)(fn)
        return str(hash_eval(get_type_registry(), made.hash, (item,), config)[0])

    return call_keyer("redun", key)


def prefect_keyer() -> Keyer:
    """Prefect's `INPUTS + TASK_SOURCE`: what its default counts beside the run."""
    from prefect import task
    from prefect.cache_policies import INPUTS, TASK_SOURCE

    def key(fn: Any, config: dict[str, Any], item: Any = None) -> str:
        context: Any = SimpleNamespace(task=task(fn))
        return str((INPUTS + TASK_SOURCE).compute_key(context, {"item": item, **config}, {}))

    return call_keyer("prefect", key)


def call_keyer(mode: str, key: Callable[..., str]) -> Keyer:
    """For a library that keys calls: of no item, and of each."""

    def keyed(job: Job, case: Job) -> Job:
        return answer(mode, job, key, functools.partial(key, job["fn"], job.get("config") or {}))

    return keyed


KEYERS = {
    "joblib.Memory": ("joblib_keyer", "joblib"),
    "HF datasets Hasher": ("datasets_keyer", "datasets"),
    "MONAI PersistentDataset": ("monai_keyer", "monai"),
    "marimo cache": ("marimo_keyer", "marimo"),
    "Prefect INPUTS + TASK_SOURCE": ("prefect_keyer", "prefect"),
    "redun": ("redun_keyer", "redun"),
}
"""Row of the table: (function here, the name under which it answers)."""
